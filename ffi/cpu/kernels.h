// The arithmetic of a step on a CPU, in float32. kernels.cpp is compiled once for each kind of processor, and
// `kernels()` is the best of them that this one runs. Nothing here knows of threads or of MLX.
#pragma once

namespace mlx_serve {

constexpr int BLOCK_TOKENS = 32;

/** The fewest weights that share a scale. */
constexpr int GROUP = 32;

/** So many rows of a quantized product are arranged together. */
constexpr int ARRANGED_ROWS = 16;

/** Products of more rows than this are faster by BLAS, which packs the weights first; but for those with panels. */
constexpr int MANY_ROWS = 128;

/** What a layer does to queries and keys, and to their scores. */
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
  bool chunked; // the window begins at a multiple of its size
  bool shares_kv; // keys and values are another layer's: there are only queries
};

/**
 * Blocks of keys (blocks, kv_heads, dim, BLOCK_TOKENS) and values (blocks, kv_heads, BLOCK_TOKENS, dim).
 * In a block of keys the tokens are the last axis, so that the scores of several are computed at once.
 */
struct Pools {
  float* keys;
  float* values;
};

/** Consecutive tokens of a sequence, from `position` on. */
struct Span {
  int count, position;
  const int* table;
};

/**
 * Attention whose heads share one vector a token: all of it is the key, its first `latent` features are the value.
 * The `rotary` features behind them are rotated in pairs of neighbours.
 */
struct LatentLayer {
  int heads, latent, rotary;
  float scale, magnitude;
  const float* wavelengths; // (rotary / 2), null where nothing is rotated
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

/** So many columns are a panel. */
constexpr int PANEL_COLUMNS = 16;

/** What scales and biases are. */
enum class Numbers { float32, float16, bfloat16 };

/**
 * A product with a quantized matrix: weights are scale * q + bias, q has 4 or 8 bits, the lowest first. Without biases it
 * is mxfp4: q is a float of 4 bits, and a scale is the 8 bits of an exponent. In panels a word of 32 bits, a scale or a bias
 * of a column is next to those of the panel's other columns: (columns / PANEL_COLUMNS, depth * bits / 32, PANEL_COLUMNS).
 */
struct QuantizedProduct {
  int rows, depth, bits, group;
  const float* x; // as `arrange` leaves it
  const unsigned char* w; // (columns, depth * bits / 8)
  const void* scales; // (columns, depth / group)
  const void* biases;
  Numbers numbers; // float32 but in panels
  bool in_panels;
  float beta;
  float* out; // (rows, columns): x w' + beta out
  long out_stride;
};

enum class Gate { silu, gelu };

/** Each channel by itself, over its last `taps` inputs. */
struct Convolution {
  int channels, taps;
  const float* weight; // (taps, channels), the oldest input first
  const float* bias; // (channels), null for none
  bool silu;
};

/** Consecutive tokens of a sequence, and its last inputs before and after them: (taps - 1, channels). */
struct ConvolutionRow {
  int count;
  const float* x; // (count, channels), rows `x_stride` apart
  long x_stride;
  const float* before; // null where the sequence begins
  float* after; // may be `before`
  float* out; // (count, channels)
};

/**
 * A state (value_dim, key_dim) that each token changes: state = decay * state + beta * (value - found) x key, where
 * found = state * key with the delta rule (`corrects`) and 0 without. Its output is state * query.
 */
struct Scan {
  int key_dim;
  bool corrects;
  bool by_feature; // a decay for each feature of the keys
  bool erases; // what is found with `finds` is taken away along `puts`
};

/** Consecutive tokens of a sequence in one head. */
struct ScanRow {
  int count;
  const float* queries;
  long query_stride;
  const float* keys;
  long key_stride;
  const float* finds; // as far apart as values
  const float* puts;
  const float* values;
  long value_stride;
  const float* decays;
  long decay_stride;
  const float* betas;
  long beta_stride;
  const float* before; // null where the sequence begins
  float* after; // may be `before`
  float* out;
  long out_stride;
};

struct Kernels {
  /** Some columns of a product of few rows. */
  void (*product)(const Product&, int from, int to);
  /**
   * Some of so many rows as quantized weights are fastest to multiply with, `arranged` numbers for each GROUP of a row: the
   * ARRANGED_ROWS from a multiple of them on, or as many as there are.
   */
  void (*arrange)(const float* const* x, int first, const QuantizedProduct&, float* arranged);
  int arranged;
  /** Some columns of a product. */
  void (*quantized_product)(const QuantizedProduct&, int from, int to);
  /** Whether it takes matrices in panels: they are multiplied faster than others. */
  bool takes_panels;
  /** Some columns' weights in the order of `arrange`, of a matrix that is not in panels: (to - from, depth) */
  void (*dequantize)(const QuantizedProduct&, int from, int to, float* out);
  /** Norms and rotates one token's heads, and writes its key and value to their slot, unless they are shared. */
  void (*prepare)(const Layer&, Pools, const float* qkv, int position, long slot, float* queries);
  /** Attends with the query heads of KV head `kv` of the span's tokens. Rows of `heads`. */
  void (*attend)(const Layer&, Pools, const float* queries, Span, int kv, float* attended);
  /** Rotates and scales one token's queries, and writes its latent vector to `slot`, rotated. */
  void (*prepare_latent)(
      const LatentLayer&, const float* queries, const float* latent, int position, float* slot,
      float* prepared);
  /** Attends with some heads of the span's tokens. Rows of `heads`; the pool (blocks, BLOCK_TOKENS, latent + rotary). */
  void (*attend_latent)(
      const LatentLayer&, const float* pool, const float* prepared, Span, int first_head, int heads,
      float* attended);
  void (*gate)(Gate, const float* gates, const float* ups, int count, float* out);
  /** weight: null for none. */
  void (*norm)(const float* x, const float* weight, int count, float eps, float* out);
  /** The index of the first maximum, and the maximum, which is NaN where one of them is. */
  void (*best)(const float* x, int count, unsigned* index, float* highest);
  float (*log_sum_exp)(const float* x, int count);
  void (*softmax)(const float* x, int count, float* out);
  /** Some channels of a row. */
  void (*convolve)(const Convolution&, const ConvolutionRow&, int from, int to);
  /** Some of the state's rows, with one element of the values each. */
  void (*scan)(const Scan&, const ScanRow&, int from, int to);
  /** Minus infinity except where a bit is set: 32 of them to a word, the lowest first. */
  void (*mask)(const float* x, const unsigned* words, int count, float* out);
};

/** Limits of attention: elements of a head, queries of a span, elements of those. */
constexpr int MOST_DIM = 1024, MOST_QUERIES = 64, MOST_NUMBERS = 8192;

/** The best for this processor. */
const Kernels& kernels();

} // namespace mlx_serve
