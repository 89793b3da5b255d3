// Matrices that MLX has quantized, and products with them.
#pragma once

#include "operation.h"

namespace mlx_serve {

/** (..., out, in): weight (..., out, in * bits / 32), scales and biases (..., out, in / group); mxfp4 has no biases. */
struct QuantizedMatrix {
  const mx::array &weight, &scales;
  const mx::array* biases;
  int bits, group;
};

/** Throws unless there are kernels for it, it has so many axes, and its rows are `depth` weights. */
void check_quantized(const QuantizedMatrix& matrix, int axes, int depth);

/** How many floats so many rows of a quantized product take once they are arranged. */
inline size_t arranged_size(int rows, int depth) {
  return static_cast<size_t>(rows) * (depth / GROUP) * kernels().arranged;
}

/** All columns of a product of any number of rows, on the threads of the pool. */
void multiply(const QuantizedProduct& product, int columns);

} // namespace mlx_serve
