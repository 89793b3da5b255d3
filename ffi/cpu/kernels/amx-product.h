// Products of more rows with quantized weights, by AMX: it multiplies tiles of bfloat16 and sums in float32. A weight before it
// is scaled has few enough bits for a bfloat16, and a float32 of x is the sum of three. So nothing is rounded that is not
// with float32; the sums of each group are scaled in vectors. Part of kernels.cpp.
#pragma once

#include "quantized-product.h"

namespace mlx_serve {
namespace VARIANT {

/** A tile of sums is 16 columns by 16 rows of x; one of an operand is 16 of them by GROUP of the depth. */
constexpr int TILE = 16, TILE_NUMBERS = TILE * GROUP;

/** A float32 has 24 bits, a bfloat16 has 8. */
constexpr int PARTS = 3;

/** Of GROUP numbers of a row of x: their parts as bfloat16, and their sum. */
constexpr int TILED = PARTS * GROUP / 2 + 1;

/** With fewer rows it takes longer to unpack the weights than tiles save. */
constexpr int MOST_UNTILED = 12;

/** The rows of x that share tiles: `count` from `first` on. For each group there are tiles of the parts, then the sums. */
struct Block {
  int first, count;
  const float* x;

  const float* at(int group) const {
    return x + (long)group * TILED * count;
  }
};

static INLINE Block block_of(const float* arranged, int row, int rows, int depth) {
  const int first = row / TILE * TILE;
  const int count = rows - first < TILE ? rows - first : TILE;
  return {first, count, arranged + (long)first * (depth / GROUP) * TILED};
}

/** The numbers of a group that are neighbours in a tile: in the order in which weights are unpacked. */
struct Pairs {
  Floats first, second;

  Pairs(const float* x, int bits) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i nibbles = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i order = bits == 4 ? nibbles : _mm512_add_epi32(lanes, lanes);
    const __m512i next = _mm512_add_epi32(order, _mm512_set1_epi32(bits == 4 ? 4 : 1));
    const __m512 low = (__m512)load(x), high = (__m512)load(x + LANES);
    first = (Floats)_mm512_permutex2var_ps(low, order, high);
    second = (Floats)_mm512_permutex2var_ps(low, next, high);
  }

  /** The upper half of each, which is taken away. */
  INLINE __m512 take() {
    const __m512i upper = _mm512_set1_epi32(0xffff0000);
    const __m512i a = _mm512_and_si512((__m512i)first, upper), b = _mm512_and_si512((__m512i)second, upper);
    first -= (Floats)a;
    second -= (Floats)b;
    return (__m512)_mm512_or_si512(_mm512_srli_epi32(a, 16), b);
  }
};

/** Lane i of x[j] becomes lane j of x[i]. */
static INLINE void transpose(__m512* x) {
  __m512 pairs[TILE], fours[TILE];
  for (int i = 0; i < TILE; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  const auto low = [](__m512 a, __m512 b) { return (__m512)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); };
  const auto high = [](__m512 a, __m512 b) { return (__m512)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); };
  for (int i = 0; i < TILE; i += 4) {
    fours[i] = low(pairs[i], pairs[i + 2]);
    fours[i + 1] = high(pairs[i], pairs[i + 2]);
    fours[i + 2] = low(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = high(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512 a = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x44);
    const __m512 d = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xee);
    x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    x[i + 4] = _mm512_shuffle_f32x4(a, c, 0xdd);
    x[i + 8] = _mm512_shuffle_f32x4(b, d, 0x88);
    x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}

/** Rows as the second operand of tiles: pairs of the depth, next to those of the other rows. */
static void arrange_tiles(const float* const* x, int first, const QuantizedProduct& p, float* arranged) {
  if (p.rows <= MOST_UNTILED) return arrange(x, first, p, arranged);
  const int rows = p.rows, depth = p.depth, bits = p.bits;
  const Block block = block_of(arranged, first, rows, depth);
  const __mmask16 lanes = (1u << block.count) - 1;
  float* to = (float*)block.x;
  for (int i = 0; i < depth; i += GROUP, to += block.count) {
    float totals[TILE];
    __m512 parts[PARTS][TILE] = {};
    for (int row = 0; row < block.count; row++) {
      Pairs pairs(x[row] + i, bits);
      totals[row] = sum(pairs.first + pairs.second);
      for (int part = 0; part < PARTS; part++) parts[part][row] = pairs.take();
    }
    for (int part = 0; part < PARTS; part++) {
      transpose(parts[part]);
      for (int j = 0; j < TILE; j++, to += block.count) _mm512_mask_storeu_ps(to, lanes, parts[part][j]);
    }
    _mm512_mask_storeu_ps(to, lanes, _mm512_loadu_ps(totals));
  }
}

/** 4 bits as bfloat16: of each word of 16 bits first all lowest nibbles, then all second ones. */
struct Nibbles {
  static constexpr int BITS = 4;
  __m512i values; // There are 16, twice: the fifth bit is another weight's.

  /** Those that are the upper halves of float32. */
  explicit Nibbles(Floats levels)
      : values(_mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)levels, 16)))) {}

  INLINE __m512i unpacked(const unsigned char* from) const {
    const __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from));
    const __m512i shifts = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_set_m128i(_mm_set1_epi16(4), _mm_setzero_si128())),
        _mm256_set_m128i(_mm_set1_epi16(12), _mm_set1_epi16(8)), 1);
    return _mm512_permutexvar_epi16(_mm512_srlv_epi16(words, shifts), values);
  }
};

/** 8 bits as bfloat16. */
struct Bytes {
  static constexpr int BITS = 8;

  INLINE __m512i unpacked(const unsigned char* from) const {
    const auto upper = [&](int at) {
      return _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)Affine<8>::quants(from + at), 16));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(upper(0)), upper(LANES), 1);
  }
};

// The tiles: the weights of two times 16 columns, a part of x, and the sums of both. The compiler wants literals.
#define WEIGHTS_A 0
#define WEIGHTS_B 1
#define LARGE 2
#define MIDDLE 3
#define SMALL 4
#define SUMS_A 5
#define SUMS_B 6

/** What the processor is told of them. */
struct Shapes {
  unsigned char palette = 1, start = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};

  explicit Shapes(const Block& block) {
    for (int tile = WEIGHTS_A; tile <= SUMS_B; tile++) {
      rows[tile] = TILE;
      row_bytes[tile] = tile <= WEIGHTS_B ? GROUP * 2 : block.count * 4;
    }
  }
};

/** Columns that are multiplied together. */
constexpr int TILED_COLUMNS = 2 * TILE;

/** Groups that are unpacked, multiplied and scaled together, each while others are: what was stored is slow to load at once. */
constexpr int BATCH = 2;

/** So many groups of the depth at a time: for them unpacked weights stay in the L2 cache for all rows, and x for all columns. */
constexpr int SLICE = 24;

struct Columns {
  int first, count;
};

struct Groups {
  int first, count;

  /** A batch of them. */
  Groups batch(int index) const {
    const int done = index * BATCH;
    return {first + done, count - done < BATCH ? count - done : BATCH};
  }
};

static INLINE float scaled_by(float scale) {
  return scale;
}

static INLINE float scaled_by(unsigned char exponent) {
  return power_of_two(exponent);
}

/** A product of TILED_COLUMNS with a slice of the depth. */
template <class Scale, class Unpack>
struct TiledProduct {
  /** Exponents of a byte, those of mxfp4, have none. */
  static constexpr bool HAS_BIASES = sizeof(Scale) == sizeof(float);
  const QuantizedProduct& p;
  const Unpack unpack_bits;
  unsigned short weights[SLICE][TILED_COLUMNS][GROUP] __attribute__((aligned(64)));
  float made[2][BATCH][TILED_COLUMNS][TILE] __attribute__((aligned(64))); // of one batch, and of the one before
  __m512 sums[TILED_COLUMNS];
  int shaped = 0; // The rows that the tiles have their shapes for: to be told of them takes the processor long.

  TiledProduct(const QuantizedProduct& p, Unpack unpack) : p(p), unpack_bits(unpack) {
    // Lanes that no row has are multiplied too, and that is slow with what may have lain there.
    __builtin_memset(made, 0, sizeof made);
  }

  INLINE void unpack(Columns columns, Groups groups, unsigned short (*out)[TILED_COLUMNS][GROUP]) {
    constexpr int BYTES = GROUP * Unpack::BITS / 8;
    const long row_bytes = p.depth / GROUP * BYTES;
    const unsigned char* row = p.w + columns.first * row_bytes + (long)groups.first * BYTES;
    for (int column = 0; column < columns.count; column++, row += row_bytes) {
      __builtin_prefetch(row + AHEAD, 0, 2);
      for (int i = 0; i < groups.count; i++) {
        _mm512_store_si512(out[i][column], unpack_bits.unpacked(row + i * BYTES));
      }
    }
  }

  static INLINE void multiply(
      const Block& block, Groups groups, const unsigned short (*unpacked)[TILED_COLUMNS][GROUP],
      float (*out)[TILED_COLUMNS][TILE]) {
    const long stride = block.count * 4;
    for (int i = 0; i < groups.count; i++) {
      const float* x = block.at(groups.first + i);
      _tile_zero(SUMS_A);
      _tile_zero(SUMS_B);
      _tile_loadd(WEIGHTS_A, unpacked[i][0], GROUP * 2);
      _tile_loadd(WEIGHTS_B, unpacked[i][TILE], GROUP * 2);
      _tile_loadd(SMALL, x + 2 * TILE * block.count, stride);
      _tile_dpbf16ps(SUMS_A, WEIGHTS_A, SMALL);
      _tile_dpbf16ps(SUMS_B, WEIGHTS_B, SMALL);
      _tile_loadd(MIDDLE, x + TILE * block.count, stride);
      _tile_dpbf16ps(SUMS_A, WEIGHTS_A, MIDDLE);
      _tile_dpbf16ps(SUMS_B, WEIGHTS_B, MIDDLE);
      _tile_loadd(LARGE, x, stride);
      _tile_dpbf16ps(SUMS_A, WEIGHTS_A, LARGE);
      _tile_dpbf16ps(SUMS_B, WEIGHTS_B, LARGE);
      _tile_stored(SUMS_A, out[i][0], TILE * 4);
      _tile_stored(SUMS_B, out[i][TILE], TILE * 4);
    }
  }

  template <int COUNT>
  INLINE void add_scaled(const Block& block, Columns columns, Groups groups, const float (*from)[TILED_COLUMNS][TILE]) {
    const long row_groups = p.depth / p.group;
    const int shift = __builtin_ctz(p.group) - __builtin_ctz(GROUP);
    __m512 totals[COUNT];
    long places[COUNT];
    for (int i = 0; i < COUNT; i++) {
      totals[i] = _mm512_maskz_loadu_ps((1u << block.count) - 1, block.at(groups.first + i + 1) - block.count);
      places[i] = (groups.first + i) >> shift;
    }
    const auto* scales = (const Scale*)p.scales + columns.first * row_groups;
    const float* biases = HAS_BIASES ? p.biases + columns.first * row_groups : nullptr;
    for (int column = 0; column < columns.count; column++, scales += row_groups) {
      __m512 sum = sums[column];
      for (int i = 0; i < COUNT; i++) {
        sum = _mm512_fmadd_ps(_mm512_load_ps(from[i][column]), _mm512_set1_ps(scaled_by(scales[places[i]])), sum);
      }
      if constexpr (HAS_BIASES) {
        for (int i = 0; i < COUNT; i++) sum = _mm512_fmadd_ps(totals[i], _mm512_set1_ps(biases[places[i]]), sum);
        biases += row_groups;
      }
      sums[column] = sum;
    }
  }

  INLINE void add_scaled(const Block& block, Columns columns, Groups groups, const float (*from)[TILED_COLUMNS][TILE]) {
    if (groups.count == BATCH) add_scaled<BATCH>(block, columns, groups, from);
    else add_scaled<1>(block, columns, groups, from);
  }

  /** The sums of up to TILE columns become rows of `out`. */
  INLINE void put(const Block& block, Columns columns, float beta, __m512* rows) const {
    transpose(rows);
    const __mmask16 some = (1u << columns.count) - 1;
    float* out = p.out + block.first * p.out_stride + columns.first;
    for (int i = 0; i < block.count; i++, out += p.out_stride) {
      if (beta != 0) rows[i] += beta * _mm512_maskz_loadu_ps(some, out);
      _mm512_mask_storeu_ps(out, some, rows[i]);
    }
  }

  /** The first block unpacks the weights for all others; where there are none it keeps few of them. */
  void multiply_block(const Block& block, Columns columns, Groups slice) {
    if (block.count != shaped) {
      const Shapes shapes(block);
      _tile_loadconfig(&shapes);
      shaped = block.count;
    }
    const bool is_first = block.first == 0, is_only = p.rows <= TILE;
    const auto unpacked = [&](int batch) { return weights + (is_only ? batch % 4 : batch) * BATCH; };
    const int batches = (slice.count + BATCH - 1) / BATCH;
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    if (is_first) unpack(columns, slice.batch(0), unpacked(0));
    for (int i = 0; i < batches; i++) {
      if (is_first && i + 1 < batches) unpack(columns, slice.batch(i + 1), unpacked(i + 1));
      multiply(block, slice.batch(i), unpacked(i), made[i % 2]);
      if (i > 0) add_scaled(block, columns, slice.batch(i - 1), made[(i - 1) % 2]);
    }
    add_scaled(block, columns, slice.batch(batches - 1), made[(batches - 1) % 2]);
    const float beta = slice.first == 0 ? p.beta : 1;
    for (int i = 0; i < columns.count; i += TILE) {
      const int left = columns.count - i;
      put(block, {columns.first + i, left < TILE ? left : TILE}, beta, sums + i);
    }
  }
};

template <class Scale, class Unpack>
static void multiply_columns(const QuantizedProduct& p, Unpack unpack, int from, int to) {
  TiledProduct<Scale, Unpack> product(p, unpack);
  const int groups = p.depth / GROUP;
  for (int start = 0; start < groups; start += SLICE) {
    const Groups slice = {start, groups - start < SLICE ? groups - start : SLICE};
    for (int column = from; column < to; column += TILED_COLUMNS) {
      const Columns columns = {column, to - column < TILED_COLUMNS ? to - column : TILED_COLUMNS};
      for (int row = 0; row < p.rows; row += TILE) {
        product.multiply_block(block_of(p.x, row, p.rows, p.depth), columns, slice);
      }
    }
  }
  _tile_release();
}

static void tiled_product(const QuantizedProduct& p, int from, int to) {
  if (p.rows <= MOST_UNTILED) quantized_product(p, from, to);
  else if (!p.biases) multiply_columns<unsigned char>(p, Nibbles(Mxfp4::levels()), from, to);
  else if (p.bits == 4) multiply_columns<float>(p, Nibbles(Affine<4>::levels()), from, to);
  else multiply_columns<float>(p, Bytes{}, from, to);
}

} // namespace VARIANT
} // namespace mlx_serve
