// Attention of prompt chunks with tensor cores (FlashAttention 2 style, paged); CUDA only. A CTA computes a tile: a
// few consecutive tokens of one sequence, with one row for each query head of one KV head. A warp has MT * 16 rows,
// with their online softmax and accumulators in registers. Keys and values come in steps of KEYS tokens,
// double-buffered in shared memory with cp.async. Rows in shared memory are padded by 16 bytes, so that ldmatrix
// reads eight rows without bank conflicts.
//
// Inputs: queries (tokens, HEADS, D), prepared by prepare.c; layer (layer.h); keys and values (blocks, KV_HEADS, 32,
// D); tables (block tables, packTables); places (positions, KV slots, packPlaces); tiles (token, count, packTiles).
// Output: attended (tokens, HEADS, D).
// Template arguments: T of 16 bits, D, HEADS, KV_HEADS, ROTARY_DIMS, WINDOW, CHUNKED, CAPPED (softcap), SINKS of the
// layer; WARPS per CTA, MT, KEYS.
// Grid: (1, KV_HEADS, tiles) CTAs of WARPS warps, with dynamic shared memory for WARPS * MT * 16 + 4 * KEYS rows.
#include "cuda-instructions.h"
#include "layer.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS;
  constexpr int THREADS = WARPS * 32, ROWS = WARPS * MT * 16, STRIDE = (D + 8) * 2, PACKS = D / 8;
  const int first = tiles[2 * cta_z], count = tiles[2 * cta_z + 1], kv = cta_y;
  if (count == 0) return;
  const int position = places[3 * first], newest = position + count - 1;
  const int oldest = oldest_seen<WINDOW, CHUNKED>(position);
  const int* table = tables + 2 + places[3 * first + 2] * (tables[0] + 1);
  const long from = (long(first) * KV_HEADS + kv) * HEADS_PER_KV * D;
  const unsigned queries_at = dynamic_shared_memory();
  // Tile rows after the last query are filled with copies of that query.
  #pragma unroll 4
  for (int c = thread_index; c < ROWS * PACKS; c += THREADS) {
    const int row = min(c / PACKS, count * HEADS_PER_KV - 1);
    const long at = from + (long(row / HEADS_PER_KV) * HEADS + row % HEADS_PER_KV) * D + c % PACKS * 8;
    cp_async(queries_at + c / PACKS * STRIDE + c % PACKS * 16, queries + at, 16);
  }
  // `fetch` zero-fills slots that no token of the tile attends to, because empty slots may contain NaN.
  auto stage_at = [&](int base) { return queries_at + (ROWS + base / KEYS % 2 * 2 * KEYS) * STRIDE; };
  auto fetch = [&](int base) {
    #pragma unroll
    for (int b = 0; b < KEYS; b += 32) {
      const long block = (long(table[(base + b) / 32]) * KV_HEADS + kv) * 32 * D;
      #pragma unroll
      for (int i = 0; i < 32 * PACKS; i += THREADS) {
        const int c = i + thread_index, key = b + c / PACKS;
        if (32 * PACKS % THREADS > 0 && c >= 32 * PACKS) break;
        const unsigned to = stage_at(base) + key * STRIDE + c % PACKS * 16;
        const int bytes = unsigned(base + key - oldest) <= unsigned(newest - oldest) ? 16 : 0;
        cp_async(to, keys + block + c * 8, bytes);
        cp_async(to + KEYS * STRIDE, values + block + c * 8, bytes);
      }
    }
    cp_async_commit();
  };
  const int top_row = warp * MT * 16, row = top_row + lane / 4, column = lane % 4 * 2;
  const int lowest = position + top_row / HEADS_PER_KV;
  const int highest = lowest > newest ? -1 : min(newest, position + (top_row + MT * 16 - 1) / HEADS_PER_KV);
  // ldmatrix_x4 addresses of this lane. Queries and values: 16 rows of 8 columns, then their next 8 columns.
  const unsigned own_queries = queries_at + (top_row + lane % 16) * STRIDE + lane / 16 * 16;
  const unsigned own_key = (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 16;
  const unsigned own_value = (KEYS + lane % 16) * STRIDE + lane / 16 * 16;
  const float log2e = 1.44269504f, scale = CAPPED ? log2e : layer[LAYER_SCALE] * log2e;
  float sum[MT][D / 8][4] = {}, top[MT][2], total[MT][2] = {};
  for (int i = 0; i < MT * 2; i++) top[i / 2][i % 2] = -1e30f;
  const int begin = oldest / KEYS * KEYS;
  fetch(begin);
  for (int base = begin; base <= newest; base += KEYS) {
    cp_async_wait();
    BARRIER;
    if (base + KEYS <= newest) fetch(base + KEYS);
    if (base > highest || base + KEYS <= oldest_seen<WINDOW, CHUNKED>(lowest)) continue;
    const unsigned stage = stage_at(base);
    float score[MT][KEYS / 8][4] = {};
    #pragma unroll
    for (int k = 0; k < D / 16; k++) {
      unsigned a[MT][4], b[4];
      #pragma unroll
      for (int i = 0; i < MT; i++) ldmatrix_x4<false>(a[i], own_queries + i * 16 * STRIDE + k * 32);
      #pragma unroll
      for (int n = 0; n < KEYS / 16; n++) {
        ldmatrix_x4<false>(b, stage + own_key + n * 16 * STRIDE + k * 32);
        #pragma unroll
        for (int i = 0; i < MT * 2; i++)
          mma_m16n8k16(score[i / 2][2 * n + i % 2], a[i / 2][0], a[i / 2][1], a[i / 2][2], a[i / 2][3],
                        b[i % 2 * 2], b[i % 2 * 2 + 1], queries);
      }
    }
    const bool is_whole = base + KEYS - 1 <= lowest && base >= oldest_seen<WINDOW, CHUNKED>(highest);
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
      const int r = i % 2 * 2, seen = position + (row + i * 8) / HEADS_PER_KV;
      const int first_seen = oldest_seen<WINDOW, CHUNKED>(seen);
      float(&s)[KEYS / 8][4] = score[i / 2];
      float most = top[i / 2][i % 2];
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) {
        float& x = s[j / 2][r + j % 2];
        if (CAPPED) x = layer[LAYER_SOFTCAP] * TANH(x * (layer[LAYER_SCALE] / layer[LAYER_SOFTCAP]));
        const int key = base + j / 2 * 8 + column + j % 2;
        if (!is_whole && (key > seen || (WINDOW > 0 && key < first_seen))) x = -3e38f;
        most = fmaxf(most, x);
      }
      most = fmaxf(most, SHUFFLE_XOR(most, 1));
      most = fmaxf(most, SHUFFLE_XOR(most, 2));
      const float keep = ex2_approx((top[i / 2][i % 2] - most) * scale);
      top[i / 2][i % 2] = most;
      float all = total[i / 2][i % 2] * keep;
      #pragma unroll
      for (int j = 0; j < KEYS / 4; j++) {
        float& x = s[j / 2][r + j % 2];
        x = ex2_approx(fmaf(x, scale, -most * scale));
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
        a[i / 4][i % 4] = pack_pair(x[0], x[1], queries);
      }
      #pragma unroll
      for (int n = 0; n < D / 16; n++) {
        ldmatrix_x4<true>(b, stage + own_value + k * 16 * STRIDE + n * 32);
        #pragma unroll
        for (int i = 0; i < MT * 2; i++)
          mma_m16n8k16(sum[i / 2][2 * n + i % 2], a[i / 2][0], a[i / 2][1], a[i / 2][2], a[i / 2][3],
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
    if (own >= count * HEADS_PER_KV) continue;
    if (SINKS) {
      const float most = top[i / 2][i % 2] * scale;
      const int head = kv * HEADS_PER_KV + own % HEADS_PER_KV;
      const float sink = layer_sinks<D, ROTARY_DIMS>(layer)[head] * log2e;
      factor = ex2_approx(most - fmaxf(most, sink));
      all = all * factor + ex2_approx(sink - fmaxf(most, sink));
    }
    factor /= all;
    T* to = attended + from + (long(own / HEADS_PER_KV) * HEADS + own % HEADS_PER_KV) * D + column;
    for (int j = 0; j < D / 8; j++) {
      const float* x = sum[i / 2][j] + i % 2 * 2;
      *reinterpret_cast<unsigned*>(to + j * 8) = pack_pair(x[0] * factor, x[1] * factor, queries);
    }
  }
