// Products of many rows with quantized weights in panels, by AMX: tile products of 8-bit integers, accumulated in 32
// bits. Numbers of x and weights are converted to 24-bit integers, scaled by the maximum of their row or column, and
// split into three 8-bit digits. Of the nine digit products the six significant ones are accumulated; the error is at
// most twice that of float32. Part of kernels.cpp.
#pragma once

#include "quantized-product.h"

namespace mlx_serve {
namespace VARIANT {

/**
 * TILE: width and height of an accumulator tile (matrix columns, rows of x). STEP: elements along the depth in an
 * operand tile, which holds one digit of each element of 16 columns or rows.
 */
constexpr int TILE = 16, STEP = 64;

/** Depth per slice: each slice has its own scales, and the digits of 16 rows of a slice fit in L1. */
constexpr int SLICE_STEPS = 12, SLICE = SLICE_STEPS * STEP;

/** Panels per strip: a strip's digits for a slice fit in the L2 cache while all rows use them. */
constexpr int STRIP_TILES = 8, STRIP_COLUMNS = STRIP_TILES * TILE;

/**
 * Floats per GROUP elements of a row of x in the AMX layout (Kernels::arranged). The worst case is a row of one
 * group: it takes digits for a full STEP, a scale, and slack for loads past the last row.
 */
constexpr int TILED = 64;
static_assert(TILED >= DIGITS * STEP / 4 + 2 && TILE == PANEL_COLUMNS);

/** Rows up to which AMX is not used: unpacking the weights would cost more than the tiles save. */
constexpr int MOST_UNTILED = 12;

static INLINE bool takes_tiles(const QuantizedProduct& p) {
  return p.in_panels && p.rows > MOST_UNTILED;
}

/** A slice of the depth: its index, first weight, number of weights, and number of STEPs. */
struct DepthSlice {
  int index, start, size, steps;

  DepthSlice(int index, int depth) : index(index), start(index * SLICE) {
    size = depth - start < SLICE ? depth - start : SLICE;
    steps = (size + STEP - 1) / STEP;
  }
};

/**
 * A block of up to TILE rows of x that share tiles: `count` rows starting at `first`. Each depth slice stores tiles
 * of digits, then the rows' scales.
 */
struct Block {
  int first, count;
  float* x;

  Block(const float* arranged, int row, const QuantizedProduct& p) : first(row / TILE * TILE) {
    const int steps = (p.depth + STEP - 1) / STEP, slices = (p.depth + SLICE - 1) / SLICE;
    count = p.rows - first < TILE ? p.rows - first : TILE;
    x = (float*)arranged + (long)first * (steps * DIGITS * TILE + slices);
  }

  /** Returns one digit of a step's elements, TILE words per row. Loads read TILE rows, even if `count` is less. */
  INLINE float* digits(const DepthSlice& slice, int step, int digit) const {
    return x + (long)count * (slice.index * (SLICE_STEPS * DIGITS * TILE + 1) + (step * DIGITS + digit) * TILE);
  }

  INLINE float* scales(const DepthSlice& slice) const {
    return digits(slice, slice.steps, 0);
  }
};

/** Transposes 16 vectors of 16 lanes. */
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

static INLINE __mmask16 first_lanes(int count) {
  return count < LANES ? (1u << (count > 0 ? count : 0)) - 1 : 0xffff;
}

/** Returns the position of the lowest byte of each of GROUP integers, in tile order (4 bits: even elements first). */
static INLINE __m512i tile_order(int bits) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i low = _mm512_cvtepi32_epi8(_mm512_slli_epi32(lanes, bits == 4 ? 3 : 2));
  const __m128i high = _mm_add_epi8(low, _mm_set1_epi8(bits == 4 ? 4 : 64));
  return _mm512_castsi256_si512(_mm256_set_m128i(high, low));
}

/** Extracts the byte numbered `digit` of each of STEP integers, in tile order. */
static INLINE __m512i digit_of(const __m512i* integers, int digit, __m512i order) {
  const __m512i places = _mm512_add_epi8(order, _mm512_set1_epi8(digit));
  const __m512i low = _mm512_permutex2var_epi8(integers[0], places, integers[1]);
  const __m512i high = _mm512_permutex2var_epi8(integers[2], places, integers[3]);
  return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}

/** Converts rows of x to AMX's second operand: words of four digits, interleaved by row. */
static void arrange_tiles(const float* const* x, int first, const QuantizedProduct& p, float* arranged) {
  if (!takes_tiles(p)) return arrange(x, first, p, arranged);
  const Block block(arranged, first, p);
  const __m512i order = tile_order(p.bits);
  for (int start = 0; start < p.depth; start += SLICE) {
    const DepthSlice slice(start / SLICE, p.depth);
    float factors[TILE];
    for (int row = 0; row < block.count; row++) {
      const float* own = x[row] + start;
      Floats top = all(LEAST_TOP), zero = {};
      for (int i = 0; i < slice.size; i += LANES) {
        const Floats some = load(own + i);
        top = max(top, max(some, -some));
        zero += some * 0;
      }
      factors[row] = MOST_INTEGER / highest(top);
      // `zero` is NaN if a number of the row is not finite; the scale then makes all of the row's results NaN.
      block.scales(slice)[row] = 1 / factors[row] + sum(zero);
    }
    for (int step = 0; step < slice.steps; step++) {
      const int left = slice.size - step * STEP;
      __m512 digits[DIGITS][TILE] = {};
      for (int row = 0; row < block.count; row++) {
        const float* own = x[row] + start + step * STEP;
        __m512i integers[STEP / LANES];
        for (int i = 0; i < STEP; i += LANES) {
          const __m512 some = _mm512_maskz_loadu_ps(first_lanes(left - i), own + i);
          integers[i / LANES] = integers_of((Floats)some * factors[row]);
        }
        for (int digit = 0; digit < DIGITS; digit++) digits[digit][row] = (__m512)digit_of(integers, digit, order);
      }
      for (int digit = 0; digit < DIGITS; digit++) {
        float* const to = block.digits(slice, step, digit);
        transpose(digits[digit]);
        for (int i = 0; i < TILE; i++) {
          _mm512_mask_storeu_ps(to + i * block.count, first_lanes(block.count), digits[digit][i]);
        }
      }
    }
  }
}

/** A column's scale or bias in each of two adjacent GROUPs of weights. */
struct Pair {
  float of[2];
};
struct Scaling {
  Pair scales, biases;
  float factor;
};

/** Unpacks a panel's 4-bit weights to digits by lookup: a group has only 16 different weights. */
template <class Kind>
struct Unpack {
  static constexpr int WORDS = STEP * 4 / 32;
  const Floats levels = Kind::levels();

  /** Writes the digits of STEP weights per column: one row of each of the three digit tiles. */
  template <class Scalings>
  INLINE void unpack(const __m512i* words, const Scalings& scaling, signed char (*to)[STEP]) const {
    // The words of column 4 * i + j are in 128-bit lane i of fours[.][j].
    __m512i pairs[WORDS], fours[2][4];
    for (int i = 0; i < WORDS; i += 2) {
      pairs[i] = _mm512_unpacklo_epi32(words[i], words[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi32(words[i], words[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < 2; j++) {
        fours[i][2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + j + 2]);
        fours[i][2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + j + 2]);
      }
    }
    const auto lane = [&](int j, auto lane) {
      const __m512i twice = _mm512_shuffle_i32x4(fours[0][j], fours[1][j], decltype(lane)::value * 0x55);
      const int column = 4 * decltype(lane)::value + j;
      unpack_column(twice, scaling(column), to + column);
    };
    for (int j = 0; j < 4; j++) {
      lane(j, Index<0>{});
      lane(j, Index<1>{});
      lane(j, Index<2>{});
      lane(j, Index<3>{});
    }
  }

 private:
  template <int I>
  struct Index {
    static constexpr int value = I;
  };

  /** Unpacks one column. `twice` has the words of a group twice, then those of the next group twice. */
  INLINE void unpack_column(__m512i twice, const Scaling& from, signed char (*to)[STEP]) const {
    const __m512i a = integers_of((levels * from.scales.of[0] + from.biases.of[0]) * from.factor);
    const __m512i b = integers_of((levels * from.scales.of[1] + from.biases.of[1]) * from.factor);
    // Moves each nibble to bits 2 to 5 of a byte: the offset of a 4-byte integer in a lookup table
    // of 16. The two bits below select the digit.
    const long long low = 0x362e261e160e063e, high = 0x3a322a221a120a02;
    const __m512i nibbles =
        _mm512_multishift_epi64_epi8(_mm512_setr_epi64(low, low, high, high, low, low, high, high), twice);
    for (int digit = 0; digit < DIGITS; digit++) {
      const __m512i places =
          _mm512_ternarylogic_epi32(nibbles, _mm512_set1_epi8(0x3c), _mm512_set1_epi8(digit), 0xea);
      const __m512i first = _mm512_permutexvar_epi8(places, a);
      const __mmask64 second_group = 0xffffffff00000000;
      _mm512_store_si512(to + digit * TILE, _mm512_mask_permutexvar_epi8(first, second_group, places, b));
    }
  }
};

template <>
struct Unpack<PanelInts<8>> {
  static constexpr int WORDS = STEP * 8 / 32;
  const __m512i order = tile_order(8);

  template <class Scalings>
  INLINE void unpack(const __m512i* words, const Scalings& scaling, signed char (*to)[STEP]) const {
    __m512 columns[WORDS];
    for (int i = 0; i < WORDS; i++) columns[i] = (__m512)words[i];
    transpose(columns);
    for (int column = 0; column < TILE; column++) {
      unsigned char bytes[STEP] __attribute__((aligned(64)));
      _mm512_store_si512(bytes, (__m512i)columns[column]);
      const Scaling from = scaling(column);
      __m512i integers[STEP / LANES];
      for (int i = 0; i < STEP; i += LANES) {
        const Floats weights = Affine<8>::quants(bytes + i) * from.scales.of[i / GROUP] + from.biases.of[i / GROUP];
        integers[i / LANES] = integers_of(weights * from.factor);
      }
      for (int digit = 0; digit < DIGITS; digit++) {
        _mm512_store_si512(to + digit * TILE + column, digit_of(integers, digit, order));
      }
    }
  }
};

// AMX tile registers: accumulators by significance, the three digits of the weights, two tiles of
// x. Macros, because the intrinsics need literals.
#define FIRST 0
#define SECOND 1
#define THIRD 2
#define HIGH 3
#define MIDDLE 4
#define LOW 5
#define X 6
#define NEXT_X 7

/** The tile configuration (ldtilecfg). */
struct Shapes {
  unsigned char palette = 1, start = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};

  Shapes() {
    for (int tile = FIRST; tile <= NEXT_X; tile++) {
      rows[tile] = TILE;
      row_bytes[tile] = STEP;
    }
  }
};

/** A range of columns; `count` is a multiple of the panel width. */
struct Columns {
  int first, count;
};

/** Computes a quantized product. Holds the weights' digits for one strip of columns in one slice of the depth. */
template <class Kind>
struct TiledProduct {
  static constexpr int GROUPS = SLICE / GROUP;
  typedef signed char Digits[DIGITS * TILE][STEP];

  const QuantizedProduct& p;
  const Unpack<Kind> bits{};
  Digits weights[STRIP_TILES * SLICE_STEPS] __attribute__((aligned(64)));
  float column_scales[STRIP_TILES][TILE];
  float scales[GROUPS][TILE], biases[GROUPS][TILE], factors[TILE]; // of the panel that is being unpacked

  /** Accumulators that still have to be written to `out`: this is done while the next ones are computed. */
  struct {
    int sums[DIGITS][TILE][TILE] __attribute__((aligned(64)));
    Floats column_scales;
    const float* row_scales;
    float* out;
    float beta;
    int rows = 0;
  } pending;

  explicit TiledProduct(const QuantizedProduct& p) : p(p) {}

  /** Computes each column's scale from its largest weight, and prefetches the next panel's scales. */
  INLINE void measure(const Panel& panel, const DepthSlice& slice, float* own_scales) {
    constexpr int LARGER = 11; // vrangeps: maximum of the absolute values
    const int shift = __builtin_ctz(p.group);
    __m512 top = (__m512)all(LEAST_TOP);
    for (int group = 0; group < slice.size / GROUP; group++) {
      const long at = panel.numbers + (long)((slice.start + group * GROUP) >> shift) * PANEL_COLUMNS;
      Kind::prefetch(p, at + p.depth / p.group * PANEL_COLUMNS);
      const auto [scale, bias] = Kind::group(p, at);
      const __m512 last = (__m512)(scale * Kind::MOST + bias);
      top = _mm512_range_ps(top, _mm512_range_ps((__m512)bias, last, LARGER), LARGER);
      store(scales[group], scale);
      store(biases[group], bias);
    }
    store(factors, MOST_INTEGER / (Floats)top);
    store(own_scales, (Floats)top / MOST_INTEGER);
  }

  /**
   * Returns the buffer for a step's weight digits. Several blocks of x reuse the digits of every step; for one block,
   * two buffers alternate.
   */
  INLINE Digits& digits(int step) {
    return weights[p.rows > TILE ? step : step % 2];
  }

  INLINE void unpack(Columns strip, const DepthSlice& slice, int step) {
    const int tile = step / slice.steps, at = step % slice.steps * STEP, group = at / GROUP;
    if (tile * TILE >= strip.count) return;
    const Panel panel(p, strip.first + tile * TILE);
    if (at == 0) measure(panel, slice, column_scales[tile]);
    const auto* from = (const __m512i*)panel.words + (long)(slice.start + at) * Kind::BITS / 32;
    const bool is_half = slice.size - at < STEP;
    constexpr int WORDS = Unpack<Kind>::WORDS;
    __m512i words[WORDS];
    for (int i = 0; i < WORDS; i++) {
      __builtin_prefetch((const char*)(from + i) + AHEAD, 0, 2);
      words[i] = is_half && i >= WORDS / 2 ? _mm512_setzero_si512() : _mm512_loadu_si512(from + i);
    }
    const int next = is_half ? group : group + 1;
    const auto scaling = [&](int column) -> Scaling {
      const auto both = [&](const auto& numbers) { return Pair{numbers[group][column], numbers[next][column]}; };
      return {both(scales), both(biases), factors[column]};
    };
    bits.unpack(words, scaling, digits(step));
  }

  static INLINE void multiply(const Block& block, const DepthSlice& slice, int step, const Digits& w) {
    const long stride = block.count * 4;
    _tile_stream_loadd(HIGH, w + 2 * TILE, STEP);
    _tile_loadd(X, block.digits(slice, step, 2), stride);
    _tile_dpbssd(FIRST, HIGH, X);
    _tile_stream_loadd(MIDDLE, w + TILE, STEP);
    _tile_dpbssd(SECOND, MIDDLE, X);
    _tile_stream_loadd(LOW, w, STEP);
    _tile_dpbssd(THIRD, LOW, X);
    _tile_loadd(NEXT_X, block.digits(slice, step, 1), stride);
    _tile_dpbssd(SECOND, HIGH, NEXT_X);
    _tile_dpbssd(THIRD, MIDDLE, NEXT_X);
    _tile_loadd(X, block.digits(slice, step, 0), stride);
    _tile_dpbssd(THIRD, HIGH, X);
  }

  /** Combines the pending accumulators and writes them to `out`. */
  INLINE void finish() {
    __m512 sums[TILE];
    for (int i = 0; i < TILE; i++) {
      Floats all = {};
      for (int digits = THIRD; digits >= FIRST; digits--) {
        all = all / 256 + (Floats)_mm512_cvtepi32_ps(_mm512_load_si512(pending.sums[digits][i]));
      }
      sums[i] = (__m512)all;
    }
    transpose(sums);
    // The sums count in units of the product of the two highest digits, 2^16 * 2^16.
    const Floats scales = pending.column_scales * (1L << 32);
    float* out = pending.out;
    for (int i = 0; i < pending.rows; i++, out += p.out_stride) {
      const Floats row = (Floats)sums[i] * scales * pending.row_scales[i];
      store(out, pending.beta == 0 ? row : row + pending.beta * load(out));
    }
    pending.rows = 0;
  }

  /** Multiplies a block of rows by a panel. The first block unpacks the weights for all others. */
  void multiply_block(const Block& block, Columns strip, const DepthSlice& slice, int tile) {
    const int first = tile * slice.steps;
    // Loading data right after storing it is slow, so each step is unpacked one step ahead of its product.
    if (block.first == 0 && tile == 0) unpack(strip, slice, 0);
    _tile_zero(FIRST);
    _tile_zero(SECOND);
    _tile_zero(THIRD);
    for (int i = 0; i < slice.steps; i++) {
      if (block.first == 0) unpack(strip, slice, first + i + 1);
      multiply(block, slice, i, digits(first + i));
      if (i == 0 && pending.rows > 0) finish();
    }
    _tile_stored(FIRST, pending.sums[FIRST], TILE * 4);
    _tile_stored(SECOND, pending.sums[SECOND], TILE * 4);
    _tile_stored(THIRD, pending.sums[THIRD], TILE * 4);
    pending.row_scales = block.scales(slice);
    pending.column_scales = load(column_scales[tile]);
    pending.out = p.out + block.first * p.out_stride + strip.first + tile * TILE;
    pending.beta = slice.index == 0 ? p.beta : 1;
    pending.rows = block.count;
  }
};

template <class Kind>
static void multiply_columns(const QuantizedProduct& p, int from, int to) {
  TiledProduct<Kind> product(p);
  const Shapes shapes;
  _tile_loadconfig(&shapes);
  for (int start = 0; start < p.depth; start += SLICE) {
    const DepthSlice slice(start / SLICE, p.depth);
    for (int first = from; first < to; first += STRIP_COLUMNS) {
      const Columns strip = {first, to - first < STRIP_COLUMNS ? to - first : STRIP_COLUMNS};
      for (int row = 0; row < p.rows; row += TILE) {
        const Block block(p.x, row, p);
        for (int tile = 0; tile * TILE < strip.count; tile++) product.multiply_block(block, strip, slice, tile);
      }
    }
  }
  product.finish();
  _tile_release();
}

static void tiled_product(const QuantizedProduct& p, int from, int to) {
  if (!takes_tiles(p)) return quantized_product(p, from, to);
  with_kind(p, [&](auto kind) { multiply_columns<decltype(kind)>(p, from, to); });
}

} // namespace VARIANT
} // namespace mlx_serve
