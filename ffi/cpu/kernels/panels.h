// Loads quantized matrices in panels: one vector load gets a word, a scale or a bias of each of the panel's 16
// columns. Part of kernels.cpp.
#pragma once

#include "quantized-weights.h"

namespace mlx_serve {
namespace VARIANT {

static_assert(PANEL_COLUMNS == LANES);

/** Loads one scale or bias of each column, as floats. */
static INLINE Floats load_numbers(const void* from, Numbers numbers, long index) {
  if (numbers == Numbers::float32) return load((const float*)from + index);
  const __m256i halves = _mm256_loadu_si256((const __m256i*)((const short*)from + index));
  if (numbers == Numbers::float16) return _mm512_cvtph_ps(halves);
  return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

static INLINE void prefetch_numbers(const void* from, Numbers numbers, long index) {
  __builtin_prefetch((const char*)from + (numbers == Numbers::float32 ? 4 : 2) * index, 0, 2);
}

/** Returns 2^(x - 127) for the 8-bit exponent x of each column. */
static INLINE Floats load_powers(const void* exponents, long index) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)((const char*)exponents + index));
  const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  return (Floats)_mm512_max_epu32(shifted, _mm512_set1_epi32(1 << 22));
}

/** The scale and bias of one quantization group in each column: weights are scale * q + bias. */
struct PanelGroup {
  Floats scale, bias;
};

/** Integer weights of SIZE bits. A byte holds PLANES adjacent weights of a row. MOST is the largest q. */
template <int SIZE>
struct PanelInts {
  static constexpr int BITS = SIZE, PLANES = 8 / BITS, WORDS = GROUP * BITS / 32;
  static constexpr float MOST = (1 << BITS) - 1;

  /** Returns the 16 values of a 4-bit q. */
  static INLINE Floats levels() {
    return Affine<4>::levels();
  }

  static INLINE PanelGroup group(const QuantizedProduct& p, long index) {
    return {load_numbers(p.scales, p.numbers, index), load_numbers(p.biases, p.numbers, index)};
  }

  static INLINE void prefetch(const QuantizedProduct& p, long index) {
    prefetch_numbers(p.scales, p.numbers, index);
    prefetch_numbers(p.biases, p.numbers, index);
  }

  static INLINE void unpack(__m512i words, __m512i* planes) {
    if constexpr (BITS == 8) {
      planes[0] = words;
    } else {
      const __m512i nibble = _mm512_set1_epi8(15);
      planes[0] = _mm512_and_si512(words, nibble);
      planes[1] = _mm512_and_si512(_mm512_srli_epi16(words, 4), nibble);
    }
  }
};

/** mxfp4 weights as integers: q = 12 + 2 * the 4-bit float. */
struct PanelFloats {
  static constexpr int BITS = 4, PLANES = 2, WORDS = 4;
  static constexpr float MOST = 24;

  static INLINE Floats levels() {
    return Mxfp4::levels() * 2 + 12;
  }

  static INLINE PanelGroup group(const QuantizedProduct& p, long index) {
    const Floats power = load_powers(p.scales, index);
    return {power / 2, power * -6};
  }

  static INLINE void prefetch(const QuantizedProduct& p, long index) {
    __builtin_prefetch((const char*)p.scales + index, 0, 2);
  }

  static INLINE void unpack(__m512i words, __m512i* planes) {
    const __m512i bytes = _mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)levels())));
    PanelInts<4>::unpack(words, planes);
    for (int i = 0; i < PLANES; i++) planes[i] = _mm512_shuffle_epi8(bytes, planes[i]);
  }
};

/** Calls `use` with an object of type PanelInts or PanelFloats, by the weights' format. */
template <class Use>
static INLINE void with_kind(const QuantizedProduct& p, const Use& use) {
  if (!p.biases) use(PanelFloats{});
  else if (p.bits == 4) use(PanelInts<4>{});
  else use(PanelInts<8>{});
}

/** A panel: the address of its words, and the index of its first scale. */
struct Panel {
  const unsigned char* words;
  long numbers;

  INLINE Panel(const QuantizedProduct& p, int column)
      : words(p.w + (long)column * p.depth * p.bits / 8), numbers((long)column * (p.depth / p.group)) {}
};

} // namespace VARIANT
} // namespace mlx_serve
