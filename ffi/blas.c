// libmlx calls the reference BLAS that its wheel for Linux carries. These definitions stand in libmlxc,
// which the loader searches first, and pass the same calls on to OpenBLAS.
#define GEMM(name, scalar, data)                                                                   \
  void scipy_cblas_##name(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,  \
                          const data* a, int lda, const data* b, int ldb, scalar beta, data* c,    \
                          int ldc);                                                                \
  void cblas_##name(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,        \
                    const data* a, int lda, const data* b, int ldb, scalar beta, data* c,          \
                    int ldc) {                                                                     \
    scipy_cblas_##name(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);     \
  }

GEMM(sgemm, float, float)
GEMM(dgemm, double, double)
GEMM(cgemm, const void*, void) // complex: the scalars are passed by address

char* scipy_openblas_get_config(void);
int scipy_openblas_get_num_threads(void);
void scipy_openblas_set_num_threads(int);

const char* mlx_serve_blas_name(void) { return scipy_openblas_get_config(); }
int mlx_serve_blas_threads(void) { return scipy_openblas_get_num_threads(); }
void mlx_serve_blas_set_threads(int threads) { scipy_openblas_set_num_threads(threads); }
