// Computes products of few rows faster than BLAS, by reading each weight from memory only once (docs/log.md).
#include "columns.h"
#include "kernels.h"

/** Computes sgemm in row-major order with w transposed. Returns false if BLAS should compute the product. */
extern "C" bool mlx_serve_product(
    int rows, int columns, int depth, float alpha, const float* x, int x_stride, const float* w,
    int w_stride, float beta, float* out, int out_stride) {
  using namespace mlx_serve;
  if (rows > MANY_ROWS) return false;
  const Product product = {rows, depth, x, x_stride, w, w_stride, alpha, beta, out, out_stride};
  each_columns(columns, rows, depth, [&](int from, int to) {
    kernels().product(product, from, to);
  });
  return true;
}
