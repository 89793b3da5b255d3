// Multiplies one token by a dense matrix (GEMV), or by its experts' matrices; CUDA only. Optionally fuses the RMSNorm
// before, SwiGLU, and the residual add after. Memory-bound: a warp reads LINES whole rows of the matrix, or a share
// of each, and issues all loads before it uses the first, and before the token is available. A lane has every 32nd
// pack of 8 numbers. With a norm, which every CTA computes redundantly, the grid is persistent: in each round a CTA
// advances by the rows of the whole grid, and loads each pack of the next row as soon as the current one is
// multiplied.
//
// Inputs: x (1 or rows, K) of T; weight (N, K) of T; norm (K); numbers: the norm's epsilon at 0; residual (columns).
// Unused inputs may be any array. With EXPERTS: weight (experts, N, K); chosen (rows): the token's experts.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, K, N, NORMED, GATED, RESIDUAL, EXPERTS, EACH: output rows per row of x; PACKS per
// lane and row: K / (256 SHARES), rounded up; LINES; WARPS, of which SHARES split each row; GROUPS: CTAs per matrix.
// Grid: (GROUPS, rows) CTAs of WARPS warps.
#include "quantized.h"
  constexpr int COLUMNS = GATED ? N / 2 : N, ALL = GATED ? 2 * LINES : LINES, STEP = WARPS / SHARES * LINES;
  constexpr int GRID_ROWS = GROUPS * STEP;
  const int share = warp % SHARES;
  int first = cta_x * STEP + warp / SHARES * LINES;
  const T* row = x + long(cta_y / EACH) * K;
  const T* matrix = weight;
  if (EXPERTS) {
    AWAIT_INPUTS;
    matrix += long(chosen[cta_y]) * N * K;
  }
  // Lanes past the end of K load any valid pack of the row and multiply it by zeros.
  constexpr bool IS_WHOLE = PACKS * SHARES * 256 == K;
  const auto place = [&](int i) { return ((i * SHARES + share) * 32 + lane) * 8; };
  const auto is_inside = [&](int i) { return IS_WHOLE || place(i) < K; };
  uint4 w[ALL][PACKS], factors[NORMED ? PACKS : 1];
  const auto load = [&](int i, int lines) {
    const T* from = matrix + long(lines) * K + (IS_WHOLE ? place(0) : is_inside(i) ? place(i) : 0);
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const long line = j % LINES + (j < LINES ? 0 : COLUMNS);
      w[j][i] = load_constant(from + line * K + (IS_WHOLE ? i * SHARES * 256 : 0));
    }
  };
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    load(i, first);
    if (NORMED) factors[i] = load_constant(norm + (is_inside(i) ? place(i) : 0));
  }
  const float epsilon = NORMED ? numbers[0] : 0;
  if (!EXPERTS) AWAIT_INPUTS;
  uint4 own[PACKS];
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    own[i] = load_global(row + (is_inside(i) ? place(i) : 0));
    if (!is_inside(i)) own[i] = uint4{0, 0, 0, 0};
  }
  // Lane j finishes row j at the end. The row's residual is loaded now, because a later load would queue after the
  // next launch's loads of its weights.
  static_assert(!RESIDUAL || GRID_ROWS >= COLUMNS, "residuals are loaded for one round");
  const T added = residual[RESIDUAL ? long(cta_y) * COLUMNS + first + lane % LINES : 0];
  const auto number = [&](int i, int k) { return float(reinterpret_cast<const T*>(&own[i])[k]); };
  // With a norm, keeps x times the norm's weight in float32: as many registers as both 16-bit factors would take.
  float normed[NORMED ? PACKS : 1][8], square = 0;
  #pragma unroll
  for (int i = 0; NORMED && i < PACKS; i++) {
    const T* by = reinterpret_cast<const T*>(&factors[i]);
    #pragma unroll
    for (int k = 0; k < 8; k++) {
      square += number(i, k) * number(i, k);
      normed[i][k] = number(i, k) * float(by[k]);
    }
  }
  for (int round = 0;; round++) {
    const int next = first + GRID_ROWS;
    const bool has_next = GRID_ROWS < COLUMNS && next < COLUMNS;
    float sum[ALL] = {};
    #pragma unroll
    for (int i = 0; i < PACKS; i++) {
      #pragma unroll
      for (int j = 0; j < ALL; j++) {
        const T* weights = reinterpret_cast<const T*>(&w[j][i]);
        #pragma unroll
        for (int k = 0; k < 8; k++)
          sum[j] += (NORMED ? normed[NORMED ? i : 0][k] : number(i, k)) * float(weights[k]);
      }
      if (has_next) load(i, next);
    }
    float all = square;
    #pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      for (int j = 0; j < ALL; j++) sum[j] += SHUFFLE_XOR(sum[j], mask);
      if (NORMED) all += SHUFFLE_XOR(all, mask);
    }
    if (SHARES > 1) {
      // Double-buffered, because warps may still read the previous round's sums.
      constexpr int KEPT = ALL + 1;
      SHARED float others[2 * WARPS * KEPT];
      float* kept = others + (round % 2 * WARPS + warp) * KEPT;
      if (lane == 0) {
        for (int j = 0; j < ALL; j++) kept[j] = sum[j];
        kept[ALL] = all;
      }
      BARRIER;
      for (int s = 1; share == 0 && s < SHARES; s++) {
        for (int j = 0; j < ALL; j++) sum[j] += kept[s * KEPT + j];
        all += kept[s * KEPT + ALL];
      }
    }
    const float scale = NORMED ? RSQRT(all / K + epsilon) : 1.0f;
    #pragma unroll
    for (int j = 0; j < LINES; j++) {
      if (lane != j || share > 0) continue;
      float result = sum[j] * scale;
      if (GATED) {
        const float gate = float(T(result)), up = float(T(sum[ALL - LINES + j] * scale));
        result = gate / (1 + EXP(-gate)) * up;
      }
      if (RESIDUAL) result += float(added);
      made[long(cta_y) * COLUMNS + first + j] = T(result);
    }
    if (!has_next) break;
    first = next;
  }
