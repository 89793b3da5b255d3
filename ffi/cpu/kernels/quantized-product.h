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
/** A group has 16 different weights, as many as there are lanes: each lane looks up one by 4 bits. */
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

template <int BITS, int M, int N>
static INLINE void quantized_tile(const QuantizedProduct& p, int column) {
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
      const unsigned char* bits = w + n * row_bytes;
      const Group<BITS> own(scales[n * groups + group], biases[n * groups + group]);
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
template <int BITS, int M>
static __attribute__((noinline)) void quantized_tiles(const QuantizedProduct& p, int from, int to) {
  for (; from + COLUMNS <= to; from += COLUMNS) quantized_tile<BITS, M, COLUMNS>(p, from);
  for (; from < to; from++) quantized_tile<BITS, M, 1>(p, from);
}

/** start..end of the depth of some columns, which are `stride` apart in `out`. */
template <int BITS>
static INLINE void dequantize_some(
    const QuantizedProduct& p, int from, int to, int start, int end, float* out, long stride) {
  const long row_bytes = (long)p.depth * BITS / 8, groups = p.depth / p.group;
  const int shift = __builtin_ctz(p.group);
  for (int column = from; column < to; column++, out += stride) {
    for (unsigned i = start; i < (unsigned)end; i += GROUP) {
      const unsigned char* bits = p.w + column * row_bytes + i * BITS / 8;
      const long group = column * groups + (i >> shift);
      const Group<BITS> own(p.scales[group], p.biases[group]);
      __builtin_prefetch(bits + AHEAD, 0, 2);
      for (int j = 0; j < GROUP; j += LANES) {
        store(out + i - start + j, own.weights(bits + j * BITS / 8));
      }
    }
  }
}

template <int BITS>
static INLINE void quantized_columns(const QuantizedProduct& p, int from, int to) {
  switch (p.rows) {
    case 1: return quantized_tiles<BITS, 1>(p, from, to);
    case 2: return quantized_tiles<BITS, 2>(p, from, to);
    case 3: return quantized_tiles<BITS, 3>(p, from, to);
#if LANES == 16
    case 4: return quantized_tiles<BITS, 4>(p, from, to);
    case 5: return quantized_tiles<BITS, 5>(p, from, to);
    case 6: return quantized_tiles<BITS, 6>(p, from, to);
#endif
  }
  float panel[PANEL * DEPTH] __attribute__((aligned(64)));
  const int slices = (p.depth + DEPTH - 1) / DEPTH;
  const int depth = ((p.depth + slices - 1) / slices + GROUP - 1) / GROUP * GROUP;
  for (int column = from; column < to; column += PANEL) {
    const int end = column + PANEL < to ? column + PANEL : to;
    for (int start = 0; start < p.depth; start += depth) {
      const int some = start + depth < p.depth ? depth : p.depth - start;
      dequantize_some<BITS>(p, column, end, start, start + some, panel, some);
      const float before = start == 0 ? p.beta : 1;
      const Product part = {p.rows, some, p.x + start,    p.depth,     panel, some,
                            1,      before, p.out + column, p.out_stride};
      product(part, 0, end - column);
    }
  }
}

static void quantized_product(const QuantizedProduct& p, int from, int to) {
  if (p.bits == 4) quantized_columns<4>(p, from, to);
  else quantized_columns<8>(p, from, to);
}

static void dequantize(const QuantizedProduct& p, int from, int to, float* out) {
  if (p.bits == 4) dequantize_some<4>(p, from, to, 0, p.depth, out, p.depth);
  else dequantize_some<8>(p, from, to, 0, p.depth, out, p.depth);
}

} // namespace VARIANT
} // namespace mlx_serve
