// Calls OpenBLAS's matrix product, if libmlxc is linked with OpenBLAS.
#pragma once

#include "kernels.h"

#ifdef WITH_BLAS
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
    const float* b, int ldb, float beta, float* c, int ldc);

namespace mlx_serve {

/** Computes all columns of a product, on the thread pool. */
inline void blas_product(const Product& p, int columns) {
  enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
  cblas_sgemm(
      ROW_MAJOR, AS_IT_IS, TRANSPOSED, p.rows, columns, p.depth, p.alpha, p.x, p.x_stride, p.w,
      p.w_stride, p.beta, p.out, p.out_stride);
}

} // namespace mlx_serve
#endif
