// Products with quantized weights: these are dequantized in registers, or for more rows into the L1 cache. Part of
// kernels.cpp.
#pragma once

#include "product.h"

namespace mlx_serve {
namespace VARIANT {

/** The fewest weights that share a scale. */
constexpr int GROUP = 32;

/** How many bytes ahead the matrix is prefetched. */
constexpr int AHEAD = 4096;

#if LANES == 8
/** Of a word, the lowest first. */
static INLINE Ints nibbles(const unsigned char* from) {
  typedef unsigned Words __attribute__((vector_size(LANES * 4)));
  unsigned word;
  __builtin_memcpy(&word, from, sizeof word);
  return (Ints)((word - Words{}) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15);
}
#endif

#if LANES == 16
/** A group of 4 bits has 16 different weights, as many as there are lanes: each lane looks up one. */
struct Known {
  static constexpr int BITS = 4;
  Floats known;

  INLINE Floats weights(const unsigned char* from) const {
    long long words;
    __builtin_memcpy(&words, from, sizeof words);
    const __m512i shifts =
        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(words), shifts), known);
  }
};
#endif

/** The weights of a group: scale * q + bias. */
template <int SIZE>
struct Affine {
  typedef float Scale;
  static constexpr int BITS = SIZE;
  Floats scale, bias;

  INLINE Affine(const float* scale, const float* bias) : scale(all(*scale)), bias(all(*bias)) {}

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
      return __builtin_convertvector(nibbles(from), Floats);
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
template <>
struct Affine<4> : Known {
  typedef float Scale;

  INLINE Affine(const float* scale, const float* bias)
      : Known{Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * *scale + *bias} {}
};
#endif

/** 2 to the power of x - 127. */
static INLINE float power_of_two(unsigned char x) {
  const unsigned bits = x == 0 ? 1u << 22 : (unsigned)x << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power;
}

/** The weights of a group of mxfp4: a power of two times floats of 4 bits. There are no biases. */
#if LANES == 16
struct Mxfp4 : Known {
  typedef unsigned char Scale;

  INLINE Mxfp4(const unsigned char* scale, const float*)
      : Known{Floats{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6} * power_of_two(*scale)} {}
};
#else
struct Mxfp4 {
  typedef unsigned char Scale;
  static constexpr int BITS = 4;
#if LANES == 8
  Floats positive;

  INLINE Mxfp4(const unsigned char* scale, const float*)
      : positive(Floats{0, 0.5, 1, 1.5, 2, 3, 4, 6} * power_of_two(*scale)) {}

  INLINE Floats weights(const unsigned char* from) const {
    // Three bits of each are looked at, and the fourth is the sign.
    const Ints which = nibbles(from);
    return (Floats)((Ints)_mm256_permutevar8x32_ps(positive, (__m256i)which) ^ (which & 8) << 28);
  }
#else
  float scale;

  INLINE Mxfp4(const unsigned char* scale, const float*) : scale(power_of_two(*scale)) {}

  INLINE Floats weights(const unsigned char* from) const {
    static constexpr float levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
    return Floats{levels[from[0] & 15], levels[from[0] >> 4], levels[from[1] & 15], levels[from[1] >> 4]} * scale;
  }
#endif
};
#endif

/** With 16 lanes two words are dequantized at once, their nibbles interleaved. */
static void arrange(const float* x, int depth, int bits, float* out) {
  if (LANES < 16 || bits != 4) {
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

template <class Group, int M, int N>
static INLINE void quantized_tile(const QuantizedProduct& p, int column) {
  constexpr int BITS = Group::BITS;
  const long row_bytes = (long)p.depth * BITS / 8, groups = p.depth / p.group;
  const float* x = p.x;
  const unsigned char* w = p.w + column * row_bytes;
  const auto* scales = (const typename Group::Scale*)p.scales + column * groups;
  const float* biases = p.biases + column * groups;
  const int shift = __builtin_ctz(p.group);
  Floats parts[M * N + LANES - 1] = {};
  for (long i = 0; i < p.depth; i += GROUP, w += GROUP * BITS / 8) {
    const long group = i >> shift;
    for (int n = 0; n < N; n++) {
      const unsigned char* bits = w + n * row_bytes;
      const Group own(scales + n * groups + group, biases + n * groups + group);
      __builtin_prefetch(bits + AHEAD, 0, 2);
      for (int j = 0; j < GROUP; j += LANES) {
        const Floats weights = own.weights(bits + j * BITS / 8);
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

/** Not inlined: with all instances in one function the addresses are spilled. */
template <class Group, int M>
static __attribute__((noinline)) void quantized_tiles(const QuantizedProduct& p, int from, int to) {
  for (; from + COLUMNS <= to; from += COLUMNS) quantized_tile<Group, M, COLUMNS>(p, from);
  for (; from < to; from++) quantized_tile<Group, M, 1>(p, from);
}

/** start..end of the depth of some columns, which are `stride` apart in `out`. */
template <class Group>
static INLINE void dequantize_some(
    const QuantizedProduct& p, int from, int to, int start, int end, float* out, long stride) {
  constexpr int BITS = Group::BITS;
  const auto* scales = (const typename Group::Scale*)p.scales;
  const long row_bytes = (long)p.depth * BITS / 8, groups = p.depth / p.group;
  const int shift = __builtin_ctz(p.group);
  for (int column = from; column < to; column++, out += stride) {
    for (unsigned i = start; i < (unsigned)end; i += GROUP) {
      const unsigned char* bits = p.w + column * row_bytes + i * BITS / 8;
      const long group = column * groups + (i >> shift);
      const Group own(scales + group, p.biases + group);
      __builtin_prefetch(bits + AHEAD, 0, 2);
      for (int j = 0; j < GROUP; j += LANES) {
        store(out + i - start + j, own.weights(bits + j * BITS / 8));
      }
    }
  }
}

template <class Group>
static INLINE void quantized_columns(const QuantizedProduct& p, int from, int to) {
  switch (p.rows) {
    case 1: return quantized_tiles<Group, 1>(p, from, to);
    case 2: return quantized_tiles<Group, 2>(p, from, to);
    case 3: return quantized_tiles<Group, 3>(p, from, to);
#if LANES == 16
    case 4: return quantized_tiles<Group, 4>(p, from, to);
    case 5: return quantized_tiles<Group, 5>(p, from, to);
    case 6: return quantized_tiles<Group, 6>(p, from, to);
#endif
  }
  float panel[PANEL * DEPTH] __attribute__((aligned(64)));
  const int slices = (p.depth + DEPTH - 1) / DEPTH;
  const int depth = ((p.depth + slices - 1) / slices + GROUP - 1) / GROUP * GROUP;
  for (int column = from; column < to; column += PANEL) {
    const int end = column + PANEL < to ? column + PANEL : to;
    for (int start = 0; start < p.depth; start += depth) {
      const int some = start + depth < p.depth ? depth : p.depth - start;
      dequantize_some<Group>(p, column, end, start, start + some, panel, some);
      const float before = start == 0 ? p.beta : 1;
      const Product part = {p.rows, some, p.x + start,    p.depth,     panel, some,
                            1,      before, p.out + column, p.out_stride};
      product(part, 0, end - column);
    }
  }
}

static void quantized_product(const QuantizedProduct& p, int from, int to) {
  if (!p.biases) quantized_columns<Mxfp4>(p, from, to);
  else if (p.bits == 4) quantized_columns<Affine<4>>(p, from, to);
  else quantized_columns<Affine<8>>(p, from, to);
}

static void dequantize(const QuantizedProduct& p, int from, int to, float* out) {
  if (!p.biases) dequantize_some<Mxfp4>(p, from, to, 0, p.depth, out, p.depth);
  else if (p.bits == 4) dequantize_some<Affine<4>>(p, from, to, 0, p.depth, out, p.depth);
  else dequantize_some<Affine<8>>(p, from, to, 0, p.depth, out, p.depth);
}

} // namespace VARIANT
} // namespace mlx_serve
