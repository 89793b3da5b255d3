// Products with quantized weights in panels by integer dot products (VNNI). Each group of x is converted to 24-bit
// integers (three 8-bit digits) and a scale, so that the result is as exact as in float32. Part of kernels.cpp.
#pragma once

#include "panels.h"

namespace mlx_serve {
namespace VARIANT {

constexpr int DIGITS = 3;

/** The largest integer that three signed digits represent. */
constexpr float MOST_INTEGER = 127 * 65536;

/** A group whose numbers are all smaller than this counts as 0. */
constexpr float LEAST_TOP = 1e-30f;

/** Prefetch distance of a panel's words, in bytes, and of its scales, in groups. */
constexpr int WORDS_AHEAD = 2048, GROUPS_AHEAD = 16;

/** Maximum rows per pass, such that the accumulators fit in registers. */
constexpr int MOST_ROWS = 6;

/** Rounds x to integers whose bytes are the three signed digits. */
static INLINE __m512i integers_of(Floats x) {
  // Converts to signed base-256 digits: adding 0x808080 carries where a lower digit is 128 or more; the XOR removes
  // the offset of 128 again.
  const __m512i middle = _mm512_set1_epi32(0x808080);
  return _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), middle), middle);
}

/**
 * A row of x as integers. Memory: per group three arrays of digits, highest digit last, in the order in which weights
 * are unpacked (PLANES); then the scale of each group, then the sum of each group (for the quantization bias).
 */
struct IntegerRow {
  static constexpr int BYTES = DIGITS * GROUP;
  signed char* digits;
  float *scales, *sums;

  INLINE IntegerRow(const float* arranged, int row, int depth) {
    const long groups = depth / GROUP;
    digits = (signed char*)(arranged + row * groups * (BYTES / 4 + 2));
    scales = (float*)(digits + groups * BYTES);
    sums = scales + groups;
  }

  /** Returns the scale of a group with maximum `top`: a power of two, so that scaling is exact. */
  static INLINE float scale_of(float top) {
    const float least = (top > LEAST_TOP ? top : LEAST_TOP) * (1 / MOST_INTEGER);
    unsigned bits;
    __builtin_memcpy(&bits, &least, sizeof bits);
    bits = (bits + 0x7fffff) & 0x7f800000; // rounds up to a power of two
    float scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return scale;
  }

  static INLINE void put_digits(__m512i x, signed char* to) {
    for (int digit = 0; digit < DIGITS; digit++) {
      _mm_storeu_si128((__m128i*)(to + digit * GROUP), _mm512_cvtepi32_epi8(_mm512_srli_epi32(x, 8 * digit)));
    }
  }

  INLINE void put(const float* x, int depth, int bits) const {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int group = 0; group < depth / GROUP; group++, x += GROUP) {
      const Floats a = load(x), b = load(x + LANES);
      scales[group] = scale_of(highest(max(max(a, -a), max(b, -b))));
      sums[group] = sum(a + b);
      const float inverse = 1 / scales[group];
      const __m512i low = integers_of(a * inverse), high = integers_of(b * inverse);
      signed char* const to = digits + group * BYTES;
      put_digits(bits == 4 ? _mm512_permutex2var_epi32(low, even, high) : low, to);
      put_digits(bits == 4 ? _mm512_permutex2var_epi32(low, odd, high) : high, to + GROUP / 2);
    }
  }
};

static_assert(IntegerRow::BYTES / 4 + 2 <= GROUP, "it is no larger than x");

/** Multiplies M rows by N panels that are `apart` columns apart: several memory streams are read faster than one. */
template <class Kind, int M, int N>
static INLINE void integer_tile(const QuantizedProduct& p, int first, int column, long apart) {
  const int groups = p.depth / GROUP, shift = __builtin_ctz(p.group / GROUP);
  const auto panel = [&](int n) { return Panel(p, column + n * apart); };
  const auto row = [&](int m) { return IntegerRow(p.x, first + m, p.depth); };
  Floats sums[M][N] = {};
  for (int group = 0; group < groups; group++) {
    __m512i digits[DIGITS][M][N] = {};
    #pragma GCC unroll 8
    for (int word = 0; word < Kind::WORDS; word++) {
      for (int n = 0; n < N; n++) {
        const unsigned char* const from = panel(n).words + ((long)group * Kind::WORDS + word) * 64;
        __builtin_prefetch(from + WORDS_AHEAD, 0, 2);
        __m512i planes[Kind::PLANES];
        Kind::unpack(_mm512_loadu_si512(from), planes);
        for (int m = 0; m < M; m++) {
          const signed char* const x = row(m).digits + group * IntegerRow::BYTES + word * 4;
          for (int plane = 0; plane < Kind::PLANES; plane++) {
            for (int digit = 0; digit < DIGITS; digit++) {
              int four;
              __builtin_memcpy(&four, x + digit * GROUP + plane * (GROUP / 2), sizeof four);
              digits[digit][m][n] =
                  _mm512_dpbusd_epi32(digits[digit][m][n], planes[plane], _mm512_set1_epi32(four));
            }
          }
        }
      }
    }
    for (int n = 0; n < N; n++) {
      const long at = panel(n).numbers + (long)(group >> shift) * PANEL_COLUMNS;
      Kind::prefetch(p, at + GROUPS_AHEAD * PANEL_COLUMNS);
      const PanelGroup own = Kind::group(p, at);
      for (int m = 0; m < M; m++) {
        const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(digits[2][m][n], 8), digits[1][m][n]);
        const Floats sum = (Floats)_mm512_cvtepi32_ps(high) * 256 + (Floats)_mm512_cvtepi32_ps(digits[0][m][n]);
        sums[m][n] += sum * (own.scale * row(m).scales[group]) + own.bias * row(m).sums[group];
      }
    }
  }
  for (int m = 0; m < M; m++) {
    for (int n = 0; n < N; n++) {
      float* const out = p.out + (first + m) * p.out_stride + column + n * apart;
      store(out, p.beta == 0 ? sums[m][n] : sums[m][n] + p.beta * load(out));
    }
  }
}

/** Not inlined, because the compiler spills addresses if all instances are in one function. */
template <class Kind, int M, int N>
static __attribute__((noinline)) void integer_tiles(const QuantizedProduct& p, int first, int from, int to) {
  const int apart = (to - from) / PANEL_COLUMNS / N * PANEL_COLUMNS;
  for (int column = from; column < from + apart; column += PANEL_COLUMNS) {
    integer_tile<Kind, M, N>(p, first, column, apart);
  }
  for (int column = from + N * apart; column < to; column += PANEL_COLUMNS) integer_tile<Kind, M, 1>(p, first, column, 0);
}

template <class Kind>
static void integer_product(const QuantizedProduct& p, int from, int to) {
  if (p.rows == 1) return integer_tiles<Kind, 1, 4>(p, 0, from, to);
  if (p.rows == 2) return integer_tiles<Kind, 2, 2>(p, 0, from, to);
  // Loops over all rows per panel, so that the panel stays in the L1 cache.
  const int passes = (p.rows + MOST_ROWS - 1) / MOST_ROWS;
  for (int column = from; column < to; column += PANEL_COLUMNS) {
    for (int pass = 0; pass < passes; pass++) {
      const int first = p.rows * pass / passes, end = column + PANEL_COLUMNS;
      switch (p.rows * (pass + 1) / passes - first) {
        case 3: integer_tiles<Kind, 3, 1>(p, first, column, end); break;
        case 4: integer_tiles<Kind, 4, 1>(p, first, column, end); break;
        case 5: integer_tiles<Kind, 5, 1>(p, first, column, end); break;
        case 6: integer_tiles<Kind, 6, 1>(p, first, column, end); break;
      }
    }
  }
}

} // namespace VARIANT
} // namespace mlx_serve
