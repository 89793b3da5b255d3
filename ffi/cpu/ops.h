/* Operations of our own for a CPU, with the conventions of mlx-c. All numbers are float32. */
#ifndef MLX_SERVE_OPS_H
#define MLX_SERVE_OPS_H

#include "mlx/c/array.h"
#include "mlx/c/distributed_group.h"
#include "mlx/c/stream.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Uninitialized, aligned to a cache line. */
int mlx_serve_room(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, const mlx_stream s);
/**
 * The newest token of each sequence: qkv (B, (heads + 2 kv_heads) * D) -> (B, heads * D). Its key and
 * value are written to the pools (blocks, kv_heads, 32, D), which are inputs for MLX: it never copies
 * them. With `shares_kv` qkv has only queries, and another layer has written the rest. Tables and layer are
 * packed as src/kernels/attention/paged-attention.ts says. In a block of keys the tokens are the last axis, (kv_heads, D, 32).
 */
int mlx_serve_decode(
    mlx_array* res,
    const mlx_array qkv,
    const mlx_array keys,
    const mlx_array values,
    const mlx_array tables,
    const mlx_array layer,
    bool normed,
    bool values_normed,
    bool shares_kv,
    int rotary_dims,
    int window,
    bool chunked,
    bool capped,
    bool sinks,
    const mlx_stream s);
/** qkv (T, ...): keys and values go to their slots; queries (T, heads * D). */
int mlx_serve_prepare(
    mlx_array* res,
    const mlx_array qkv,
    const mlx_array keys,
    const mlx_array values,
    const mlx_array places,
    const mlx_array layer,
    bool normed,
    bool values_normed,
    bool shares_kv,
    int rotary_dims,
    const mlx_stream s);
/** Queries (T, heads * D) over the blocks of their sequences, up to their positions. */
int mlx_serve_attend(
    mlx_array* res,
    const mlx_array queries,
    const mlx_array keys,
    const mlx_array values,
    const mlx_array tables,
    const mlx_array places,
    const mlx_array layer,
    int rotary_dims,
    int window,
    bool chunked,
    bool capped,
    bool sinks,
    const mlx_stream s);
/**
 * Attention whose heads share one vector a token (kernels.h): queries (T, heads * D), latents (T, D), which are
 * written to the pool (blocks, 1, 32, D) -> (T, heads * latent). Without places the tokens are the newest of their
 * sequences.
 */
int mlx_serve_attend_latent(
    mlx_array* res,
    const mlx_array queries,
    const mlx_array latents,
    const mlx_array pool,
    const mlx_array tables,
    const mlx_array places /* may be null */,
    const mlx_array layer,
    int latent,
    bool rotated,
    const mlx_stream s);
/** Copies blocks within a pool: pairs of from and to. */
int mlx_serve_copy_blocks(
    mlx_array* res,
    const mlx_array pool,
    const mlx_array pairs,
    const mlx_stream s);
/** How many rows of a quantized matrix are a panel where this processor multiplies by panels, otherwise 0. */
int mlx_serve_panel_rows(void);
/**
 * The weights, scales or biases of a quantized matrix in panels: (..., out, n) -> (..., out / 16, n, 16). A panel has the
 * first elements of its rows, then the second ones. They are in the memory of x, which is not to be read any more.
 */
int mlx_serve_panels(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * x (..., in) with a matrix that MLX has quantized to 4 or 8 bits: weight (out, in * bits / 32) of uint32, scales
 * and biases (out, in / group), groups of 32, 64 or 128; or to mxfp4, with scales of uint8 and no biases -> (..., out).
 * All of it may be in panels, and then scales and biases may have 16 bits.
 * Fused with it: the RMS norm of the rows before, with its weight (in); `gated`: silu(first half) * second half; the
 * residual added to the result.
 */
int mlx_serve_packed_product(
    mlx_array* res,
    const mlx_array x,
    const mlx_array weight,
    const mlx_array scales,
    const mlx_array biases /* may be null */,
    const mlx_array norm /* may be null */,
    const mlx_array residual /* may be null */,
    int bits,
    int group,
    float eps,
    bool gated,
    const mlx_stream s);
/**
 * Each row of x (N, in) with the matrices of the next R / N experts (R), indices of 32 bits, which are not checked:
 * weight (E, out, in) of float32, or quantized as above, (E, out, in * bits / 32), where there are scales -> (R, out).
 * The bias (E, out) of the expert is added; `gated` as above, after that.
 */
int mlx_serve_expert_product(
    mlx_array* res,
    const mlx_array x,
    const mlx_array experts,
    const mlx_array weight,
    const mlx_array scales /* may be null */,
    const mlx_array biases /* may be null */,
    const mlx_array bias /* may be null */,
    int bits,
    int group,
    bool gated,
    const mlx_stream s);
/** silu(gates) * ups, or gelu's approximation by tanh. */
int mlx_serve_gate(
    mlx_array* res,
    const mlx_array gates,
    const mlx_array ups,
    bool gelu,
    const mlx_stream s);
int mlx_serve_rms_norm(
    mlx_array* res,
    const mlx_array x,
    const mlx_array weight /* may be null */,
    float eps,
    const mlx_stream s);
/** Of each row the index of the maximum (uint32), and the maximum, which is NaN where one is. */
int mlx_serve_best(mlx_vector_array* res, const mlx_array x, const mlx_stream s);
/** Over the last axis, which stays with the size 1. */
int mlx_serve_log_sum_exp(mlx_array* res, const mlx_array x, const mlx_stream s);
int mlx_serve_softmax(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * Convolves each channel of x (T, channels), which may be columns of wider rows, with its last inputs, weight (taps,
 * channels). Moves: four integers that are not read, then of each sequence its first token, their number, the slot
 * with its inputs before them, below 0 for none, and the one for those after them. The pool (slots, taps - 1,
 * channels) is written to.
 */
int mlx_serve_convolve(
    mlx_array* res,
    const mlx_array x,
    const mlx_array pool,
    const mlx_array moves,
    const mlx_array weight,
    const mlx_array bias /* may be null */,
    bool silu,
    const mlx_stream s);
/**
 * Passes tokens through the states of their sequences, as kernels.h says, the pool (slots, heads, value_dim, key_dim),
 * which is written to. Queries and keys (key_heads, key_dim) and values (heads, value_dim) begin at these columns of x
 * (T, columns); decays (T, heads), or (T, heads * key_dim), betas (T, heads) -> (T, heads * value_dim). Queries and
 * keys are divided by their root mean square and scaled, unless eps is below 0. What is found with `finds` is taken
 * away along `puts` (key_heads, key_dim), unless these columns are below 0.
 */
int mlx_serve_scan(
    mlx_array* res,
    const mlx_array x,
    const mlx_array decays,
    const mlx_array betas,
    const mlx_array pool,
    const mlx_array moves,
    int key_heads,
    int queries,
    int keys,
    int values,
    int finds,
    int puts,
    float eps,
    float query_scale,
    float key_scale,
    bool corrects,
    const mlx_stream s);
/** Minus infinity except where a bit of the row's words (uint32) is set. */
int mlx_serve_mask(
    mlx_array* res, const mlx_array x, const mlx_array words, const mlx_stream s);
/** Rows of a matrix, of float32 where there are no scales: indices (T) of uint32 -> (T, in). */
int mlx_serve_lookup(
    mlx_array* res,
    const mlx_array indices,
    const mlx_array weight,
    const mlx_array scales,
    const mlx_array biases,
    int bits,
    int group,
    const mlx_stream s);

typedef struct mlx_serve_sequence_ {
  void* ctx;
} mlx_serve_sequence;

/** Whether nothing but these operations computes the outputs. */
int mlx_serve_are_own(bool* res, const mlx_vector_array outputs);
/**
 * All that computes `outputs` from `places`, which are evaluated. Nothing is computed, and the outputs are good for nothing
 * else. An error where an operation of them is not one of these.
 */
int mlx_serve_sequence_new(
    mlx_serve_sequence* res, const mlx_vector_array places, const mlx_vector_array outputs);
/** The outputs for inputs of the places' shapes. One of more than 64 KiB is only there until another sequence is run. */
int mlx_serve_sequence_run(
    mlx_vector_array* res,
    const mlx_serve_sequence sequence,
    const mlx_vector_array inputs,
    const mlx_stream s);
int mlx_serve_sequence_free(mlx_serve_sequence sequence);

/**
 * A group of processes of this machine, which share the memory of this file; it is made, and gone when all have come.
 * Waits for them. Collectives of it are mlx-c's: sums, gathers, and what neighbours send each other, on a CPU.
 */
int mlx_serve_shared_group(mlx_distributed_group* res, const char* path, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
