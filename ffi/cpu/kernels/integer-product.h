// Products of few rows with quantized weights by integers (VNNI): a group of x becomes integers of 24 bits, three digits of 8,
// and what their sums are multiplied with, so that all is as exact as float32. Part of kernels.cpp.
#pragma once

#include "quantized-sums.h"

namespace mlx_serve {
namespace VARIANT {

constexpr int DIGITS = 3;

/** The largest integer whose digits of -128 to 127 all fit. */
constexpr float MOST_INTEGER = 127 * 65536;

/** Where all numbers are smaller they are 0. */
constexpr float LEAST_TOP = 1e-30f;

/** So many groups' scales are a vector. */
constexpr int SCALES = LANES;

/** How far ahead a column's bytes and scales are prefetched. */
constexpr int BITS_AHEAD = 1024, SCALES_AHEAD = 64;

/** More rows take no longer as floats. */
constexpr int MOST_INTEGER_ROWS = 2;

/** Of GROUP numbers of a row of x: their digits, their scale and their sum, and for rows of LEAST_INTEGERS what fills vectors. */
constexpr int LEAST_INTEGERS = 256, INTEGERS = DIGITS * GROUP / 4 + 2 + 14;

static INLINE bool takes_integers(const QuantizedProduct& p) {
  return p.rows <= MOST_INTEGER_ROWS && p.biases && p.depth >= LEAST_INTEGERS;
}

/** Integers, their digits in the bytes of a lane. */
static INLINE __m512i integers_of(Floats x) {
  // Each digit above the others carries what these are short of.
  const __m512i middle = _mm512_set1_epi32(0x808080);
  return _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), middle), middle);
}

/**
 * A row of x as integers. Weights are read 64 bytes at a time, a block; for each there are the digits, the highest last,
 * and of 4 bits first those of the low ones of a byte. Then come the scales and sums of all groups.
 */
template <int BITS>
struct Integers {
  static constexpr int BLOCK = 64 * 8 / BITS, GROUPS = BLOCK / GROUP, PLANES = 8 / BITS;
  static constexpr long BYTES = 64 * PLANES * DIGITS;
  const signed char* digits;
  const float *scales, *sums;

  INLINE Integers(const float* arranged, int row, int depth) {
    const long blocks = (depth + BLOCK - 1) / BLOCK, groups = (depth / GROUP + SCALES - 1) / SCALES * SCALES;
    digits = (const signed char*)arranged + row * (blocks * BYTES + 2 * groups * (long)sizeof(float));
    scales = (const float*)(digits + blocks * BYTES);
    sums = scales + groups;
  }

  /** The digits of LANES integers. */
  static INLINE void put_digits(__m512i x, signed char* to) {
    for (int digit = 0; digit < DIGITS; digit++) {
      _mm_storeu_si128((__m128i*)(to + digit * PLANES * 64), _mm512_cvtepi32_epi8(_mm512_srli_epi32(x, 8 * digit)));
    }
  }

  void put(const float* x, int depth) const {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    auto* const scale = (float*)scales;
    auto* const total = (float*)sums;
    const int groups = depth / GROUP;
    for (int group = 0; group < groups; group++, x += GROUP) {
      const Floats a = load(x), b = load(x + LANES);
      const Floats most = max(max(a, -a), max(b, -b));
      const float top = highest(most) > LEAST_TOP ? highest(most) : LEAST_TOP;
      scale[group] = top / MOST_INTEGER;
      total[group] = sum(a + b);
      const float inverse = MOST_INTEGER / top;
      __m512i low = integers_of(a * inverse), high = integers_of(b * inverse);
      signed char* const to = (signed char*)digits + group / GROUPS * BYTES + group % GROUPS * (GROUP / PLANES);
      if constexpr (BITS == 4) {
        put_digits(_mm512_permutex2var_epi32(low, even, high), to);
        put_digits(_mm512_permutex2var_epi32(low, odd, high), to + 64);
      } else {
        put_digits(low, to);
        put_digits(high, to + LANES);
      }
    }
    for (int group = groups; group % SCALES != 0; group++) scale[group] = total[group] = 0;
  }
};

template <int BITS>
static void arrange_as_integers(const float* const* x, int first, const QuantizedProduct& p, float* arranged) {
  for (int row = first; row < p.rows; row++) Integers<BITS>(arranged, row, p.depth).put(x[row - first], p.depth);
}

/** A block's weights, and their sums with digits of x. */
template <int BITS>
struct Weights;

template <>
struct Weights<4> {
  __m512i low, high;

  INLINE Weights(__m512i bits) {
    const __m512i nibble = _mm512_set1_epi8(15);
    low = _mm512_and_si512(bits, nibble);
    high = _mm512_and_si512(_mm512_srli_epi16(bits, 4), nibble);
  }

  /** 8 products of 4 and 24 bits are less than 31. */
  INLINE __m512 sums(const signed char* digits) const {
    const auto* x = (const __m512i*)digits;
    __m512i sum = _mm512_setzero_si512();
    for (int digit = DIGITS - 1; digit >= 0; digit--) {
      sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), low, _mm512_loadu_si512(x + 2 * digit));
      sum = _mm512_dpbusd_epi32(sum, high, _mm512_loadu_si512(x + 2 * digit + 1));
    }
    return _mm512_cvtepi32_ps(sum);
  }
};

template <>
struct Weights<8> {
  __m512i bytes;

  INLINE Weights(__m512i bits) : bytes(bits) {}

  /** With all digits they would not fit 32 bits. */
  INLINE __m512 sums(const signed char* digits) const {
    const auto* x = (const __m512i*)digits;
    const __m512i zero = _mm512_setzero_si512();
    const __m512i high = _mm512_dpbusd_epi32(zero, bytes, _mm512_loadu_si512(x + 2));
    __m512i low = _mm512_dpbusd_epi32(zero, bytes, _mm512_loadu_si512(x + 1));
    low = _mm512_dpbusd_epi32(_mm512_slli_epi32(low, 8), bytes, _mm512_loadu_si512(x));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65536), _mm512_cvtepi32_ps(low));
  }
};

/** N columns that are `apart` from each other: memory that is read in several places at a time is read faster. */
template <int BITS, int M, int N>
static INLINE void integer_tile(const QuantizedProduct& p, int column, long apart) {
  typedef Integers<BITS> Row;
  const long row_bytes = (long)p.depth * BITS / 8, row_groups = p.depth / p.group;
  const int groups = p.depth / GROUP, shift = __builtin_ctz(p.group / GROUP);
  const unsigned char* const w = p.w + column * row_bytes;
  const float* const scales = (const float*)p.scales + column * row_groups;
  const float* const biases = p.biases + column * row_groups;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i spread = _mm512_srli_epi32(lanes, shift);
  const __m512i widened = _mm512_srli_epi32(lanes, BITS == 4 ? 2 : 3);
  Floats parts[M * N + LANES - 1] = {};
  for (int first = 0; first < groups; first += SCALES) {
    const int some = groups - first < SCALES ? groups - first : SCALES;
    const __mmask16 shared = (1u << (some >> shift)) - 1;
    __m512 scaled[M * N];
    for (int n = 0; n < N; n++) {
      const long at = n * apart * row_groups + (first >> shift);
      __builtin_prefetch(scales + at + SCALES_AHEAD, 0, 2);
      __builtin_prefetch(biases + at + SCALES_AHEAD, 0, 2);
      const __m512 scale = _mm512_permutexvar_ps(spread, _mm512_maskz_loadu_ps(shared, scales + at));
      const __m512 bias = _mm512_permutexvar_ps(spread, _mm512_maskz_loadu_ps(shared, biases + at));
      for (int m = 0; m < M; m++) {
        const Row x(p.x, m, p.depth);
        scaled[m * N + n] = _mm512_mul_ps(scale, _mm512_loadu_ps(x.scales + first));
        parts[m * N + n] += (Floats)bias * load(x.sums + first);
      }
    }
    for (int group = 0; group < some; group += Row::GROUPS) {
      const long block = (first + group) / Row::GROUPS;
      const int left = some - group;
      const __mmask16 words = left < Row::GROUPS ? (1u << left * (LANES / Row::GROUPS)) - 1 : 0xffff;
      const __m512i own = _mm512_add_epi32(widened, _mm512_set1_epi32(group));
      for (int n = 0; n < N; n++) {
        const unsigned char* bits = w + n * apart * row_bytes + block * 64;
        __builtin_prefetch(bits + BITS_AHEAD, 0, 2);
        const Weights<BITS> weights(_mm512_maskz_loadu_epi32(words, bits));
        for (int m = 0; m < M; m++) {
          const __m512 sums = weights.sums(Row(p.x, m, p.depth).digits + block * Row::BYTES);
          parts[m * N + n] += (Floats)sums * (Floats)_mm512_permutexvar_ps(own, scaled[m * N + n]);
        }
      }
    }
  }
  put_sums<M, N>(p, parts, column, apart);
}

template <int BITS, int M>
static __attribute__((noinline)) void integer_tiles(const QuantizedProduct& p, int from, int to) {
  const int apart = (to - from) / COLUMNS;
  for (int i = 0; i < apart; i++) integer_tile<BITS, M, COLUMNS>(p, from + i, apart);
  for (int column = from + COLUMNS * apart; column < to; column++) integer_tile<BITS, M, 1>(p, column, 0);
}

template <int BITS>
static void integer_product(const QuantizedProduct& p, int from, int to) {
  if (p.rows == 1) integer_tiles<BITS, 1>(p, from, to);
  else integer_tiles<BITS, 2>(p, from, to);
}

} // namespace VARIANT
} // namespace mlx_serve
