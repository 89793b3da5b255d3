// Where products with quantized weights leave their sums. Part of kernels.cpp.
#pragma once

#include "product.h"

namespace mlx_serve {
namespace VARIANT {

/** The sums of M rows with N columns that are `apart` from each other; parts are whole vectors of them. */
template <int M, int N>
static INLINE void put_sums(const QuantizedProduct& p, const Floats* parts, int column, long apart) {
  float whole[M * N + LANES - 1];
  for (int k = 0; k < M * N; k += LANES) store(whole + k, sums(parts + k));
  for (int m = 0; m < M; m++) {
    float* out = p.out + m * p.out_stride + column;
    for (int n = 0; n < N; n++, out += apart) {
      *out = p.beta == 0 ? whole[m * N + n] : whole[m * N + n] + p.beta * *out;
    }
  }
}

} // namespace VARIANT
} // namespace mlx_serve
