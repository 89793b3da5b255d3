/* Steps of a model as CUDA graphs, in mlx-c's manner. Without CUDA every call is an error. */
#ifndef MLX_SERVE_RECORDING_H
#define MLX_SERVE_RECORDING_H

#include "mlx/c/array.h"
#include "mlx/c/stream.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mlx_serve_recording_ {
  void* ctx;
} mlx_serve_recording;

/** A copy of these numbers where both the host and the GPU read them, without moving pages. */
int mlx_serve_pinned(
    mlx_array* res, const void* data, const int* shape, size_t shape_num, mlx_dtype dtype);
/** A copy that the host reads once it is evaluated, or the array itself where the host reads that. */
int mlx_serve_fetch(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * All that computes `outputs` from `inputs`, which are evaluated. The outputs come so many times, by the same
 * operations: all but the last may be run, as rehearsals. Nobody else may hold them, and they are taken out
 * of the vector. An error where they cannot be recorded.
 */
int mlx_serve_recording_new(
    mlx_serve_recording* res,
    const mlx_vector_array inputs,
    const mlx_vector_array outputs,
    int takes,
    const mlx_stream s);
/**
 * The outputs for other inputs of the same shapes. One of more than 64 KiB is only what the recording has
 * made: to be copied by an operation that is evaluated before it is played again, and not to be read.
 */
int mlx_serve_play(
    mlx_vector_array* res,
    const mlx_serve_recording recording,
    const mlx_vector_array inputs,
    const mlx_stream s);
int mlx_serve_recording_free(mlx_serve_recording recording);

#ifdef __cplusplus
}
#endif

#endif
