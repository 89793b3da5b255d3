// Compiled as VARIANT with its processor's flags. Vectors are the compiler's own, LANES floats each.
// Nothing of the standard library is used: the linker keeps one copy of an inline function, and it might
// be one for another processor.
#include "kernels.h"

extern "C" float sinf(float);
extern "C" float cosf(float);
extern "C" float logf(float);

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE inline __attribute__((always_inline))

namespace mlx_serve {
namespace VARIANT {

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int Ints __attribute__((vector_size(LANES * 4)));

static INLINE Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

static INLINE void store(float* to, Floats x) {
  __builtin_memcpy(to, &x, sizeof x);
}

/** The first `count` of them, the others `rest`. */
static INLINE Floats load_some(const float* from, int count, float rest) {
  float some[LANES];
  for (int i = 0; i < LANES; i++) some[i] = i < count ? from[i] : rest;
  return load(some);
}

static INLINE void store_some(float* to, Floats x, int count) {
  float some[LANES];
  store(some, x);
  for (int i = 0; i < count; i++) to[i] = some[i];
}

static INLINE Floats all(float x) {
  return x - Floats{};
}

static INLINE Floats choose(Ints condition, Floats yes, Floats no) {
  return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

static INLINE Floats larger(Floats a, Floats b) {
  return choose(a > b, a, b);
}

/** Lanes brought together in pairs, then pairs of pairs. */
template <class Join>
static INLINE float together(Floats x, Join join) {
#if LANES == 16
  typedef float Half __attribute__((vector_size(32)));
  const Half eight = join(
      __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
#elif LANES == 8
  const Floats eight = x;
#endif
#if LANES >= 8
  typedef float Quarter __attribute__((vector_size(16)));
  const Quarter four = join(
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3),
      __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const Floats four = x;
#endif
  const auto two = join(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return join(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

struct Plus {
  template <class V>
  INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

struct Larger {
  template <class V>
  INLINE V operator()(V a, V b) const {
    const auto first = a > b;
    typedef decltype(first) Bits;
    return (V)((first & (Bits)a) | (~first & (Bits)b));
  }
};

static INLINE float sum(Floats x) {
  return together(x, Plus{});
}

static INLINE float highest(Floats x) {
  return together(x, Larger{});
}

/** e^x to 2 units in the last place: 2^n e^r, |r| < ln(2) / 2. Below -87 it is 0, for tiny numbers are slow. */
static INLINE Floats exponential(Floats x) {
  const Ints nothing = x < -87.0f;
  x = choose(nothing, Floats{}, choose(x > 88.0f, all(88.0f), x));
  const Floats shifted = x * 1.44269504f + 12582912.0f; // The sum has no room for a fraction.
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints power = ((Ints)shifted - 0x4b400000 + 127) << 23;
  return choose(nothing, Floats{}, p * (Floats)power);
}

static INLINE Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exponential(-x));
}

static INLINE Floats tanh(Floats x) {
  const Floats s = x * x;
  Floats p = s * (-1382.0f / 155925.0f) + 62.0f / 2835.0f;
  p = p * s - 17.0f / 315.0f;
  p = p * s + 2.0f / 15.0f;
  p = p * s - 1.0f / 3.0f;
  const Floats near = x + x * s * p;
  const Floats far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return choose(s < 0.09f, near, far);
}

// ---- Products of few rows: each row of w is read from memory once, and used for all rows of x

template <int... I>
struct Places {};

template <int N, int... I>
struct Upto : Upto<N - 1, N - 1, I...> {};

template <int... I>
struct Upto<0, I...> {
  typedef Places<I...> all;
};

/**
 * Of every SIZE lanes, a's first half and b's, added to their second halves. Done for all powers of two
 * it adds up the lanes of as many vectors as there are lanes.
 */
template <int SIZE, int... I>
static INLINE Floats folded(Floats a, Floats b, Places<I...>) {
  // Lanes of b are counted on from those of a.
  return __builtin_shufflevector(
             a, b, (I % SIZE < SIZE / 2 ? I : I - SIZE / 2 + LANES)...) +
      __builtin_shufflevector(a, b, (I % SIZE < SIZE / 2 ? I + SIZE / 2 : I + LANES)...);
}

template <int SIZE>
static INLINE Floats fold(const Floats* x) {
  if constexpr (SIZE == 1) {
    return *x;
  } else {
    Floats half[SIZE / 2];
    for (int i = 0; i < SIZE / 2; i++) {
      half[i] = folded<SIZE>(x[i], x[i + SIZE / 2], typename Upto<LANES>::all{});
    }
    return fold<SIZE / 2>(half);
  }
}

/** x[i] added up, for each i of as many as there are lanes. */
static INLINE Floats sums(const Floats* x) {
  return fold<LANES>(x);
}

constexpr int COLUMNS = 4;

#if defined(__AVX512F__)
constexpr int ROWS = 6;
#elif defined(__aarch64__)
constexpr int ROWS = 4;
#else
constexpr int ROWS = 3;
#endif

/** Where a tile stands: from..to of the depth, of which what comes before is in the output. */
struct Slice {
  int row, column, from, to;
};

/** A tile of M rows of x and N of w: as many sums as there are registers for. */
template <int M, int N>
static INLINE void tile(const Product& p, Slice at) {
  const float* x = p.x + at.row * p.x_stride;
  const float* w = p.w + at.column * p.w_stride;
  Floats parts[M * N + LANES - 1] = {};
  int i = at.from;
  for (; i + LANES <= at.to; i += LANES) {
    Floats xs[M];
    for (int m = 0; m < M; m++) xs[m] = load(x + m * p.x_stride + i);
    for (int n = 0; n < N; n++) {
      const Floats weights = load(w + n * p.w_stride + i);
      // The rows that come next: the processor would only notice when it gets there.
      __builtin_prefetch(w + (n + N) * p.w_stride + i, 0, 2);
      for (int m = 0; m < M; m++) parts[m * N + n] += weights * xs[m];
    }
  }
  float whole[M * N + LANES - 1];
  for (int k = 0; k < M * N; k += LANES) store(whole + k, sums(parts + k));
  for (; i < at.to; i++) {
    for (int m = 0; m < M; m++) {
      for (int n = 0; n < N; n++) whole[m * N + n] += x[m * p.x_stride + i] * w[n * p.w_stride + i];
    }
  }
  const float before = at.from == 0 ? p.beta : 1;
  for (int m = 0; m < M; m++) {
    typedef float Some __attribute__((vector_size(N * 4)));
    float* out = p.out + (at.row + m) * p.out_stride + at.column;
    Some sum, old;
    __builtin_memcpy(&sum, whole + m * N, sizeof sum);
    sum *= p.alpha;
    if (before != 0) {
      __builtin_memcpy(&old, out, sizeof old);
      sum += old * before;
    }
    __builtin_memcpy(out, &sum, sizeof sum);
  }
}

template <int M>
static INLINE void tiles(const Product& p, Slice at, int columns) {
  for (; columns >= COLUMNS; columns -= COLUMNS, at.column += COLUMNS) tile<M, COLUMNS>(p, at);
  for (; columns > 0; columns--, at.column++) tile<M, 1>(p, at);
}

/** What is used again and again stays in the nearest cache: a few rows of w, as deep as there is room. */
constexpr int PANEL = 3 * COLUMNS, DEPTH = 640;

static void product(const Product& p, int from, int to) {
  const int slices = p.rows > ROWS ? (p.depth + DEPTH - 1) / DEPTH : 1;
  const int depth = ((p.depth + slices - 1) / slices + LANES - 1) / LANES * LANES;
  for (int column = from; column < to; column += PANEL) {
    const int columns = to - column < PANEL ? to - column : PANEL;
    for (int start = 0; start < p.depth; start += depth) {
      const int end = start + depth < p.depth ? start + depth : p.depth;
      int row = 0;
      for (; row + ROWS <= p.rows; row += ROWS) tiles<ROWS>(p, {row, column, start, end}, columns);
      switch (p.rows - row) {
        case 5: tiles<5>(p, {row, column, start, end}, columns); break;
        case 4: tiles<4>(p, {row, column, start, end}, columns); break;
        case 3: tiles<3>(p, {row, column, start, end}, columns); break;
        case 2: tiles<2>(p, {row, column, start, end}, columns); break;
        case 1: tiles<1>(p, {row, column, start, end}, columns); break;
      }
    }
  }
}

// ---- Products with packed weights: these are unpacked in registers, or for more rows into the nearest cache

/** Weights of a group's scale, at least. */
constexpr int GROUP = 32;

/** Bytes of the matrix that are asked for before they are needed. */
constexpr int AHEAD = 4096;

/** The weights of a group: scale * q + bias. */
template <int BITS>
struct Group {
  Floats scale, bias;

  INLINE Group(float scale, float bias) : scale(all(scale)), bias(all(bias)) {}

  /** As many as there are lanes. */
  INLINE Floats weights(const unsigned char* from) const {
    return quants(from) * scale + bias;
  }

  static INLINE Floats quants(const unsigned char* from) {
#if LANES == 16
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif LANES == 8
    if constexpr (BITS == 8) {
      return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)));
    } else {
      typedef unsigned Words __attribute__((vector_size(LANES * 4)));
      unsigned word;
      __builtin_memcpy(&word, from, sizeof word);
      const Words nibbles = (word - Words{}) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15;
      return __builtin_convertvector((Ints)nibbles, Floats);
    }
#else
    if constexpr (BITS == 8) {
      return Floats{(float)from[0], (float)from[1], (float)from[2], (float)from[3]};
    } else {
      unsigned short half;
      __builtin_memcpy(&half, from, sizeof half);
      const Ints nibbles = half & Ints{0xf, 0xf0, 0xf00, 0xf000};
      return __builtin_convertvector(nibbles, Floats) * Floats{1, 1 / 16.0f, 1 / 256.0f, 1 / 4096.0f};
    }
#endif
  }
};

#if LANES == 16
/** There are no more weights than lanes: each takes the one that its lowest 4 bits name. */
template <>
struct Group<4> {
  Floats known;

  INLINE Group(float scale, float bias)
      : known(Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * scale + bias) {}

  INLINE Floats weights(const unsigned char* from) const {
    long long words;
    __builtin_memcpy(&words, from, sizeof words);
    const __m512i shifts =
        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(words), shifts), known);
  }
};
#endif

/** With 16 lanes two words are unpacked at once, their nibbles in turns. */
static void arrange(const float* x, int depth, int bits, float* out) {
  if (LANES < 16 || bits == 8) {
    __builtin_memcpy(out, x, depth * sizeof(float));
    return;
  }
  for (int i = 0; i < depth; i += 16) {
    for (int j = 0; j < 8; j++) {
      out[i + 2 * j] = x[i + j];
      out[i + 2 * j + 1] = x[i + j + 8];
    }
  }
}

template <int BITS, int M, int N>
static INLINE void packed_tile(const PackedProduct& p, int column) {
  const long row_bytes = (long)p.depth * BITS / 8, groups = p.depth / p.group;
  const float* x = p.x;
  const unsigned char* w = p.w + column * row_bytes;
  const float* scales = p.scales + column * groups;
  const float* biases = p.biases + column * groups;
  const int shift = __builtin_ctz(p.group);
  Floats parts[M * N + LANES - 1] = {};
  for (long i = 0; i < p.depth; i += GROUP, w += GROUP * BITS / 8) {
    const long group = i >> shift;
    for (int n = 0; n < N; n++) {
      const unsigned char* packed = w + n * row_bytes;
      const Group<BITS> own(scales[n * groups + group], biases[n * groups + group]);
      __builtin_prefetch(packed + AHEAD, 0, 2);
      for (int j = 0; j < GROUP; j += LANES) {
        const Floats weights = own.weights(packed + j * BITS / 8);
        for (int m = 0; m < M; m++) parts[m * N + n] += weights * load(x + (long)m * p.depth + i + j);
      }
    }
  }
  float whole[M * N + LANES - 1];
  for (int k = 0; k < M * N; k += LANES) store(whole + k, sums(parts + k));
  for (int m = 0; m < M; m++) {
    float* out = p.out + m * p.out_stride + column;
    for (int n = 0; n < N; n++) {
      out[n] = p.beta == 0 ? whole[m * N + n] : whole[m * N + n] + p.beta * out[n];
    }
  }
}

/** Not inlined: with all of them in one function the addresses find no registers. */
template <int BITS, int M>
static __attribute__((noinline)) void packed_tiles(const PackedProduct& p, int from, int to) {
  for (; from + COLUMNS <= to; from += COLUMNS) packed_tile<BITS, M, COLUMNS>(p, from);
  for (; from < to; from++) packed_tile<BITS, M, 1>(p, from);
}

/** start..end of the depth, `stride` numbers to a column. */
template <int BITS>
static INLINE void unpack_some(
    const PackedProduct& p, int from, int to, int start, int end, float* out, long stride) {
  const long row_bytes = (long)p.depth * BITS / 8, groups = p.depth / p.group;
  const int shift = __builtin_ctz(p.group);
  for (int column = from; column < to; column++, out += stride) {
    for (unsigned i = start; i < (unsigned)end; i += GROUP) {
      const unsigned char* packed = p.w + column * row_bytes + i * BITS / 8;
      const long group = column * groups + (i >> shift);
      const Group<BITS> own(p.scales[group], p.biases[group]);
      __builtin_prefetch(packed + AHEAD, 0, 2);
      for (int j = 0; j < GROUP; j += LANES) {
        store(out + i - start + j, own.weights(packed + j * BITS / 8));
      }
    }
  }
}

template <int BITS>
static INLINE void packed_columns(const PackedProduct& p, int from, int to) {
  switch (p.rows) {
    case 1: return packed_tiles<BITS, 1>(p, from, to);
    case 2: return packed_tiles<BITS, 2>(p, from, to);
    case 3: return packed_tiles<BITS, 3>(p, from, to);
#if LANES == 16
    case 4: return packed_tiles<BITS, 4>(p, from, to);
    case 5: return packed_tiles<BITS, 5>(p, from, to);
    case 6: return packed_tiles<BITS, 6>(p, from, to);
#endif
  }
  float panel[PANEL * DEPTH] __attribute__((aligned(64)));
  const int slices = (p.depth + DEPTH - 1) / DEPTH;
  const int depth = ((p.depth + slices - 1) / slices + GROUP - 1) / GROUP * GROUP;
  for (int column = from; column < to; column += PANEL) {
    const int end = column + PANEL < to ? column + PANEL : to;
    for (int start = 0; start < p.depth; start += depth) {
      const int some = start + depth < p.depth ? depth : p.depth - start;
      unpack_some<BITS>(p, column, end, start, start + some, panel, some);
      const float before = start == 0 ? p.beta : 1;
      const Product part = {p.rows, some, p.x + start,    p.depth,     panel, some,
                            1,      before, p.out + column, p.out_stride};
      product(part, 0, end - column);
    }
  }
}

static void packed_product(const PackedProduct& p, int from, int to) {
  if (p.bits == 4) packed_columns<4>(p, from, to);
  else packed_columns<8>(p, from, to);
}

static void unpack(const PackedProduct& p, int from, int to, float* out) {
  if (p.bits == 4) unpack_some<4>(p, from, to, 0, p.depth, out, p.depth);
  else unpack_some<8>(p, from, to, 0, p.depth, out, p.depth);
}

// ---- Attention

static void norm(const float* x, const float* weight, int count, float eps, float* out) {
  Floats squares = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES) squares += load(x + i) * load(x + i);
  float whole = sum(squares);
  for (int j = i; j < count; j++) whole += x[j] * x[j];
  const float scale = 1.0f / __builtin_sqrtf(whole / count + eps);
  for (int j = 0; j < count; j++) out[j] = weight ? x[j] * scale * weight[j] : x[j] * scale;
}

static INLINE void turn(const Layer& layer, const float* sines, const float* cosines, float* head) {
  const int half = layer.turned / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i] * layer.magnitude, b = head[i + half] * layer.magnitude;
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = a * sines[i] + b * cosines[i];
  }
}

static void prepare(
    const Layer& layer, Pools pools, const float* qkv, int position, long slot, float* queries) {
  const int dim = layer.dim;
  float sines[MOST_DIM / 2], cosines[MOST_DIM / 2], head[MOST_DIM];
  for (int i = 0; i < layer.turned / 2; i++) {
    const float angle = position / layer.wavelengths[i];
    sines[i] = sinf(angle);
    cosines[i] = cosf(angle);
  }
  for (int i = 0; i < layer.heads + layer.kv_heads; i++) {
    const bool is_query = i < layer.heads;
    const float* weight = is_query ? layer.query_norm : layer.key_norm;
    float* to = is_query ? queries + (long)i * dim : head;
    if (weight) norm(qkv + (long)i * dim, weight, dim, layer.eps, to);
    else __builtin_memcpy(to, qkv + (long)i * dim, dim * sizeof(float));
    if (layer.turned > 0) turn(layer, sines, cosines, to);
    if (is_query) continue;
    const long block = slot / BLOCK_TOKENS * layer.kv_heads + i - layer.heads;
    float* keys = pools.keys + block * dim * BLOCK_TOKENS + slot % BLOCK_TOKENS;
    for (int d = 0; d < dim; d++) keys[(long)d * BLOCK_TOKENS] = head[d];
  }
  for (int kv = 0; kv < layer.kv_heads; kv++) {
    const long block = slot / BLOCK_TOKENS * layer.kv_heads + kv;
    float* value = pools.values + (block * BLOCK_TOKENS + slot % BLOCK_TOKENS) * dim;
    const float* from = qkv + (long)(layer.heads + layer.kv_heads + kv) * dim;
    __builtin_memcpy(value, from, dim * sizeof(float));
  }
}

/** Scores of Q queries with all keys of a block: (Q, BLOCK_TOKENS). */
template <int Q>
static INLINE void score(const float* queries, const float* keys, int dim, float* scores) {
  for (int t = 0; t < BLOCK_TOKENS; t += 2 * LANES) {
    Floats low[Q] = {}, high[Q] = {};
    for (int d = 0; d < dim; d++) {
      const Floats a = load(keys + (long)d * BLOCK_TOKENS + t);
      const Floats b = load(keys + (long)d * BLOCK_TOKENS + t + LANES);
      for (int q = 0; q < Q; q++) {
        low[q] += queries[q * dim + d] * a;
        high[q] += queries[q * dim + d] * b;
      }
    }
    for (int q = 0; q < Q; q++) {
      store(scores + q * BLOCK_TOKENS + t, low[q]);
      store(scores + q * BLOCK_TOKENS + t + LANES, high[q]);
    }
  }
}

/** Adds values by their weights, from one token of the block to another: (Q, dim). */
template <int Q>
static INLINE void
weigh(const float* weights, const float* values, int from, int to, int dim, float* sums) {
  int d = 0;
  for (; d + 2 * LANES <= dim; d += 2 * LANES) {
    Floats low[Q], high[Q];
    for (int q = 0; q < Q; q++) {
      low[q] = load(sums + q * dim + d);
      high[q] = load(sums + q * dim + d + LANES);
    }
    for (int t = from; t < to; t++) {
      const Floats a = load(values + (long)t * dim + d);
      const Floats b = load(values + (long)t * dim + d + LANES);
      for (int q = 0; q < Q; q++) {
        low[q] += weights[q * BLOCK_TOKENS + t] * a;
        high[q] += weights[q * BLOCK_TOKENS + t] * b;
      }
    }
    for (int q = 0; q < Q; q++) {
      store(sums + q * dim + d, low[q]);
      store(sums + q * dim + d + LANES, high[q]);
    }
  }
  for (int t = from; t < to; t++) {
    for (int q = 0; q < Q; q++) {
      const float weight = weights[q * BLOCK_TOKENS + t];
      for (int i = d; i < dim; i++) sums[q * dim + i] += weight * values[(long)t * dim + i];
    }
  }
}

/** One query's softmax so far: the sum of weights that are relative to the highest score. */
struct Softmax {
  float top, total;
};

/**
 * Turns scores into weights, those outside from..to into 0; by how much earlier sums have to shrink. A
 * score that is no number makes weights that are none.
 */
static INLINE float soften(Softmax& soft, float* scores, int from, int to, float cap) {
  Ints token;
  for (int i = 0; i < LANES; i++) token[i] = i;
  const auto seen = [&](int t) { return (token + t >= from) & (token + t < to); };
  Floats most = all(soft.top);
  for (int t = 0; t < BLOCK_TOKENS; t += LANES) {
    Floats x = load(scores + t);
    if (cap > 0) {
      x = cap * tanh(x / cap);
      store(scores + t, x);
    }
    most = choose(seen(t), larger(x, most), most);
  }
  const float before = soft.top;
  soft.top = highest(most);
  Floats added = {};
  for (int t = 0; t < BLOCK_TOKENS; t += LANES) {
    const Floats x = choose(seen(t), exponential(load(scores + t) - soft.top), Floats{});
    store(scores + t, x);
    added += x;
  }
  const float shrink = before == soft.top ? 1 : exponential(all(before - soft.top))[0];
  soft.total = soft.total * shrink + sum(added);
  return shrink;
}

static void attend(
    const Layer& layer, Pools pools, const float* queries, Span span, int kv, float* attended) {
  const int dim = layer.dim, sharers = layer.heads / layer.kv_heads;
  const int count = span.count * sharers;
  const auto at = [&](int q) {
    return ((long)(q / sharers) * layer.heads + kv * sharers + q % sharers) * dim;
  };
  float scaled[MOST_NUMBERS], sums[MOST_NUMBERS], weights[MOST_QUERIES * BLOCK_TOKENS];
  Softmax softs[MOST_QUERIES];
  for (int q = 0; q < count; q++) {
    const float* query = queries + at(q);
    for (int d = 0; d < dim; d++) {
      scaled[q * dim + d] = query[d] * layer.scale;
      sums[q * dim + d] = 0;
    }
    softs[q] = {-__builtin_inff(), 0};
  }
  const auto oldest = [&](int position) {
    return layer.window > 0 && position >= layer.window ? position - layer.window + 1 : 0;
  };
  const int last = span.position + span.count - 1;
  for (int block = oldest(span.position) / BLOCK_TOKENS; block <= last / BLOCK_TOKENS; block++) {
    const long place = ((long)span.table[block] * layer.kv_heads + kv) * BLOCK_TOKENS * dim;
    const float* keys = pools.keys + place;
    const float* values = pools.values + place;
    const int start = block * BLOCK_TOKENS;
    for (int q = 0; q < count; q += 4) {
      const int some = count - q < 4 ? count - q : 4;
      float* own = weights + q * BLOCK_TOKENS;
      switch (some) {
        case 4: score<4>(scaled + q * dim, keys, dim, own); break;
        case 3: score<3>(scaled + q * dim, keys, dim, own); break;
        case 2: score<2>(scaled + q * dim, keys, dim, own); break;
        case 1: score<1>(scaled + q * dim, keys, dim, own); break;
      }
      int first = BLOCK_TOKENS, end = 0;
      for (int i = q; i < q + some; i++) {
        const int position = span.position + i / sharers;
        const int from = oldest(position) > start ? oldest(position) - start : 0;
        const int to = position - start < BLOCK_TOKENS ? position - start + 1 : BLOCK_TOKENS;
        if (from >= to) {
          for (int t = 0; t < BLOCK_TOKENS; t++) weights[i * BLOCK_TOKENS + t] = 0;
          continue;
        }
        if (from < first) first = from;
        if (to > end) end = to;
        const float shrink = soften(softs[i], weights + i * BLOCK_TOKENS, from, to, layer.cap);
        if (shrink != 1) {
          for (int d = 0; d < dim; d++) sums[i * dim + d] *= shrink;
        }
      }
      switch (some) {
        case 4: weigh<4>(own, values, first, end, dim, sums + q * dim); break;
        case 3: weigh<3>(own, values, first, end, dim, sums + q * dim); break;
        case 2: weigh<2>(own, values, first, end, dim, sums + q * dim); break;
        case 1: weigh<1>(own, values, first, end, dim, sums + q * dim); break;
      }
    }
  }
  for (int q = 0; q < count; q++) {
    float scale = 1 / softs[q].total;
    if (layer.sinks) {
      const float sink = layer.sinks[kv * sharers + q % sharers], top = softs[q].top;
      const float most = sink > top ? sink : top;
      const float shrink = exponential(all(top - most))[0];
      scale = shrink / (softs[q].total * shrink + exponential(all(sink - most))[0]);
    }
    float* to = attended + at(q);
    for (int d = 0; d < dim; d++) to[d] = sums[q * dim + d] * scale;
  }
}

// ---- The rest of a layer, and of a draw

static INLINE Floats gated(Gate kind, Floats x, Floats up) {
  // GELU, approximated by tanh: (1 + tanh(u)) / 2 is sigmoid(2u).
  const Floats inner = kind == Gate::silu ? x : 1.5957691216f * (x + 0.044715f * x * x * x);
  return x * sigmoid(inner) * up;
}

static void gate(Gate kind, const float* gates, const float* ups, int count, float* out) {
  int i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, gated(kind, load(gates + i), load(ups + i)));
  if (i == count) return;
  const Floats x = load_some(gates + i, count - i, 0);
  store_some(out + i, gated(kind, x, load_some(ups + i, count - i, 0)), count - i);
}

static void best(const float* x, int count, unsigned* index, float* most) {
  Floats found = all(-__builtin_inff());
  Ints none = {};
  const auto look = [&](Floats values) {
    found = larger(values, found);
    none |= values != values;
  };
  int i = 0;
  for (; i + LANES <= count; i += LANES) look(load(x + i));
  if (i < count) look(load_some(x + i, count - i, x[i]));
  const float top = highest(found);
  bool any = false;
  for (int lane = 0; lane < LANES; lane++) any |= none[lane] != 0;
  *most = any ? __builtin_nanf("") : top;
  unsigned at = 0;
  while (!any && x[at] != top) at++;
  *index = at;
}

static float log_sum_exp(const float* x, int count) {
  unsigned index;
  float top;
  best(x, count, &index, &top);
  // Of infinities alone it is the infinity; what is no number stays so.
  if (!(top - top == 0)) return top;
  Floats added = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES) added += exponential(load(x + i) - top);
  float whole = sum(added);
  for (; i < count; i++) whole += exponential(all(x[i] - top))[0];
  return top + logf(whole);
}

static void softmax(const float* x, int count, float* out) {
  unsigned index;
  float top;
  best(x, count, &index, &top);
  Floats added = {};
  float whole = 0;
  int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Floats part = exponential(load(x + i) - top);
    store(out + i, part);
    added += part;
  }
  for (; i < count; i++) whole += out[i] = exponential(all(x[i] - top))[0];
  // What is no number, or infinite, makes all of them none.
  const float scale = top - top == 0 ? 1 / (whole + sum(added)) : __builtin_nanf("");
  for (i = 0; i < count; i++) out[i] *= scale;
}

static void mask(const float* x, const unsigned* words, int count, float* out) {
  for (int from = 0; from < count; from += 32) {
    const unsigned word = words[from / 32];
    const int to = count - from < 32 ? count - from : 32;
    for (int i = 0; i < to; i++) out[from + i] = word >> i & 1 ? x[from + i] : -__builtin_inff();
  }
}

extern const Kernels table = {product, arrange, packed_product, unpack,  prepare, attend, gate,
                              norm,    best,    log_sum_exp,    softmax, mask};

} // namespace VARIANT
} // namespace mlx_serve
