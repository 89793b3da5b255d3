  // Up to 16 rows x (rows, K) times a matrix (N, K), by tensor cores; CUDA only. Of the warps of a group some
  // have other columns, and KS of them the same ones with a share of K each, which are added up in the end. A
  // warp has NT tiles of 8 columns. GATED: columns come from both halves of the matrix, and what comes out is
  // silu(gate) * up. EPS: rows are multiplied by the norm and divided by their root mean square, which is
  // summed up on the way.
  //
  // A lane loads 8 neighbours of a row of x and of the matrix. Their order within the product's K is not
  // that of the instruction's, but it is the same for both. Loads are under way long before they are used,
  // AHEAD of them of the matrix: it is its bytes that the time goes into.
  const int rows = sizes[0], K = sizes[1], N = sizes[2];
  constexpr int OWN = GATED ? NT / 2 : NT;
  const int columns = GATED ? N / 2 : N;
  const int share = WARP % KS, group = LANE / 4, quad = LANE % 4;
  const int first = (GROUP_Y * (WARPS / KS) + WARP / KS) * OWN * 8;
  const int steps = (K / 32 - share + KS - 1) / KS;
  const T* from[NT];
  for (int j = 0; j < NT; j++) {
    const int n = (j < OWN ? first + j * 8 : columns + first + (j - OWN) * 8) + group;
    from[j] = weight + long(n) * K + share * 32 + quad * 8;
  }
  const T* row = x + long(group) * K + share * 32 + quad * 8;
  uint4 w[AHEAD][NT], a[2] = {}, b[2] = {};
#define LOAD_MATRIX(slot, step) \
  for (int j = 0; j < NT; j++) w[slot][j] = *reinterpret_cast<const uint4*>(from[j] + (step) * KS * 32);
#define LOAD_ROWS(slot, step) \
  if (group < rows) a[slot] = *reinterpret_cast<const uint4*>(row + (step) * KS * 32); \
  if (8 + group < rows) b[slot] = *reinterpret_cast<const uint4*>(row + 8 * K + (step) * KS * 32);
  float sum[NT][4] = {}, squares[2] = {};
  #pragma unroll
  for (int u = 0; u < AHEAD; u++)
    if (u < steps) LOAD_MATRIX(u, u)
  if (steps > 0) { LOAD_ROWS(0, 0) }
  for (int s = 0; s < steps; s += AHEAD) {
    #pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (s + u >= steps) break;
      uint4 factors;
      if (EPS > 0)
        factors = *reinterpret_cast<const uint4*>(norm + ((s + u) * KS + share) * 32 + quad * 8);
      if (s + u + 1 < steps) { LOAD_ROWS((u + 1) % 2, s + u + 1) }
      uint4 p = a[u % 2], q = b[u % 2];
      if (EPS > 0) {
        squares[0] += mlx_serve_squares(p, x);
        squares[1] += mlx_serve_squares(q, x);
        p = mlx_serve_times(p, factors, x);
        q = mlx_serve_times(q, factors, x);
      }
      for (int j = 0; j < NT; j++) {
        const uint4 m = w[u][j];
        mlx_serve_mma(sum[j], p.x, q.x, p.y, q.y, m.x, m.y, x);
        mlx_serve_mma(sum[j], p.z, q.z, p.w, q.w, m.z, m.w, x);
      }
      if (s + u + AHEAD < steps) LOAD_MATRIX(u, s + u + AHEAD)
    }
  }
#undef LOAD_MATRIX
#undef LOAD_ROWS
  // Each of a quad's lanes has seen other elements of the same rows.
  if (EPS > 0)
    for (int r = 0; r < 2; r++)
      for (int mask = 1; mask < 4; mask *= 2) squares[r] += SHUFFLE_XOR(squares[r], mask);
  constexpr int SUMS = NT * 4, EACH = SUMS + (EPS > 0 ? 2 : 0);
  __shared__ float others[(WARPS / 2) * (KS > 1 ? EACH : 1) * 32];
  for (int half = KS / 2; half > 0; half /= 2) {
    float* slot = others + ((WARP / KS) * (KS / 2) + share % half) * EACH * 32 + LANE;
    if (share >= half && share < 2 * half) {
      for (int i = 0; i < SUMS; i++) slot[i * 32] = sum[i / 4][i % 4];
      if (EPS > 0) for (int i = 0; i < 2; i++) slot[(SUMS + i) * 32] = squares[i];
    }
    BARRIER;
    if (share < half) {
      for (int i = 0; i < SUMS; i++) sum[i / 4][i % 4] += slot[i * 32];
      if (EPS > 0) for (int i = 0; i < 2; i++) squares[i] += slot[(SUMS + i) * 32];
    }
    BARRIER;
  }
  if (share > 0) return;
  for (int r = 0; r < 2; r++) {
    const int at = r * 8 + group;
    if (at >= rows) continue;
    const float scale = EPS > 0 ? RSQRT(squares[r] / K + EPS * 1e-9f) : 1;
    for (int j = 0; j < OWN; j++) {
      const long to = long(at) * columns + first + j * 8 + quad * 2;
      for (int c = 0; c < 2; c++) {
        float result = sum[j][r * 2 + c] * scale;
        if (GATED) {
          const float gate = float(T(result)), up = float(T(sum[j + OWN][r * 2 + c] * scale));
          result = gate / (1 + EXP(-gate)) * up;
        }
        if (RESIDUAL) result += float(residual[to + c]);
        made[to + c] = T(result);
      }
    }
  }
