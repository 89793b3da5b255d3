// Matrices that MLX has quantized, and products with them.
#pragma once

#include "operation.h"

namespace mlx_serve {

/**
 * (..., out, in): weight (..., out, in * bits / 32), scales and biases (..., out, in / group); mxfp4 has no biases. In
 * panels each of them has an axis more (kernels.h).
 */
struct QuantizedMatrix {
  const mx::array &weight, &scales;
  const mx::array* biases;
  int bits, group;
};

/** What is known of a quantized matrix before it has its memory. */
struct QuantizedShape {
  int columns, depth, bits, group;
  bool has_biases, in_panels;
  Numbers numbers;

  /** A product without rows; `in` is the first of the inputs that `put_inputs` has added. */
  QuantizedProduct product(const mx::array* in) const;

  /** How many bytes the weights of so many columns are. */
  size_t weight_bytes(long count) const {
    return static_cast<size_t>(count) * depth / 8 * bits;
  }

  /** And their scales. */
  size_t scale_bytes(long count) const {
    const size_t each = !has_biases ? 1 : numbers == Numbers::float32 ? 4 : 2;
    return static_cast<size_t>(count) * (depth / group) * each;
  }
};

/** Throws unless there are kernels for it, it has so many axes but for that of panels, and its rows are `depth` weights. */
QuantizedShape shape_of(const QuantizedMatrix& matrix, int axes, int depth);

/** Adds the matrix to the inputs of an operation. */
inline void put_inputs(const QuantizedMatrix& matrix, Arrays& inputs) {
  inputs.push_back(matrix.weight);
  inputs.push_back(matrix.scales);
  inputs.push_back(matrix.biases ? *matrix.biases : matrix.scales);
}

/** How many floats so many rows of a quantized product take once they are arranged. */
inline size_t arranged_size(int rows, int depth) {
  return static_cast<size_t>(rows) * (depth / GROUP) * kernels().arranged;
}

/** All columns of a product of any number of rows, on the threads of the pool. */
void multiply(const QuantizedProduct& product, int columns);

} // namespace mlx_serve
