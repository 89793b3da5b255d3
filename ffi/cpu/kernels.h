// The arithmetic of a step on a CPU, in float32. kernels.cpp is compiled once per instruction set, and `kernels()` is
// the best variant that this processor supports. Nothing here knows of threads or MLX.
#pragma once

namespace mlx_serve {

constexpr int BLOCK_TOKENS = 32;

/** Number of weights that share a scale in the smallest quantization group. */
constexpr int GROUP = 32;

/** Rows of a quantized product that `arrange` converts together. */
constexpr int ARRANGED_ROWS = 16;

/** Rows above which BLAS is faster, because it packs the weights first. Does not apply to weights in panels. */
constexpr int MANY_ROWS = 128;

/** An attention layer's parameters. */
struct Layer {
  int heads, kv_heads, dim;
  float scale, eps, cap, magnitude; // cap: soft cap of scores, 0 for none
  const float* query_norm; // (dim), null for none
  const float* key_norm;
  const float* value_norm;
  const float* wavelengths; // (rotary_dims / 2)
  int rotary_dims;
  const float* sinks; // (heads), null for none
  int window; // 0 for none
  bool chunked; // attention within chunks of `window` tokens (Llama 4)
  bool shares_kv; // an earlier layer wrote keys and values: rows have only queries
};

/**
 * KV pools: keys (blocks, kv_heads, dim, BLOCK_TOKENS) and values (blocks, kv_heads, BLOCK_TOKENS, dim). Tokens are
 * the last axis of keys, so that vector instructions compute the scores of several tokens at once.
 */
struct Pools {
  float* keys;
  float* values;
};

/** Consecutive tokens of a sequence, starting at `position`, and its block table. */
struct Span {
  int count, position;
  const int* table;
};

/**
 * Latent attention (MLA): all heads share one vector per token. The whole vector is the key, its first `latent`
 * features are the value. RoPE rotates the `rotary` features after them in adjacent pairs.
 */
struct LatentLayer {
  int heads, latent, rotary;
  float scale, magnitude;
  const float* wavelengths; // (rotary / 2), null without RoPE
};

struct Product {
  int rows, depth;
  const float* x; // (rows, depth), rows `x_stride` apart
  long x_stride;
  const float* w; // (columns, depth)
  long w_stride;
  float alpha, beta;
  float* out; // (rows, columns): alpha x w' + beta out
  long out_stride;
};

/** Columns of a quantized matrix per panel, whose layout `QuantizedProduct` describes. */
constexpr int PANEL_COLUMNS = 16;

/** Type of the quantization scales and biases. */
enum class Numbers { float32, float16, bfloat16 };

/**
 * A product with a quantized matrix, whose weights are scale * q + bias. q has 4 or 8 bits, packed from the lowest
 * bits on. Without biases the format is mxfp4: q is a 4-bit float, and a scale is an 8-bit exponent. A matrix in
 * panels interleaves the words, scales and biases of PANEL_COLUMNS columns: (columns / PANEL_COLUMNS, depth * bits /
 * 32, PANEL_COLUMNS).
 */
struct QuantizedProduct {
  int rows, depth, bits, group;
  const float* x; // in the layout that `arrange` writes
  const unsigned char* w; // (columns, depth * bits / 8)
  const void* scales; // (columns, depth / group)
  const void* biases;
  Numbers numbers; // type of scales and biases; float32 unless in panels
  bool in_panels;
  float beta;
  float* out; // (rows, columns): x w' + beta out
  long out_stride;
};

enum class Gate { silu, gelu };

/** A causal depthwise convolution over the last `taps` inputs of each channel. */
struct Convolution {
  int channels, taps;
  const float* weight; // (taps, channels), the oldest input first
  const float* bias; // (channels), null for none
  bool silu;
};

/** A sequence's tokens in a convolution. `before` and `after`: kept inputs (taps - 1, channels). */
struct ConvolutionRow {
  int count;
  const float* x; // (count, channels), rows `x_stride` apart
  long x_stride;
  const float* before; // null at the beginning of the sequence
  float* after; // receives the last inputs for the next call; may equal `before`
  float* out; // (count, channels)
};

/**
 * A linear recurrence. Each token updates the state (value_dim, key_dim) to decay * state + beta * (value - found) x
 * key, and its output is state * query. `found` is state * key with the delta rule (`corrects`), otherwise 0.
 */
struct Scan {
  int key_dim;
  bool corrects;
  bool by_feature; // one decay per key feature instead of per head
  bool erases; // RWKV 7: subtracts (state * finds) x puts from the state
};

/** Consecutive tokens of a sequence in one head of a scan, and the head's state before and after these tokens. */
struct ScanRow {
  int count;
  const float* queries;
  long query_stride;
  const float* keys;
  long key_stride;
  const float* finds; // finds, puts: RWKV 7's erasing vectors (Scan::erases), `value_stride` apart per token
  const float* puts;
  const float* values;
  long value_stride;
  const float* decays;
  long decay_stride;
  const float* betas;
  long beta_stride;
  const float* before; // null at the beginning of the sequence
  float* after; // may equal `before`
  float* out;
  long out_stride;
};

struct Kernels {
  /** Computes columns from..to of a product of few rows. */
  void (*product)(const Product&, int from, int to);
  /**
   * Converts up to ARRANGED_ROWS rows of x to the layout that quantized_product reads. `first` is a multiple of
   * ARRANGED_ROWS. The field `arranged` is the number of floats that the layout takes per GROUP elements of a row.
   */
  void (*arrange)(const float* const* x, int first, const QuantizedProduct&, float* arranged);
  int arranged;
  /** Computes columns from..to of a product with a quantized matrix. */
  void (*quantized_product)(const QuantizedProduct&, int from, int to);
  /** Whether quantized_product supports panels, which are faster. */
  bool takes_panels;
  /** Dequantizes columns from..to of a matrix without panels to (to - from, depth), ordered as `arrange` stores x. */
  void (*dequantize)(const QuantizedProduct&, int from, int to, float* out);
  /** Applies RMSNorm and RoPE to a token's heads; writes key and value to the KV slot unless KV is shared. */
  void (*prepare)(const Layer&, Pools, const float* qkv, int position, long slot, float* queries);
  /** Computes attention of the span's tokens for the query heads of KV head `kv`. */
  void (*attend)(const Layer&, Pools, const float* queries, Span, int kv, float* attended);
  /** Scales and rotates (RoPE) a token's queries, and writes its rotated latent vector to `slot`. */
  void (*prepare_latent)(
      const LatentLayer&, const float* queries, const float* latent, int position, float* slot,
      float* prepared);
  /** Computes latent attention of the span's tokens; pool (blocks, BLOCK_TOKENS, latent + rotary). */
  void (*attend_latent)(
      const LatentLayer&, const float* pool, const float* prepared, Span, int first_head, int heads,
      float* attended);
  void (*gate)(Gate, const float* gates, const float* ups, int count, float* out);
  /** Computes RMSNorm; `weight` may be null. */
  void (*norm)(const float* x, const float* weight, int count, float eps, float* out);
  /** Finds the first index of the maximum, and the maximum, which is NaN if any number is NaN. */
  void (*best)(const float* x, int count, unsigned* index, float* highest);
  float (*log_sum_exp)(const float* x, int count);
  void (*softmax)(const float* x, int count, float* out);
  /** Convolves channels from..to of a sequence's tokens. */
  void (*convolve)(const Convolution&, const ConvolutionRow&, int from, int to);
  /** Runs the recurrence over all tokens for rows from..to of the state; each row belongs to one value feature. */
  void (*scan)(const Scan&, const ScanRow&, int from, int to);
  /** Sets numbers whose bit in the token mask is 0 to -infinity. Words have 32 bits, lowest first. */
  void (*mask)(const float* x, const unsigned* words, int count, float* out);
};

/** Limits of one call of `attend`: features per head, queries (heads times tokens), and features of all queries. */
constexpr int MOST_DIM = 1024, MOST_QUERIES = 64, MOST_NUMBERS = 8192;

/** Returns the best variant for this processor. */
const Kernels& kernels();

} // namespace mlx_serve
