/* Compiles our kernels once and caches them on disk; conventions of mlx-c. */
#ifndef MLX_SERVE_COMPILED_H
#define MLX_SERVE_COMPILED_H

#include "mlx/c/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Compiles the custom kernel of the unevaluated array `made` into MLX_PTX_CACHE_DIR, unless it is
 * there already. MLX looks there before it compiles; after an error it compiles the kernel itself.
 */
int mlx_serve_compile_kernel(const mlx_array made);

#ifdef __cplusplus
}
#endif

#endif
