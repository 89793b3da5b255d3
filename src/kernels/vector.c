// Multiplies one token with a dense matrix, or with those of its experts; CUDA only. Optionally fuses the RMS norm
// before, the gate, and the residual behind. It takes as long as it takes to read the matrix, so a warp reads whole rows
// of it, or a share of them, LINES at once, with all loads on their way before the first is used, and before the
// token is there. A lane has every 32nd pack of 8 numbers.
//
// Inputs: x (1 or rows, K) of T, weight (N, K) of T, sizes (K, N), norm (K), numbers: the norm's epsilon at 0, residual
// (columns); those that are not used may be any array. With EXPERTS: weight (experts, N, K), chosen (rows): those of the
// token.
// Output: made (rows, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is
// the matrix's first half.
// Constants: T of 16 bits, NORMED, GATED, RESIDUAL, EXPERTS, EACH: rows for a row of x; PACKS: K / (256 SHARES), rounded
// up; LINES; WARPS, of which SHARES have the same lines.
// Groups: (columns / (WARPS / SHARES * LINES), rows).
#include "quantized.h"
  const int K = sizes[0], N = sizes[1], columns = GATED ? N / 2 : N;
  const int share = warp % SHARES, first = (group_x * (WARPS / SHARES) + warp / SHARES) * LINES;
  const T* row = x + long(group_y / EACH) * K;
  const T* matrix = weight;
  if (EXPERTS) {
    AWAIT_INPUTS;
    matrix += long(chosen[group_y]) * N * K;
  }
  constexpr int ALL = GATED ? 2 * LINES : LINES;
  uint4 own[PACKS], factors[NORMED ? PACKS : 1], w[ALL][PACKS];
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    // Lanes behind the end multiply a pack of the row by zeros.
    const int at = ((i * SHARES + share) * 32 + lane) * 8;
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const int line = first + j % LINES + (j < LINES ? 0 : columns);
      w[j][i] = load_constant(matrix + long(line) * K + (at < K ? at : 0));
    }
    if (NORMED) factors[i] = load_constant(norm + (at < K ? at : 0));
  }
  if (!EXPERTS) AWAIT_INPUTS;
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const int at = ((i * SHARES + share) * 32 + lane) * 8;
    own[i] = at < K ? *reinterpret_cast<const uint4*>(row + at) : uint4{0, 0, 0, 0};
  }
  float sum[ALL] = {}, square = 0;
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const T* inputs = reinterpret_cast<const T*>(&own[i]);
    const T* scales = reinterpret_cast<const T*>(&factors[NORMED ? i : 0]);
    float numbers_of[8];
    #pragma unroll
    for (int k = 0; k < 8; k++) {
      numbers_of[k] = float(inputs[k]);
      square += NORMED ? numbers_of[k] * numbers_of[k] : 0;
      if (NORMED) numbers_of[k] *= float(scales[k]);
    }
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const T* weights = reinterpret_cast<const T*>(&w[j][i]);
      #pragma unroll
      for (int k = 0; k < 8; k++) sum[j] += numbers_of[k] * float(weights[k]);
    }
  }
  #pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    for (int j = 0; j < ALL; j++) sum[j] += SHUFFLE_XOR(sum[j], mask);
    if (NORMED) square += SHUFFLE_XOR(square, mask);
  }
  if (SHARES > 1) {
    constexpr int KEPT = ALL + 1;
    SHARED float others[WARPS * KEPT];
    if (lane == 0) {
      for (int j = 0; j < ALL; j++) others[warp * KEPT + j] = sum[j];
      others[warp * KEPT + ALL] = square;
    }
    BARRIER;
    if (share > 0) return;
    for (int s = 1; s < SHARES; s++) {
      for (int j = 0; j < ALL; j++) sum[j] += others[(warp + s) * KEPT + j];
      square += others[(warp + s) * KEPT + ALL];
    }
  }
  if (lane > 0) return;
  const float scale = NORMED ? RSQRT(square / K + numbers[0]) : 1.0f;
  #pragma unroll
  for (int j = 0; j < LINES; j++) {
    const long to = long(group_y) * columns + first + j;
    float result = sum[j] * scale;
    if (GATED) {
      const float gate = float(T(result)), up = float(T(sum[ALL - LINES + j] * scale));
      result = gate / (1 + EXP(-gate)) * up;
    }
    if (RESIDUAL) result += float(residual[to]);
    made[to] = T(result);
  }
