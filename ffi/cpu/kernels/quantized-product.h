// Multiplies by quantized weights, dequantized in registers or, for more rows, into L1. Part of kernels.cpp.
#pragma once

#include "product.h"
#include "quantized-weights.h"
#if defined(__AVX512VNNI__)
#include "integer-product.h"
#endif

namespace mlx_serve {
namespace VARIANT {

#if defined(__AVX512VNNI__)
constexpr bool TAKES_PANELS = true;
#else
constexpr bool TAKES_PANELS = false;
#endif

/**
 * Copies rows of x for a plain matrix; for one in panels, converts them to integers (VNNI only). With 16 lanes and 4
 * bits, x is interleaved, because two words of weights are dequantized together.
 */
static void arrange(const float* const* x, int first, const QuantizedProduct& p, float* arranged) {
  const int rows = p.rows, depth = p.depth;
#if defined(__AVX512VNNI__)
  if (p.in_panels) {
    for (int row = first; row < rows && row < first + ARRANGED_ROWS; row++) {
      IntegerRow(arranged, row, depth).put(x[row - first], depth, p.bits);
    }
    return;
  }
#endif
  for (int row = first; row < rows && row < first + ARRANGED_ROWS; row++, x++) {
    float* const out = arranged + (long)row * depth;
    if (LANES < 16 || p.bits != 4) {
      __builtin_memcpy(out, *x, depth * sizeof(float));
      continue;
    }
    for (int i = 0; i < depth; i += 16) {
      for (int j = 0; j < 8; j++) {
        out[i + 2 * j] = (*x)[i + j];
        out[i + 2 * j + 1] = (*x)[i + j + 8];
      }
    }
  }
}

/** Reduces the accumulators `parts` of M rows by N columns and writes them to `out`. */
template <int M, int N>
static INLINE void put_sums(const QuantizedProduct& p, const Floats* parts, int column) {
  float whole[M * N + LANES - 1];
  for (int k = 0; k < M * N; k += LANES) store(whole + k, sums(parts + k));
  for (int m = 0; m < M; m++) {
    float* out = p.out + m * p.out_stride + column;
    for (int n = 0; n < N; n++, out++) {
      *out = p.beta == 0 ? whole[m * N + n] : whole[m * N + n] + p.beta * *out;
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
  const float* biases = (const float*)p.biases + column * groups;
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
  put_sums<M, N>(p, parts, column);
}

/** Not inlined, because the compiler spills addresses if all instances are in one function. */
template <class Group, int M>
static __attribute__((noinline)) void quantized_tiles(const QuantizedProduct& p, int from, int to) {
  for (; from + COLUMNS <= to; from += COLUMNS) quantized_tile<Group, M, COLUMNS>(p, from);
  for (; from < to; from++) quantized_tile<Group, M, 1>(p, from);
}

/** Dequantizes depth start..end of columns from..to; columns are `stride` apart in `out`. */
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
      const Group own(scales + group, (const float*)p.biases + group);
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
#if defined(__AVX512VNNI__)
  if (p.in_panels) return with_kind(p, [&](auto kind) { integer_product<decltype(kind)>(p, from, to); });
#endif
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
