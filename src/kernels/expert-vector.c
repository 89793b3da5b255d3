// Multiplies one token with the dense matrices of its experts; CUDA only. It takes as long as it takes to read them, so
// a warp reads whole rows of a matrix, LINES of them at once, with all loads on their way before the first is used. A
// lane has every 32nd pack of 8 numbers.
//
// Inputs: x (1 or rows, K) of T, weight (experts, N, K) of T, sizes (K, N), experts (rows): those of the token.
// Output: made (rows, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is
// the matrix's first half.
// Constants: T of 16 bits, GATED, EACH: rows for a row of x; PACKS: K / 256, rounded up; LINES; WARPS.
// Groups: (columns / (WARPS * LINES), rows).
#include "quantized.h"
  const int K = sizes[0], N = sizes[1], columns = GATED ? N / 2 : N;
  const int first = (group_x * WARPS + warp) * LINES;
  const T* row = x + long(group_y / EACH) * K;
  const T* matrix = weight + long(experts[group_y]) * N * K;
  constexpr int ALL = GATED ? 2 * LINES : LINES;
  uint4 own[PACKS], w[ALL][PACKS];
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    // Lanes behind the end multiply a pack of the row by zeros.
    const int at = (i * 32 + lane) * 8;
    const bool is_there = at < K;
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const int line = first + j % LINES + (j < LINES ? 0 : columns);
      w[j][i] = load_constant(matrix + long(line) * K + (is_there ? at : 0));
    }
    own[i] = is_there ? *reinterpret_cast<const uint4*>(row + at) : uint4{0, 0, 0, 0};
  }
  float sum[ALL] = {};
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const T* numbers = reinterpret_cast<const T*>(&own[i]);
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const T* factors = reinterpret_cast<const T*>(&w[j][i]);
      #pragma unroll
      for (int k = 0; k < 8; k++) sum[j] += float(numbers[k]) * float(factors[k]);
    }
  }
  #pragma unroll
  for (int j = 0; j < ALL; j++)
    for (int mask = 16; mask > 0; mask /= 2) sum[j] += SHUFFLE_XOR(sum[j], mask);
  if (lane > 0) return;
  #pragma unroll
  for (int j = 0; j < LINES; j++) {
    float result = sum[j];
    if (GATED) {
      const float gate = float(T(result)), up = float(T(sum[ALL - LINES + j]));
      result = gate / (1 + EXP(-gate)) * up;
    }
    made[long(group_y) * columns + first + j] = T(result);
  }
