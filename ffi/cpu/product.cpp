// The products that BLAS is slow at: few rows, whose cost is to read the weights once (docs/log.md).
#include "kernels.h"
#include "pool.h"

namespace {

/** From here on BLAS is faster, which packs the weights first. */
constexpr int MOST_ROWS = 128;

/** Products below this many multiplications are not worth another thread. */
constexpr long SMALL = 1 << 16;

/** Columns that go together, at least. */
constexpr int COLUMNS = 16;

} // namespace

/** Of sgemm's arguments in row order, w transposed. False where it is left to BLAS. */
extern "C" bool mlx_serve_product(
    int rows, int columns, int depth, float alpha, const float* x, int x_stride, const float* w,
    int w_stride, float beta, float* out, int out_stride) {
  if (rows > MOST_ROWS) return false;
  const mlx_serve::Product product = {
      rows, depth, x, x_stride, w, w_stride, alpha, beta, out, out_stride};
  const auto& kernels = mlx_serve::kernels();
  const bool is_small = static_cast<long>(rows) * columns * depth < SMALL;
  const int most = is_small ? 1 : 4 * mlx_serve_pool_threads();
  const int wanted = (columns + most - 1) / most;
  const int each = is_small ? columns : (wanted + COLUMNS - 1) / COLUMNS * COLUMNS;
  mlx_serve::parallel((columns + each - 1) / each, [&](int i) {
    const int from = i * each;
    kernels.product(product, from, from + each < columns ? from + each : columns);
  });
  return true;
}
