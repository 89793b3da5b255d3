// Multiplies up to 16 rows per CTA by a matrix with tensor cores; CUDA only. Optionally fuses the RMSNorm before,
// SwiGLU, and the residual add after. Memory-bound: the time is that of reading the matrix, so its loads are issued
// AHEAD steps before use. A CTA has 16 rows of x; a warp has NT tiles of 8 columns. KS warps share the same columns
// and split K; their accumulators are added at the end.
//
// Per step a lane loads 16 bytes of a matrix row: 8 numbers, or SUB * 8 if quantized. The order of K within an MMA is
// not the instruction's, but it is the same for x and the matrix, so the result does not change.
//
// Inputs: x (rows, K); weight (N, K) of T, or quantized to BITS with scales and biases (N, K / SPAN) of T; norm (K);
// residual (rows, columns). Unused inputs may be any array. With EXPERTS: weight (experts, N, K), norm has the expert
// of each output row, a CTA has one row only, and a row of x serves EACH output rows.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, K, N, BITS (16: not quantized), SPAN, EPS of the norm in 1e-9 (0: no norm),
// GATED, RESIDUAL, EXPERTS, EACH; NT, KS, WARPS, AHEAD.
// Grid: (rows / 16, N / (WARPS / KS * NT * 8)) CTAs of WARPS warps, or with EXPERTS (rows, ...).
#include "quantized.h"
  const int rows = EXPERTS ? 1 : x_shape[0] - cta_x * 16;
  const int first_row = EXPERTS ? cta_x : cta_x * 16;
  if (EXPERTS) AWAIT_INPUTS;
  const long expert = EXPERTS ? reinterpret_cast<const int*>(norm)[cta_x] : 0;
  constexpr int SUB = 16 / BITS, STEP = 32 * SUB;
  constexpr int OWN = GATED ? NT / 2 : NT;
  constexpr int COLUMNS = GATED ? N / 2 : N;
  const int share = warp % KS, group = lane / 4, quad = lane % 4;
  const int first = (cta_y * (WARPS / KS) + warp / KS) * OWN * 8;
  const int steps = (K / STEP - share + KS - 1) / KS;
  const int start = share * STEP + quad * 8 * SUB;
  unsigned from[NT];
  for (int j = 0; j < NT; j++) {
    const int n = (j < OWN ? first + j * 8 : COLUMNS + first + (j - OWN) * 8) + group;
    from[j] = (n * (K / SUB) + start / SUB) * 2;
  }
  const char* matrix = reinterpret_cast<const char*>(weight) + expert * N * (K / SUB) * 2;
  const T* matrix_scales = scales + (BITS < 16 ? expert * N * (K / SPAN) : 0);
  const T* matrix_biases = biases + (BITS < 16 ? expert * N * (K / SPAN) : 0);
  const T* row = x + long(first_row / EACH + group) * K + start;
  // Depth of the register prefetch of x and the norm's weights, in parts: a step has SUB of them.
  constexpr int DEEP = 4;
  static_assert(AHEAD * SUB % DEEP == 0, "parts have the same place in every round of loads");
  uint4 w[AHEAD][NT], a[DEEP] = {}, b[DEEP] = {}, factors[DEEP];
  T scale[AHEAD][NT], bias[AHEAD][NT];
#define LOAD_MATRIX(slot, step) \
  for (int j = 0; j < NT; j++) { \
    const unsigned at = from[j] + (step) * KS * 64; \
    w[slot][j] = *reinterpret_cast<const uint4*>(matrix + at); \
    if (BITS < 16) scale[slot][j] = matrix_scales[at / (SPAN * BITS / 8)]; \
    if (BITS < 16) bias[slot][j] = matrix_biases[at / (SPAN * BITS / 8)]; \
  }
#define LOAD_ROWS(slot, part) \
  if ((part) < steps * SUB) { \
    const int k = (part) / SUB * KS * STEP + (part) % SUB * 8; \
    if (group < rows) a[slot] = *reinterpret_cast<const uint4*>(row + k); \
    if (8 + group < rows) b[slot] = *reinterpret_cast<const uint4*>(row + 8 * K + k); \
    if (EPS > 0) factors[slot] = *reinterpret_cast<const uint4*>(norm + start + k); \
  }
  float sum[NT][4] = {}, square[4] = {};
  #pragma unroll
  for (int u = 0; u < AHEAD; u++)
    if (u < steps) LOAD_MATRIX(u, u)
  if (!EXPERTS) AWAIT_INPUTS;
  #pragma unroll
  for (int part = 0; part < DEEP - 1; part++) LOAD_ROWS(part, part)
  // Two adjacent output columns of a row. A lane finishes such pairs at the end.
  struct alignas(2 * sizeof(T)) Pair {
    T x[2];
  };
  const auto place = [&](int r, int j) {
    return long(first_row + r * 8 + group) * COLUMNS + first + j * 8 + quad * 2;
  };
  Pair addends[2][OWN];
  for (int r = 0; RESIDUAL && r < 2; r++)
    for (int j = 0; j < OWN; j++)
      if (share == 0 && r * 8 + group < rows)
        addends[r][j] = *reinterpret_cast<const Pair*>(residual + place(r, j));
  for (int s = 0; s < steps; s += AHEAD) {
    #pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (s + u >= steps) break;
      #pragma unroll
      for (int sub = 0; sub < SUB; sub++) {
        const int now = (u * SUB + sub) % DEEP;
        LOAD_ROWS((now + DEEP - 1) % DEEP, (s + u) * SUB + sub + DEEP - 1)
        uint4 p = a[now], q = b[now];
        if (EPS > 0) {
          // Computes the norm's sums of squares as the diagonal of x x^T, in two accumulator tiles.
          mma_m16n8k16(square, p.x, 0, p.y, 0, p.x, p.y, x);
          mma_m16n8k16(square, p.z, 0, p.w, 0, p.z, p.w, x);
          mma_m16n8k16(square, 0, q.x, 0, q.y, q.x, q.y, x);
          mma_m16n8k16(square, 0, q.z, 0, q.w, q.z, q.w, x);
          p = multiply_pairs(p, factors[now], x);
          q = multiply_pairs(q, factors[now], x);
        }
        p = interleave<BITS>(p);
        q = interleave<BITS>(q);
        for (int j = 0; j < NT; j++) {
          const uint4 m = dequantize<BITS>(w[u][j], sub, scale[u][j], bias[u][j]);
          mma_m16n8k16(sum[j], p.x, q.x, p.y, q.y, m.x, m.y, x);
          mma_m16n8k16(sum[j], p.z, q.z, p.w, q.w, m.z, m.w, x);
        }
      }
      if (s + u + AHEAD < steps) LOAD_MATRIX(u, s + u + AHEAD)
    }
  }
#undef LOAD_MATRIX
#undef LOAD_ROWS
  // In each quad of lanes, the lane whose element is on the diagonal keeps it: it is its row's sum of squares.
  float squares[2] = {};
  if (EPS > 0)
    for (int r = 0; r < 2; r++) {
      if (quad == group / 2) squares[r] = group % 2 ? square[r * 2 + 1] : square[r * 2];
      for (int mask = 1; mask < 4; mask *= 2) squares[r] += SHUFFLE_XOR(squares[r], mask);
    }
  constexpr int SUMS = NT * 4, KEPT = SUMS + (EPS > 0 ? 2 : 0);
  SHARED float others[(WARPS / 2) * (KS > 1 ? KEPT : 1) * 32];
  for (int half = KS / 2; half > 0; half /= 2) {
    float* slot = others + ((warp / KS) * (KS / 2) + share % half) * KEPT * 32 + lane;
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
    if (r * 8 + group >= rows) continue;
    const float factor = EPS > 0 ? RSQRT(squares[r] / K + EPS * 1e-9f) : 1;
    for (int j = 0; j < OWN; j++) {
      Pair pair;
      for (int c = 0; c < 2; c++) {
        float result = sum[j][r * 2 + c] * factor;
        if (GATED) {
          const float gate = float(T(result)), up = float(T(sum[j + OWN][r * 2 + c] * factor));
          result = gate / (1 + EXP(-gate)) * up;
        }
        if (RESIDUAL) result += float(addends[r][j].x[c]);
        pair.x[c] = T(result);
      }
      *reinterpret_cast<Pair*>(made + place(r, j)) = pair;
    }
  }
