/* Kernels of our own, compiled once for all starts, in mlx-c's manner. */
#ifndef MLX_SERVE_COMPILED_H
#define MLX_SERVE_COMPILED_H

#include "mlx/c/array.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Compiles the kernel that is to make this array and leaves it in MLX_PTX_CACHE_DIR, where MLX looks before it
 * compiles; nothing is done if it is there. An error where that cannot be: MLX will compile it itself.
 */
int mlx_serve_compile_kernel(const mlx_array made);

#ifdef __cplusplus
}
#endif

#endif
