/* Our CPU operations; conventions of mlx-c. All numbers are float32. */
#ifndef MLX_SERVE_OPS_H
#define MLX_SERVE_OPS_H

#include "mlx/c/array.h"
#include "mlx/c/distributed_group.h"
#include "mlx/c/stream.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Returns an uninitialized array, aligned to a cache line. */
int mlx_serve_room(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, const mlx_stream s);
/**
 * Computes attention of each sequence's newest token: qkv (B, (heads + 2 kv_heads) * D) -> (B, heads * D). The
 * token's key and value are written in place to the KV pools (blocks, kv_heads, 32, D), which MLX sees as inputs and
 * never copies. With `shares_kv` qkv has only queries, and an earlier layer has written keys and values. Tables and
 * layer are packed by src/kernels/attention/paged-attention.ts. Key blocks are transposed: (kv_heads, D, 32).
 */
int mlx_serve_decode(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values, const
    mlx_array tables, const mlx_array layer, bool normed, bool values_normed, bool shares_kv, int
    rotary_dims, int long_beyond, int window, bool chunked, bool capped, bool sinks, const
    mlx_stream s);
/** Applies norm and RoPE to qkv (T, ...); writes keys and values to their slots; returns queries (T, heads * D). */
int mlx_serve_prepare(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values, const
    mlx_array places, const mlx_array layer, bool normed, bool values_normed, bool shares_kv, int
    rotary_dims, int long_beyond, bool sinks, const mlx_stream s);
/** Computes attention of prepared queries (T, heads * D) over their KV blocks, up to their positions. */
int mlx_serve_attend(
    mlx_array* res, const mlx_array queries, const mlx_array keys, const mlx_array values, const
    mlx_array tables, const mlx_array places, const mlx_array layer, int rotary_dims, int window,
    bool chunked, bool capped, bool sinks, const mlx_stream s);
/**
 * Computes latent attention (kernels.h) of queries (T, heads * D) -> (T, heads * latent), and writes latents (T, D)
 * to the pool (blocks, 1, 32, D) in place. Without `places` each row is its sequence's newest token.
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
/** Copies KV blocks within a pool, given pairs of source and destination block. */
int mlx_serve_copy_blocks(
    mlx_array* res, const mlx_array pool, const mlx_array pairs, const mlx_stream s);
/** Returns the number of matrix rows per panel, or 0 if this processor's kernels do not use panels. */
int mlx_serve_panel_rows(void);
/**
 * Converts weights, scales or biases of a quantized matrix to panels: (..., out, n) -> (..., out / 16, n, 16). A
 * panel has the first element of each of its 16 rows, then the second ones, and so on. Works in place: x must not be
 * used afterwards.
 */
int mlx_serve_panels(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * Multiplies x (..., in) by a matrix in MLX's 4- or 8-bit quantization -> (..., out): weight (out, in * bits / 32) of
 * uint32, scales and biases (out, in / group), groups of 32, 64 or 128; or by mxfp4, with uint8 scales and no biases.
 * The matrix may be in panels, with scales and biases of 16 bits too. Optionally fused: RMSNorm of the rows before,
 * with weight (in); with `gated` SwiGLU, silu(first half) * second half; the residual add after.
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
 * Multiplies each row of x (N, in) by the matrices of its R / N experts -> (R, out). Experts (R): 32-bit indices, not
 * checked. weight (E, out, in) of float32, or, with scales, quantized as above, (E, out, in * bits / 32). The
 * expert's bias (E, out) is added, then with `gated` SwiGLU is applied.
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
/** Computes silu(gates) * ups; with `gelu`, GELU's tanh approximation replaces silu. */
int mlx_serve_gate(
    mlx_array* res, const mlx_array gates, const mlx_array ups, bool gelu, const mlx_stream s);
int mlx_serve_rms_norm(
    mlx_array* res,
    const mlx_array x,
    const mlx_array weight /* may be null */,
    float eps,
    const mlx_stream s);
/** Returns each row's argmax (uint32) and maximum, which is NaN if any number is NaN. */
int mlx_serve_best(mlx_vector_array* res, const mlx_array x, const mlx_stream s);
/** Reduces the last axis, which is kept with size 1. */
int mlx_serve_log_sum_exp(mlx_array* res, const mlx_array x, const mlx_stream s);
int mlx_serve_softmax(mlx_array* res, const mlx_array x, const mlx_stream s);
/**
 * Computes a causal depthwise convolution of x (T, channels), which may be columns of wider rows, by weight (taps,
 * channels). Moves: a header of four integers, then per sequence its first token, number of tokens, source slot of
 * its kept inputs (negative for none) and destination slot. The pool (slots, taps - 1, channels) is written in place.
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
 * Computes a linear recurrence (Scan in kernels.h) over each sequence's tokens -> (T, heads * value_dim), and updates
 * the states in the pool (slots, heads, value_dim, key_dim) in place. x (T, columns) has queries and keys (key_heads,
 * key_dim) and values (heads, value_dim) at the given columns; decays (T, heads) or (T, heads * key_dim); betas (T,
 * heads). Queries and keys are divided by their root mean square and scaled unless eps is negative. `finds` and
 * `puts` are columns (key_heads, key_dim) for erasing, negative for none.
 */
int mlx_serve_scan(
    mlx_array* res, const mlx_array x, const mlx_array decays, const mlx_array betas, const
    mlx_array pool, const mlx_array moves, int key_heads, int queries, int keys, int values, int
    finds, int puts, float eps, float query_scale, float key_scale, bool corrects, const mlx_stream
    s);
/** Keeps numbers whose bit is set in the row's words (uint32) of the token mask, and sets the others to -infinity. */
int mlx_serve_mask(
    mlx_array* res, const mlx_array x, const mlx_array words, const mlx_stream s);
/** Looks up embeddings of tokens: uint32 (T) -> (T, in). The matrix is quantized or, without scales, float32. */
int mlx_serve_lookup(
    mlx_array* res, const mlx_array indices, const mlx_array weight, const mlx_array scales, const
    mlx_array biases, int bits, int group, const mlx_stream s);

typedef struct mlx_serve_sequence_ {
  void* ctx;
} mlx_serve_sequence;

/** Tells whether every operation that computes `outputs` is declared in this header. */
int mlx_serve_are_own(bool* res, const mlx_vector_array outputs);
/**
 * Records the operations that compute `outputs` from the arrays `places`, which must be evaluated and become the
 * input buffers. Computes nothing; do not use `outputs` afterwards. Fails if an operation is not declared here.
 */
int mlx_serve_sequence_new(
    mlx_serve_sequence* res, const mlx_vector_array places, const mlx_vector_array outputs);
/** Runs the sequence on inputs shaped like `places`. The next run of any sequence overwrites outputs above 64 KiB. */
int mlx_serve_sequence_run(
    mlx_vector_array* res, const mlx_serve_sequence sequence, const mlx_vector_array inputs, const
    mlx_stream s);
int mlx_serve_sequence_free(mlx_serve_sequence sequence);

/**
 * Makes a distributed group of processes on this machine that communicate through shared memory: the file `path`,
 * which is created, mapped by all ranks and then removed. Waits for all ranks. Supports mlx-c's all_sum, all_gather,
 * and send and recv between neighbours, on a CPU.
 */
int mlx_serve_shared_group(mlx_distributed_group* res, const char* path, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
