// Defines the BLAS symbols that libmlx calls. The loader searches libmlxc first, so these replace the slow reference
// BLAS in libmlx's Linux wheel: products of few rows go to our own kernels (cpu/product.cpp), the others to OpenBLAS
// on our thread pool. With PLAIN all calls go to OpenBLAS unchanged, for benchmarks of mlx-lm.
#include <stdbool.h>
#include <stddef.h>

#define GEMM(name, scalar, data, instead)                                                          \
  void scipy_cblas_##name(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,  \
                          const data* a, int lda, const data* b, int ldb, scalar beta, data* c,    \
                          int ldc);                                                                \
  void cblas_##name(int order, int trans_a, int trans_b, int m, int n, int k, scalar alpha,        \
                    const data* a, int lda, const data* b, int ldb, scalar beta, data* c,          \
                    int ldc) {                                                                     \
    instead                                                                                        \
    scipy_cblas_##name(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);     \
  }

#ifdef PLAIN
#define FEW_ROWS
#else
bool mlx_serve_product(int rows, int columns, int depth, float alpha, const float* x, int x_stride,
                       const float* w, int w_stride, float beta, float* out, int out_stride);
enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
#define FEW_ROWS                                                                                   \
  if (order == ROW_MAJOR && trans_a == AS_IT_IS && trans_b == TRANSPOSED &&                        \
      mlx_serve_product(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))                             \
    return;
#endif

GEMM(sgemm, float, float, FEW_ROWS)
GEMM(dgemm, double, double, )
GEMM(cgemm, const void*, void, ) // complex scalars are passed by address

#ifndef PLAIN
#include "cpu/pool.h"

char* scipy_openblas_get_config(void);
int scipy_openblas_get_num_threads(void);
void scipy_openblas_set_num_threads(int);

typedef void (*Job)(int thread, void* data, int extra);
void scipy_openblas_set_threads_callback_function(void (*)(int sync, Job job, int jobs, size_t size,
                                                           void* data, int extra));

struct Jobs {
  Job job;
  size_t size;
  char* data;
  int extra;
};

static void run_job(void* context, int i) {
  const struct Jobs* jobs = context;
  jobs->job(i, jobs->data + i * jobs->size, jobs->extra);
}

static void run_jobs(int sync, Job job, int count, size_t size, void* data, int extra) {
  (void)sync;
  struct Jobs jobs = {job, size, data, extra};
  mlx_serve_pool_run(count, run_job, &jobs);
}

const char* mlx_serve_blas_name(void) { return scipy_openblas_get_config(); }
int mlx_serve_blas_threads(void) { return scipy_openblas_get_num_threads(); }
void mlx_serve_blas_set_threads(int threads) {
  mlx_serve_pool_set_threads(threads);
  scipy_openblas_set_threads_callback_function(run_jobs);
  scipy_openblas_set_num_threads(threads);
}
#endif
