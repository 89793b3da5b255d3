// The products that BLAS is slow at: few rows, whose cost is to read the weights once (docs/log.md).
#include "columns.h"
#include "kernels.h"

/** Of sgemm's arguments in row order, w transposed. False where it is left to BLAS. */
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
