// Declares matrices in MLX's quantization, and products with them.
#pragma once

#include "operation.h"

namespace mlx_serve {

/**
 * A quantized matrix (..., out, in): weight (..., out, in * bits / 32), scales and biases (..., out, in / group);
 * mxfp4 has no biases. In panels each array has one more axis (kernels.h).
 */
struct QuantizedMatrix {
  const mx::array &weight, &scales;
  const mx::array* biases;
  int bits, group;
};

/** Sizes and format of a quantized matrix, known before its arrays have memory. */
struct QuantizedShape {
  int columns, depth, bits, group;
  bool has_biases, in_panels;
  Numbers numbers;

  /** Returns a product whose rows of x are not set yet. `in` points to the inputs that `put_inputs` has added. */
  QuantizedProduct product(const mx::array* in) const;

  /** Returns the bytes that the weights of `count` columns take. */
  size_t weight_bytes(long count) const {
    return static_cast<size_t>(count) * depth / 8 * bits;
  }

  /** Returns the bytes that the scales of `count` columns take. */
  size_t scale_bytes(long count) const {
    const size_t each = !has_biases ? 1 : numbers == Numbers::float32 ? 4 : 2;
    return static_cast<size_t>(count) * (depth / group) * each;
  }
};

/** Returns a matrix's sizes and format. Requires `axes` axes (panels: one more) and rows of `depth` weights. */
QuantizedShape shape_of(const QuantizedMatrix& matrix, int axes, int depth);

/** Adds the matrix to the inputs of an operation. */
inline void put_inputs(const QuantizedMatrix& matrix, Arrays& inputs) {
  inputs.push_back(matrix.weight);
  inputs.push_back(matrix.scales);
  inputs.push_back(matrix.biases ? *matrix.biases : matrix.scales);
}

/** Returns the number of floats that rows of x take in the layout of `arrange`. */
inline size_t arranged_size(int rows, int depth) {
  return static_cast<size_t>(rows) * (depth / GROUP) * kernels().arranged;
}

/** Computes all columns of a product with any number of rows, on the thread pool. */
void multiply(const QuantizedProduct& product, int columns);

} // namespace mlx_serve
