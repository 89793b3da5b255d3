  // Rows x (rows, K) times a packed matrix (N, K), by tensor cores, MT times 16 rows a group; CUDA only. What
  // product.c does for a few rows, but the matrix is unpacked once for all of them. They come by way of shared
  // memory: while some are multiplied, the next are on their way. Of the warps of a group some have other
  // columns, and KS of them the same ones with a share of K each, which are added up in the end. A warp has NT
  // tiles of 8 columns. GATED: they come from both halves of the matrix, and what comes out is silu(gate) * up.
  //
  // As there, a lane loads 16 bytes of a row of the matrix a step, which are SUB times 8 neighbours, and the
  // same ones of x. In shared memory 8 of x are a pack. Packs that are read at once are in banks of their own:
  // they trade places, by the row and by the half of a row that they are in.
  constexpr int SUB = 16 / BITS, STEP = 32 * SUB, PACKS = STEP / 8, ROWS = MT * 16;
  constexpr int OWN = GATED ? NT / 2 : NT, STAGE = KS * ROWS * PACKS * 16;
  const int K = sizes[1], N = sizes[2], rows = sizes[0] - GROUP_X * ROWS;
  const int columns = GATED ? N / 2 : N;
  const int share = WARP % KS, group = LANE / 4, quad = LANE % 4;
  const int first = (GROUP_Y * (WARPS / KS) + WARP / KS) * OWN * 8;
  const int steps = (K / STEP + KS - 1) / KS;
  unsigned from[NT];
  for (int j = 0; j < NT; j++) {
    const int n = (j < OWN ? first + j * 8 : columns + first + (j - OWN) * 8) + group;
    from[j] = (n * (K / SUB) + share * 32 + quad * 8) * 2;
  }
  const unsigned room = mlx_serve_room();
  auto place = [](int row, int pack) { return (row * PACKS + (pack ^ pack / 8 * 2 ^ row % 2)) * 16; };
  // A thread copies the same pack of some rows and of each share.
  constexpr int APART = WARPS * 32 / PACKS;
  const int row = THREAD / PACKS, pack = THREAD % PACKS;
  const T* source = x + long(GROUP_X * ROWS + row) * K + pack * 8;
  auto fetch = [&](int step) {
    const unsigned to = room + step % 2 * STAGE + place(row, pack);
    for (int part = 0; part < KS; part++)
      for (int r = 0; r < ROWS; r += APART) {
        const int k = (step * KS + part) * STEP;
        const int bytes = row + r < rows && k < K ? 16 : 0;
        mlx_serve_copy(to + (part * ROWS + r) * PACKS * 16, source + r * K + k, bytes);
      }
    mlx_serve_copies_end();
  };
  uint4 w[2][NT];
  T scale[2][NT], bias[2][NT];
#define LOAD_MATRIX(slot, step) \
  if (((step) * KS + share) * STEP < K) \
    for (int j = 0; j < NT; j++) { \
      const unsigned at = from[j] + (step) * KS * 64; \
      w[slot][j] = *reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(weight) + at); \
      scale[slot][j] = scales[at / (SPAN * BITS / 8)]; \
      bias[slot][j] = biases[at / (SPAN * BITS / 8)]; \
    }
#define READ_ROWS(slot, sub) \
  for (int i = 0; i < MT * 2; i++) \
    p[slot][i / 2][i % 2] = mlx_serve_read(stage + place(i * 8 + group, quad * SUB + sub));
  float sum[MT][NT][4] = {};
  fetch(0);
  LOAD_MATRIX(0, 0)
  LOAD_MATRIX(1, 1)
  for (int s = 0; s < steps; s += 2) {
    #pragma unroll
    for (int u = 0; u < 2; u++) {
      if (s + u >= steps) break;
      mlx_serve_copies_wait();
      BARRIER;
      if (s + u + 1 < steps) fetch(s + u + 1);
      if (((s + u) * KS + share) * STEP >= K) break;
      const unsigned stage = room + u * STAGE + share * ROWS * PACKS * 16;
      uint4 p[2][MT][2];
      READ_ROWS(0, 0)
      #pragma unroll
      for (int sub = 0; sub < SUB; sub++) {
        if (sub + 1 < SUB) READ_ROWS((sub + 1) % 2, sub + 1)
        uint4 m[NT];
        for (int j = 0; j < NT; j++)
          m[j] = mlx_serve_unpacked<BITS>(w[u][j], sub, scale[u][j], bias[u][j]);
        uint4 (*now)[2] = p[sub % 2];
        for (int i = 0; i < MT * 2; i++) now[i / 2][i % 2] = mlx_serve_ordered<BITS>(now[i / 2][i % 2]);
        // One after the other has sums of its own: none waits for the one before.
        for (int i = 0; i < MT; i++)
          for (int j = 0; j < NT; j++)
            mlx_serve_mma(sum[i][j], now[i][0].x, now[i][1].x, now[i][0].y, now[i][1].y, m[j].x, m[j].y, x);
        for (int i = 0; i < MT; i++)
          for (int j = 0; j < NT; j++)
            mlx_serve_mma(sum[i][j], now[i][0].z, now[i][1].z, now[i][0].w, now[i][1].w, m[j].z, m[j].w, x);
      }
      LOAD_MATRIX(u, s + u + 2)
    }
  }
#undef LOAD_MATRIX
#undef READ_ROWS
  // Each warp ends some of the tiles: of those it has the others' sums, by way of the same memory.
  auto slot = [&](int warp, int i, int j) { return room + ((warp * MT + i) * NT + j) * 512 + LANE * 16; };
  if (KS > 1) {
    BARRIER;
    for (int i = 0; i < MT; i++)
      for (int j = 0; j < NT; j++)
        if ((i * OWN + j % OWN) % KS != share) mlx_serve_write(slot(WARP, i, j), sum[i][j]);
    BARRIER;
  }
  for (int i = 0; i < MT; i++)
    for (int j = 0; j < OWN; j++) {
      if ((i * OWN + j) % KS != share) continue;
      for (int other = 1; other < KS; other++)
        for (int part = j; part < NT; part += OWN)
          mlx_serve_add(sum[i][part], slot(WARP ^ other, i, part));
      for (int r = 0; r < 2; r++) {
        const int at = i * 16 + r * 8 + group;
        if (at >= rows) continue;
        const long to = long(GROUP_X * ROWS + at) * columns + first + j * 8 + quad * 2;
        float two[2];
        for (int c = 0; c < 2; c++) {
          two[c] = sum[i][j][r * 2 + c];
          if (GATED) {
            const float gate = float(T(two[c])), up = float(T(sum[i][NT - OWN + j][r * 2 + c]));
            two[c] = mlx_serve_quotient(gate, 1 + EXP(-gate)) * up;
          }
          if (RESIDUAL) two[c] += float(residual[to + c]);
        }
        *reinterpret_cast<unsigned*>(made + to) = mlx_serve_pack(two[0], two[1], x);
      }
    }
