  // A few rows x (rows, K) times a matrix (N, K), by tensor cores; CUDA only, for there it costs MLX more
  // time to ask cuBLAS for the product than the device takes. Of the warps of a group some have other rows
  // (RS), some other columns, and KS of them the same rows and columns with a share of K each, which are
  // added up in the end. A warp has MT tiles of 16 rows and NT of 8 columns. GATED: columns come from both
  // halves of the matrix, and what comes out is silu(gate) * up. EPS: rows are multiplied by the norm and
  // divided by their root mean square, which is summed up on the way.
  //
  // A lane loads 8 neighbours of a row of x and of the matrix. Their order within the product's K is not
  // that of the instruction's, but it is the same for both. Loads are under way long before they are used,
  // AHEAD of them of the matrix: it is its bytes that the time goes into.
  const int rows = sizes[0], K = sizes[1], N = sizes[2];
  constexpr int OWN = GATED ? NT / 2 : NT;
  const int columns = GATED ? N / 2 : N;
  const int share = WARP % KS, group = LANE / 4, quad = LANE % 4;
  const int top = (WARP / KS) % RS * MT * 16;
  const int first = (GROUP_Y * (WARPS / KS / RS) + WARP / KS / RS) * OWN * 8;
  const int steps = (K / 32 - share + KS - 1) / KS;
  const T* from[NT];
  for (int j = 0; j < NT; j++) {
    const int n = (j < OWN ? first + j * 8 : columns + first + (j - OWN) * 8) + group;
    from[j] = weight + long(n) * K + share * 32 + quad * 8;
  }
  const T* row = x + long(top + group) * K + share * 32 + quad * 8;
  uint4 w[AHEAD][NT], a[2][MT], b[2][MT];
#define LOAD_MATRIX(slot, step) \
  for (int j = 0; j < NT; j++) w[slot][j] = *reinterpret_cast<const uint4*>(from[j] + (step) * KS * 32);
#define LOAD_ROWS(slot, step) \
  for (int i = 0; i < MT; i++) { \
    const T* at = row + long(i * 16) * K + (step) * KS * 32; \
    if (top + i * 16 + group < rows) a[slot][i] = *reinterpret_cast<const uint4*>(at); \
    if (top + i * 16 + 8 + group < rows) b[slot][i] = *reinterpret_cast<const uint4*>(at + 8 * K); \
  }
  float sum[MT][NT][4], squares[MT][2];
  for (int i = 0; i < MT; i++) {
    a[0][i] = a[1][i] = b[0][i] = b[1][i] = uint4{0, 0, 0, 0};
    squares[i][0] = squares[i][1] = 0;
    for (int j = 0; j < NT; j++)
      for (int c = 0; c < 4; c++) sum[i][j][c] = 0;
  }
  #pragma unroll
  for (int u = 0; u < AHEAD; u++)
    if (u < steps) LOAD_MATRIX(u, u)
  if (steps > 0) LOAD_ROWS(0, 0)
  for (int s = 0; s < steps; s += AHEAD) {
    #pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (s + u >= steps) break;
      uint4 factors;
      if (EPS > 0)
        factors = *reinterpret_cast<const uint4*>(norm + ((s + u) * KS + share) * 32 + quad * 8);
      if (s + u + 1 < steps) LOAD_ROWS((u + 1) % 2, s + u + 1)
      #pragma unroll
      for (int i = 0; i < MT; i++) {
        uint4 p = a[u % 2][i], q = b[u % 2][i];
        if (EPS > 0) {
          squares[i][0] += mlx_serve_squares(p, static_cast<const T*>(nullptr));
          squares[i][1] += mlx_serve_squares(q, static_cast<const T*>(nullptr));
          p = mlx_serve_times(p, factors, static_cast<const T*>(nullptr));
          q = mlx_serve_times(q, factors, static_cast<const T*>(nullptr));
        }
        for (int j = 0; j < NT; j++) {
          const uint4 m = w[u][j];
          mlx_serve_mma(sum[i][j], p.x, q.x, p.y, q.y, m.x, m.y, static_cast<const T*>(nullptr));
          mlx_serve_mma(sum[i][j], p.z, q.z, p.w, q.w, m.z, m.w, static_cast<const T*>(nullptr));
        }
      }
      if (s + u + AHEAD < steps) LOAD_MATRIX(u, s + u + AHEAD)
    }
  }
#undef LOAD_MATRIX
#undef LOAD_ROWS
  // Each of a quad's lanes has seen other elements of the same rows.
  if (EPS > 0)
    for (int i = 0; i < MT; i++)
      for (int r = 0; r < 2; r++)
        for (int mask = 1; mask < 4; mask *= 2)
          squares[i][r] += SHUFFLE_XOR(squares[i][r], mask);
  constexpr int SUMS = MT * NT * 4, EACH = SUMS + (EPS > 0 ? MT * 2 : 0);
  __shared__ float others[(WARPS / 2) * (KS > 1 ? EACH : 1) * 32];
  for (int half = KS / 2; half > 0; half /= 2) {
    float* slot = others + ((WARP / KS) * (KS / 2) + share % half) * EACH * 32 + LANE;
    if (share >= half && share < 2 * half) {
      for (int i = 0; i < SUMS; i++) slot[i * 32] = (&sum[0][0][0])[i];
      if (EPS > 0) for (int i = 0; i < MT * 2; i++) slot[(SUMS + i) * 32] = (&squares[0][0])[i];
    }
    BARRIER;
    if (share < half) {
      for (int i = 0; i < SUMS; i++) (&sum[0][0][0])[i] += slot[i * 32];
      if (EPS > 0) for (int i = 0; i < MT * 2; i++) (&squares[0][0])[i] += slot[(SUMS + i) * 32];
    }
    BARRIER;
  }
  if (share > 0) return;
  for (int i = 0; i < MT; i++) {
    for (int r = 0; r < 2; r++) {
      const int at = top + i * 16 + r * 8 + group;
      if (at >= rows) continue;
      const float scale = EPS > 0 ? RSQRT(squares[i][r] / K + EPS * 1e-9f) : 1;
      for (int j = 0; j < OWN; j++) {
        const long to = long(at) * columns + first + j * 8 + quad * 2;
        for (int c = 0; c < 2; c++) {
          float result = sum[i][j][r * 2 + c] * scale;
          if (GATED) {
            const float gate = float(T(result)), up = float(T(sum[i][j + OWN][r * 2 + c] * scale));
            result = gate / (1 + EXP(-gate)) * up;
          }
          if (RESIDUAL) result += float(residual[to + c]);
          made[to + c] = T(result);
        }
      }
    }
  }
