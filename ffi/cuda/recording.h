/* Captures model steps as CUDA graphs and replays them; conventions of mlx-c. Without CUDA every call fails. */
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

/** Returns a copy of `data` in pinned host memory, which the GPU reads without page migration. */
int mlx_serve_pinned(
    mlx_array* res, const void* data, const int* shape, size_t shape_num, mlx_dtype dtype);
/** Returns a copy of `x` in pinned host memory, or `x` itself if the host can read it. */
int mlx_serve_fetch(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * Captures everything that computes `outputs` from `inputs`, which must be evaluated. `outputs` holds `takes` copies
 * of the step's outputs, built by the same operations: the last is captured, the others may be run as rehearsals. The
 * outputs are removed from the vector; no other handle may hold them. Fails if the step cannot be captured.
 */
int mlx_serve_recording_new(
    mlx_serve_recording* res, const mlx_vector_array inputs, const mlx_vector_array outputs, int
    takes, const mlx_stream s);
/**
 * Replays the graph for other inputs of the same shapes. An output above 64 KiB is a view of the recording's memory,
 * valid until the next replay: never read it, but copy it with an operation that is evaluated before then.
 */
int mlx_serve_play(
    mlx_vector_array* res, const mlx_serve_recording recording, const mlx_vector_array inputs, const
    mlx_stream s);
int mlx_serve_recording_free(mlx_serve_recording recording);

#ifdef __cplusplus
}
#endif

#endif
