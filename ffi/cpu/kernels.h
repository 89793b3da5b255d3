// The arithmetic of a step on a CPU, in float32. kernels.cpp is compiled once per instruction set, and `kernels()` is
// the best variant that this processor supports. Nothing here knows of threads or MLX.
#pragma once

namespace mlx_serve {

constexpr int BLOCK_TOKENS = 32;

/** The smallest quantization group: weights that share a scale. */
constexpr int GROUP = 32;

/** Rows of a quantized product that `arrange` converts together. */
constexpr int ARRANGED_ROWS = 16;

/** With more rows BLAS is faster, because it packs the weights first; panels excepted. */
constexpr int MANY_ROWS = 128;

/** An attention layer's parameters. */
struct Layer {
  int heads, kv_heads, dim;
  float scale, eps, cap, magnitude; // cap: 0 for none
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

/** Columns per panel, see QuantizedProduct. */
constexpr int PANEL_COLUMNS = 16;

/** The type of quantization scales and biases. */
enum class Numbers { float32, float16, bfloat16 };

/**
 * A product with a quantized matrix: weights are scale * q + bias, where q has 4 or 8 bits, lowest
 * bits first. Without biases the format is mxfp4: q is a 4-bit float, and a scale is an 8-bit
 * exponent. In panels PANEL_COLUMNS columns are interleaved by 32-bit words, scales and biases:
 * (columns / PANEL_COLUMNS, depth * bits / 32, PANEL_COLUMNS).
 */
struct QuantizedProduct {
  int rows, depth, bits, group;
  const float* x; // in the layout that `arrange` writes
  const unsigned char* w; // (columns, depth * bits / 8)
  const void* scales; // (columns, depth / group)
  const void* biases;
  Numbers numbers; // always float32 unless in panels
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

/** Consecutive tokens of a sequence; its kept inputs before and after: (taps - 1, channels). */
struct ConvolutionRow {
  int count;
  const float* x; // (count, channels), rows `x_stride` apart
  long x_stride;
  const float* before; // null at the beginning of the sequence
  float* after; // may equal `before`
  float* out; // (count, channels)
};

/**
 * A linear recurrence. Each token updates the state (value_dim, key_dim): state = decay * state +
 * beta * (value - found) x key, where found = state * key with the delta rule (`corrects`),
 * otherwise 0. The token's output is state * query.
 */
struct Scan {
  int key_dim;
  bool corrects;
  bool by_feature; // one decay per key feature instead of per head
  bool erases; // RWKV 7: subtracts (state * finds) x puts from the state
};

/** Consecutive tokens of a sequence in one head. */
struct ScanRow {
  int count;
  const float* queries;
  long query_stride;
  const float* keys;
  long key_stride;
  const float* finds; // finds and puts: rows `value_stride` apart
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
   * Converts rows of x to the layout that quantized_product reads fastest: up to ARRANGED_ROWS rows, starting at
   * `first`, a multiple of that. The member `arranged` is the number of floats per GROUP numbers of a row.
   */
  void (*arrange)(const float* const* x, int first, const QuantizedProduct&, float* arranged);
  int arranged;
  /** Computes columns from..to of a product with a quantized matrix. */
  void (*quantized_product)(const QuantizedProduct&, int from, int to);
  /** Whether quantized_product supports panels, which are faster. */
  bool takes_panels;
  /** Dequantizes columns from..to, in the order of `arrange`; not for panels: (to - from, depth) */
  void (*dequantize)(const QuantizedProduct&, int from, int to, float* out);
  /** RMSNorm and RoPE of a token's heads; writes its key and value to the KV slot unless shared. */
  void (*prepare)(const Layer&, Pools, const float* qkv, int position, long slot, float* queries);
  /** Attention of the span's tokens with the query heads of KV head `kv`. */
  void (*attend)(const Layer&, Pools, const float* queries, Span, int kv, float* attended);
  /** Scale and RoPE of a token's queries; writes its latent vector, with RoPE, to `slot`. */
  void (*prepare_latent)(
      const LatentLayer&, const float* queries, const float* latent, int position, float* slot,
      float* prepared);
  /** Latent attention of the span's tokens; pool (blocks, BLOCK_TOKENS, latent + rotary). */
  void (*attend_latent)(
      const LatentLayer&, const float* pool, const float* prepared, Span, int first_head, int heads,
      float* attended);
  void (*gate)(Gate, const float* gates, const float* ups, int count, float* out);
  /** RMSNorm; `weight` may be null. */
  void (*norm)(const float* x, const float* weight, int count, float eps, float* out);
  /** Argmax: the first index of the maximum, and the maximum, NaN if any number is NaN. */
  void (*best)(const float* x, int count, unsigned* index, float* highest);
  float (*log_sum_exp)(const float* x, int count);
  void (*softmax)(const float* x, int count, float* out);
  /** Convolves channels from..to of a sequence's tokens. */
  void (*convolve)(const Convolution&, const ConvolutionRow&, int from, int to);
  /** Passes tokens through rows from..to of the state; a row is one value feature. */
  void (*scan)(const Scan&, const ScanRow&, int from, int to);
  /** Token mask: numbers whose bit is not set become -infinity. 32 bits per word, lowest first. */
  void (*mask)(const float* x, const unsigned* words, int count, float* out);
};

/** Limits of attention: features per head, query heads per span, and features per span. */
constexpr int MOST_DIM = 1024, MOST_QUERIES = 64, MOST_NUMBERS = 8192;

/** The best variant for this processor. */
const Kernels& kernels();

} // namespace mlx_serve
