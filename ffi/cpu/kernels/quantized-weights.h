// Dequantizes groups of 4- or 8-bit weights: affine and mxfp4. Part of kernels.cpp.
#pragma once

#include "../kernels.h"
#include "vectors.h"

namespace mlx_serve {
namespace VARIANT {

/** Prefetch distance of the matrix, in bytes. */
constexpr int AHEAD = 4096;

#if LANES == 8
/** Returns the eight nibbles of a word, lowest first. */
static INLINE Ints nibbles(const unsigned char* from) {
  typedef unsigned Words __attribute__((vector_size(LANES * 4)));
  unsigned word;
  __builtin_memcpy(&word, from, sizeof word);
  return (Ints)((word - Words{}) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15);
}
#endif

#if LANES == 16
/** A group of 4-bit weights, kept as its 16 different values in one register: a permute looks the weights up. */
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

/** A group of affine weights: scale * q + bias. */
template <int SIZE>
struct Affine {
  typedef float Scale;
  static constexpr int BITS = SIZE;
  Floats scale, bias;

  INLINE Affine(const float* scale, const float* bias) : scale(all(*scale)), bias(all(*bias)) {}

  /** Dequantizes LANES weights. */
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
      : Known{levels() * *scale + *bias} {}

  static INLINE Floats levels() {
    return Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  }
};
#endif

/** Returns 2^(x - 127). */
static INLINE float power_of_two(unsigned char x) {
  const unsigned bits = x == 0 ? 1u << 22 : (unsigned)x << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power;
}

/** A group of mxfp4 weights: a power of two times 4-bit floats, without biases. */
#if LANES == 16
struct Mxfp4 : Known {
  typedef unsigned char Scale;

  INLINE Mxfp4(const unsigned char* scale, const float*) : Known{levels() * power_of_two(*scale)} {}

  static INLINE Floats levels() {
    return Floats{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
  }
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
    // The permute uses only the low three bits of each lane, so the fourth bit, the sign, is applied separately.
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

} // namespace VARIANT
} // namespace mlx_serve
