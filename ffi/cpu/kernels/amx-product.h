// Products of more rows with quantized weights, by AMX: it multiplies tiles of bytes, and sums in 32 bits. Numbers of x and
// weights become integers of 24 bits by the largest of their row or column, three digits of 8 each, and of the nine products of
// digits the six that count are summed: to twice of what float32 is off by. Part of kernels.cpp.
#pragma once

#include "quantized-product.h"

namespace mlx_serve {
namespace VARIANT {

/** A tile of sums is 16 columns by 16 rows of x; one of an operand is a digit of 16 of them by STEP of the depth. */
constexpr int TILE = 16, STEP = 64;

/** So much of the depth at a time has scales of its own. The digits of 16 rows stay in the L1 cache for a panel's columns. */
constexpr int SLICE_STEPS = 12, SLICE = SLICE_STEPS * STEP;

/** So many times 16 columns at a time: their digits stay in the L2 cache for all rows. */
constexpr int PANEL_TILES = 8, PANEL_COLUMNS = PANEL_TILES * TILE;

/**
 * The most floats for GROUP numbers of a row of x, those of a row of one group: a step of digits, a scale, and one for what a
 * tile reads behind the last rows; in whole lines.
 */
constexpr int TILED = 64;
static_assert(TILED >= DIGITS * STEP / 4 + 2 && TILED >= INTEGERS);

/** With fewer rows it takes longer to unpack the weights than tiles save. */
constexpr int MOST_UNTILED = 12;

/** Part of the depth. */
struct DepthSlice {
  int index, start, size, steps;

  DepthSlice(int index, int depth) : index(index), start(index * SLICE) {
    size = depth - start < SLICE ? depth - start : SLICE;
    steps = (size + STEP - 1) / STEP;
  }
};

/** The rows of x that share tiles: `count` from `first` on. For each slice there are tiles of digits, then the rows' scales. */
struct Block {
  int first, count;
  float* x;

  Block(const float* arranged, int row, const QuantizedProduct& p) : first(row / TILE * TILE) {
    const int steps = (p.depth + STEP - 1) / STEP, slices = (p.depth + SLICE - 1) / SLICE;
    count = p.rows - first < TILE ? p.rows - first : TILE;
    x = (float*)arranged + (long)first * (steps * DIGITS * TILE + slices);
  }

  /** TILE times `count` words of four digits. A tile reads TILE times TILE; what the others are summed to is not used. */
  INLINE float* digits(const DepthSlice& slice, int step, int digit) const {
    return x + (long)count * (slice.index * (SLICE_STEPS * DIGITS * TILE + 1) + (step * DIGITS + digit) * TILE);
  }

  INLINE float* scales(const DepthSlice& slice) const {
    return digits(slice, slice.steps, 0);
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

static INLINE __mmask16 first_lanes(int count) {
  return count < LANES ? (1u << (count > 0 ? count : 0)) - 1 : 0xffff;
}

/** Where the lowest digits of GROUP integers are, in the order of a tile: of 4 bits first those of the low ones of a byte. */
static INLINE __m512i tile_order(int bits) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i low = _mm512_cvtepi32_epi8(_mm512_slli_epi32(lanes, bits == 4 ? 3 : 2));
  const __m128i high = _mm_add_epi8(low, _mm_set1_epi8(bits == 4 ? 4 : 64));
  return _mm512_castsi256_si512(_mm256_set_m128i(high, low));
}

/** One digit of STEP integers. */
static INLINE __m512i digit_of(const __m512i* integers, int digit, __m512i order) {
  const __m512i places = _mm512_add_epi8(order, _mm512_set1_epi8(digit));
  const __m512i low = _mm512_permutex2var_epi8(integers[0], places, integers[1]);
  const __m512i high = _mm512_permutex2var_epi8(integers[2], places, integers[3]);
  return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1);
}

/** Rows as the second operand of tiles: four of the depth, next to those of the other rows. */
static void arrange_tiles(const float* const* x, int first, const QuantizedProduct& p, float* arranged) {
  if (p.rows <= MOST_UNTILED) return arrange(x, first, p, arranged);
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
      // What is not finite makes all sums so.
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

/** What STEP weights of a column are made of: its bits, of which there may be half, and the scale and bias of each GROUP. */
struct Packed {
  const unsigned char* bits;
  bool is_half;
  const float *scales, *biases;
  float factor; // that makes them integers
};

/** Weights of 4 bits: a group has 16 different ones. */
struct Nibbles {
  static constexpr int BITS = 4;
  Floats levels;
  float most; // of them

  /** To the same row of three tiles. */
  INLINE void unpack(const Packed& from, signed char (*to)[STEP]) const {
    const __m512i a = integers_of((levels * from.scales[0] + from.biases[0]) * from.factor);
    const __m512i b = integers_of((levels * from.scales[1] + from.biases[1]) * from.factor);
    const __m256i bytes = _mm256_maskz_loadu_epi32(from.is_half ? 0xf : 0xff, from.bits);
    const __m512i twice =
        _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(bytes));
    // Each byte's low or high nibble in its bits 2 to 5: a weight is 4 bytes. The digit goes to the bits below.
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

/** Weights of 8 bits. */
struct Bytes {
  static constexpr int BITS = 8;
  static constexpr float most = 255;
  __m512i order = tile_order(BITS);

  INLINE void unpack(const Packed& from, signed char (*to)[STEP]) const {
    __m512i integers[STEP / LANES];
    for (int i = 0; i < STEP; i += LANES) {
      const int group = i / GROUP;
      const Floats quants = group > 0 && from.is_half ? Floats{} : Affine<8>::quants(from.bits + i);
      integers[i / LANES] = integers_of((quants * from.scales[group] + from.biases[group]) * from.factor);
    }
    for (int digit = 0; digit < DIGITS; digit++) {
      _mm512_store_si512(to + digit * TILE, digit_of(integers, digit, order));
    }
  }
};

// The tiles: sums by what their digits count, the digits of weights, and two of x. The compiler wants literals.
#define FIRST 0
#define SECOND 1
#define THIRD 2
#define HIGH 3
#define MIDDLE 4
#define LOW 5
#define X 6
#define NEXT_X 7

/** What the processor is told of them. */
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

struct Columns {
  int first, count;

  /** Up to TILE of them. */
  INLINE Columns tile(int index) const {
    const int left = count - index * TILE;
    return {first + index * TILE, left < TILE ? left : TILE};
  }
};

/** The columns of a panel with a slice of the depth, and the sums of up to TILE rows with up to TILE of them. */
template <class Scale, class Unpack>
struct TiledProduct {
  /** Of a slice, in whole vectors. */
  static constexpr int GROUPS = (SLICE / GROUP + LANES - 1) / LANES * LANES;
  typedef signed char Digits[DIGITS * TILE][STEP];

  const QuantizedProduct& p;
  const Unpack bits;
  Digits weights[PANEL_TILES * SLICE_STEPS] __attribute__((aligned(64)));
  float column_scales[PANEL_TILES][TILE];
  float scales[TILE][GROUPS], biases[TILE][GROUPS], factors[TILE]; // of the columns that are unpacked

  /** Sums that are not in `out` yet: they are put there while the next ones are made. */
  struct {
    int sums[DIGITS][TILE][TILE] __attribute__((aligned(64)));
    Floats column_scales;
    const float* row_scales;
    float* out;
    float beta;
    int rows = 0, columns;
  } made;

  TiledProduct(const QuantizedProduct& p, Unpack bits) : p(p), bits(bits) {}

  static INLINE __m512 load_shared(const float* from, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, from);
  }

  /** As `power_of_two` has it. */
  static INLINE __m512 load_shared(const unsigned char* exponents, __mmask16 lanes) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, exponents)), 23);
    return (__m512)_mm512_max_epu32(shifted, _mm512_set1_epi32(1 << 22));
  }

  /** Finds the columns' scales, by their largest weights. */
  INLINE void measure(Columns columns, const DepthSlice& slice, float* own_scales) {
    constexpr int LARGER = 11; // of two numbers without their signs
    const int shift = __builtin_ctz(p.group / GROUP), groups = slice.size / GROUP;
    const long row_groups = p.depth / p.group, first = slice.start / p.group;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i spread = _mm512_srli_epi32(lanes, shift);
    __m512 tops[TILE] = {};
    for (int column = 0; column < columns.count; column++) {
      const long at = (columns.first + column) * row_groups + first;
      for (int i = 0; i < GROUPS; i += LANES) {
        const __mmask16 some = first_lanes(groups - i), shared = first_lanes(((groups - i - 1) >> shift) + 1);
        const long from = at + (i >> shift), ahead = from + TILE * row_groups;
        __builtin_prefetch((const Scale*)p.scales + ahead, 0, 2);
        if (p.biases) __builtin_prefetch(p.biases + ahead, 0, 2);
        const auto load_spread = [&](const auto* x) {
          return _mm512_maskz_permutexvar_ps(some, spread, load_shared(x + from, shared));
        };
        const __m512 scale = load_spread((const Scale*)p.scales);
        const __m512 bias = p.biases ? load_spread(p.biases) : _mm512_setzero_ps();
        const __m512 last = _mm512_fmadd_ps(scale, _mm512_set1_ps(bits.most), bias);
        tops[column] = _mm512_range_ps(tops[column], _mm512_range_ps(bias, last, LARGER), LARGER);
        store(scales[column] + i, (Floats)scale);
        store(biases[column] + i, (Floats)bias);
      }
    }
    transpose(tops);
    Floats top = all(LEAST_TOP);
    for (const __m512& some : tops) top = max(top, (Floats)some);
    store(factors, MOST_INTEGER / top);
    store(own_scales, top / MOST_INTEGER);
  }

  /** Of a step of the panel. Those that no other rows need take turns in two places. */
  INLINE Digits& digits(int step) {
    return weights[p.rows > TILE ? step : step % 2];
  }

  INLINE void unpack(Columns panel, const DepthSlice& slice, int step) {
    const int tile = step / slice.steps, at = step % slice.steps * STEP, group = at / GROUP;
    if (tile * TILE >= panel.count) return;
    const Columns columns = panel.tile(tile);
    if (at == 0) measure(columns, slice, column_scales[tile]);
    const long row_bytes = (long)p.depth * Unpack::BITS / 8;
    const unsigned char* from = p.w + columns.first * row_bytes + (slice.start + at) * Unpack::BITS / 8;
    const bool is_half = slice.size - at < STEP;
    for (int column = 0; column < columns.count; column++, from += row_bytes) {
      __builtin_prefetch(from + AHEAD, 0, 2);
      bits.unpack({from, is_half, scales[column] + group, biases[column] + group, factors[column]}, digits(step) + column);
    }
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

  /** Puts what has been made where it belongs. */
  INLINE void finish() {
    __m512 sums[TILE];
    for (int i = 0; i < TILE; i++) {
      Floats all = {};
      for (int digits = THIRD; digits >= FIRST; digits--) {
        all = all / 256 + (Floats)_mm512_cvtepi32_ps(_mm512_load_si512(made.sums[digits][i]));
      }
      sums[i] = (__m512)all;
    }
    transpose(sums);
    // The product of two highest digits counts 2 to the power of 32.
    const Floats scales = made.column_scales * (1L << 32);
    const __mmask16 some = first_lanes(made.columns);
    float* out = made.out;
    for (int i = 0; i < made.rows; i++, out += p.out_stride) {
      __m512 row = (__m512)((Floats)sums[i] * scales * made.row_scales[i]);
      if (made.beta != 0) row += made.beta * _mm512_maskz_loadu_ps(some, out);
      _mm512_mask_storeu_ps(out, some, row);
    }
    made.rows = 0;
  }

  /** The sums of some rows with the columns of a tile; the first rows unpack the panel's weights for all others. */
  void multiply_block(const Block& block, Columns panel, const DepthSlice& slice, int tile) {
    const int first = tile * slice.steps;
    const Columns columns = panel.tile(tile);
    // What was stored is slow to load at once: each step is unpacked before the one ahead of it is multiplied.
    if (block.first == 0 && tile == 0) unpack(panel, slice, 0);
    _tile_zero(FIRST);
    _tile_zero(SECOND);
    _tile_zero(THIRD);
    for (int i = 0; i < slice.steps; i++) {
      if (block.first == 0) unpack(panel, slice, first + i + 1);
      multiply(block, slice, i, digits(first + i));
      if (i == 0 && made.rows > 0) finish();
    }
    _tile_stored(FIRST, made.sums[FIRST], TILE * 4);
    _tile_stored(SECOND, made.sums[SECOND], TILE * 4);
    _tile_stored(THIRD, made.sums[THIRD], TILE * 4);
    made.row_scales = block.scales(slice);
    made.column_scales = load(column_scales[tile]);
    made.out = p.out + block.first * p.out_stride + columns.first;
    made.beta = slice.index == 0 ? p.beta : 1;
    made.rows = block.count;
    made.columns = columns.count;
  }
};

template <class Scale, class Unpack>
static void multiply_columns(const QuantizedProduct& p, Unpack bits, int from, int to) {
  TiledProduct<Scale, Unpack> product(p, bits);
  const Shapes shapes;
  _tile_loadconfig(&shapes);
  for (int start = 0; start < p.depth; start += SLICE) {
    const DepthSlice slice(start / SLICE, p.depth);
    for (int first = from; first < to; first += PANEL_COLUMNS) {
      const Columns panel = {first, to - first < PANEL_COLUMNS ? to - first : PANEL_COLUMNS};
      for (int row = 0; row < p.rows; row += TILE) {
        const Block block(p.x, row, p);
        for (int tile = 0; tile * TILE < panel.count; tile++) product.multiply_block(block, panel, slice, tile);
      }
    }
  }
  product.finish();
  _tile_release();
}

static void tiled_product(const QuantizedProduct& p, int from, int to) {
  if (p.rows <= MOST_UNTILED) quantized_product(p, from, to);
  else if (!p.biases) multiply_columns<unsigned char>(p, Nibbles{Mxfp4::levels(), 6}, from, to);
  else if (p.bits == 4) multiply_columns<float>(p, Nibbles{Affine<4>::levels(), 15}, from, to);
  else multiply_columns<float>(p, Bytes{}, from, to);
}

} // namespace VARIANT
} // namespace mlx_serve
