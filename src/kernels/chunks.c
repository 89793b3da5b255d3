  // Chunks of prompts over the blocks of their sequences, by tensor cores; CUDA only. A group has a tile: a
  // few consecutive tokens of one sequence and all queries of theirs that share a head of keys, a row each.
  // A warp has MT times 16 rows, with their softmax in registers. While some keys and values are multiplied,
  // the next are on their way to shared memory, where a row is 16 bytes longer than a head: so the eight rows
  // that are read at once are in banks of their own.
  constexpr int THREADS = WARPS * 32, ROWS = WARPS * MT * 16, STRIDE = (D + 8) * 2, PACKS = D / 8;
  const int first = tiles[2 * GROUP_Z], count = tiles[2 * GROUP_Z + 1], kv = GROUP_Y;
  if (count == 0) return;
  const int position = places[3 * first], newest = position + count - 1;
  const int oldest = WINDOW > 0 && position >= WINDOW ? position - WINDOW + 1 : 0;
  const int* table = tables + 2 + places[3 * first + 2] * (tables[0] + 1);
  const long from = (long(first) * KV + kv) * SHARERS * D;
  const unsigned queries_at = mlx_serve_room();
  // Rows that the tile does not fill have the last one's query.
  #pragma unroll 4
  for (int c = THREAD; c < ROWS * PACKS; c += THREADS) {
    const int row = min(c / PACKS, count * SHARERS - 1);
    const long at = from + (long(row / SHARERS) * KV * SHARERS + row % SHARERS) * D + c % PACKS * 8;
    mlx_serve_copy(queries_at + c / PACKS * STRIDE + c % PACKS * 16, queries + at, 16);
  }
  // What no token of the tile may see becomes zero: a place without a token may hold anything.
  auto stage_at = [&](int base) { return queries_at + (ROWS + base / KEYS % 2 * 2 * KEYS) * STRIDE; };
  auto fetch = [&](int base) {
    #pragma unroll
    for (int b = 0; b < KEYS; b += 32) {
      const long block = (long(table[(base + b) / 32]) * KV + kv) * 32 * D;
      #pragma unroll
      for (int i = 0; i < 32 * PACKS; i += THREADS) {
        const int c = i + THREAD, key = b + c / PACKS;
        if (32 * PACKS % THREADS > 0 && c >= 32 * PACKS) break;
        const unsigned to = stage_at(base) + key * STRIDE + c % PACKS * 16;
        const int bytes = unsigned(base + key - oldest) <= unsigned(newest - oldest) ? 16 : 0;
        mlx_serve_copy(to, keys + block + c * 8, bytes);
        mlx_serve_copy(to + KEYS * STRIDE, values + block + c * 8, bytes);
      }
    }
    mlx_serve_copies_end();
  };
  const int top_row = WARP * MT * 16, row = top_row + LANE / 4, column = LANE % 4 * 2;
  const int lowest = position + top_row / SHARERS;
  const int highest = lowest > newest ? -1 : min(newest, position + (top_row + MT * 16 - 1) / SHARERS);
  // Lanes point ldmatrix at its rows: of queries and values at 16 rows, then at their next 8 columns.
  const unsigned own_queries = queries_at + (top_row + LANE % 16) * STRIDE + LANE / 16 * 16;
  const unsigned own_key = (LANE / 16 * 8 + LANE % 8) * STRIDE + LANE / 8 % 2 * 16;
  const unsigned own_value = (KEYS + LANE % 16) * STRIDE + LANE / 16 * 16;
  const float log2e = 1.44269504f, scale = CAPPED ? log2e : work[0] * log2e;
  float sum[MT][D / 8][4] = {}, top[MT][2], total[MT][2] = {};
  for (int i = 0; i < MT * 2; i++) top[i / 2][i % 2] = -1e30f;
  const int begin = oldest / KEYS * KEYS;
  fetch(begin);
  for (int base = begin; base <= newest; base += KEYS) {
    mlx_serve_copies_wait();
    BARRIER;
    if (base + KEYS <= newest) fetch(base + KEYS);
    if (base > highest || (WINDOW > 0 && base + KEYS <= lowest - WINDOW + 1)) continue;
    const unsigned stage = stage_at(base);
    float score[MT][KEYS / 8][4] = {};
    #pragma unroll
    for (int k = 0; k < D / 16; k++) {
      unsigned a[MT][4], b[4];
      #pragma unroll
      for (int i = 0; i < MT; i++) mlx_serve_load<false>(a[i], own_queries + i * 16 * STRIDE + k * 32);
      #pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        mlx_serve_load<false>(b, stage + own_key + n * 16 * STRIDE + k * 32);
        #pragma unroll
        for (int i = 0; i < MT * 2; i++)
          mlx_serve_mma(score[i / 2][2 * n + i % 2], a[i / 2][0], a[i / 2][1], a[i / 2][2], a[i / 2][3],
                        b[i % 2 * 2], b[i % 2 * 2 + 1], queries);
      }
    }
    const bool is_whole = base + KEYS - 1 <= lowest && (WINDOW == 0 || base > highest - WINDOW);
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
      const int r = i % 2 * 2, seen = position + (row + i * 8) / SHARERS;
      float(&s)[KEYS / 8][4] = score[i / 2];
      float most = top[i / 2][i % 2];
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) {
        float& x = s[j / 2][r + j % 2];
        if (CAPPED) x = work[2] * TANH(x * (work[0] / work[2]));
        const int key = base + j / 2 * 8 + column + j % 2;
        if (!is_whole && (key > seen || (WINDOW > 0 && key <= seen - WINDOW))) x = -3e38f;
        most = fmaxf(most, x);
      }
      most = fmaxf(most, SHUFFLE_XOR(most, 1));
      most = fmaxf(most, SHUFFLE_XOR(most, 2));
      const float keep = mlx_serve_power((top[i / 2][i % 2] - most) * scale);
      top[i / 2][i % 2] = most;
      float all = total[i / 2][i % 2] * keep;
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) {
        float& x = s[j / 2][r + j % 2];
        x = mlx_serve_power(fmaf(x, scale, -most * scale));
        all += x;
      }
      total[i / 2][i % 2] = all;
      #pragma unroll
      for (int j = 0; j < D / 4; j++) sum[i / 2][j / 2][r + j % 2] *= keep;
    }
    #pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
      unsigned a[MT][4], b[4];
      #pragma unroll
      for (int i = 0; i < MT * 4; i++) {
        const float* x = score[i / 4][2 * k + i % 4 / 2] + i % 2 * 2;
        a[i / 4][i % 4] = mlx_serve_pack(x[0], x[1], queries);
      }
      #pragma unroll
      for (int n = 0; n < D / 16; n++) {
        mlx_serve_load<true>(b, stage + own_value + k * 16 * STRIDE + n * 32);
        #pragma unroll
        for (int i = 0; i < MT * 2; i++)
          mlx_serve_mma(sum[i / 2][2 * n + i % 2], a[i / 2][0], a[i / 2][1], a[i / 2][2], a[i / 2][3],
                        b[i % 2 * 2], b[i % 2 * 2 + 1], queries);
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < MT * 2; i++) {
    const int own = row + i * 8;
    float all = total[i / 2][i % 2], factor = 1;
    all += SHUFFLE_XOR(all, 1);
    all += SHUFFLE_XOR(all, 2);
    if (own >= count * SHARERS) continue;
    if (SINKS) {
      const float most = top[i / 2][i % 2] * scale;
      const float sink = work[4 + 2 * D + TURNED / 2 + kv * SHARERS + own % SHARERS] * log2e;
      factor = mlx_serve_power(most - fmaxf(most, sink));
      all = all * factor + mlx_serve_power(sink - fmaxf(most, sink));
    }
    factor /= all;
    T* to = attended + from + (long(own / SHARERS) * KV * SHARERS + own % SHARERS) * D + column;
    for (int j = 0; j < D / 8; j++) {
      const float* x = sum[i / 2][j] + i % 2 * 2;
      *reinterpret_cast<unsigned*>(to + j * 8) = mlx_serve_pack(x[0] * factor, x[1] * factor, queries);
    }
  }
