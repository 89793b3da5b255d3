// Products of few rows: each row of w is read from memory once and used for all rows of x. Part of kernels.cpp.
#pragma once

#include "../kernels.h"
#include "vectors.h"

namespace mlx_serve {
namespace VARIANT {

template <int... I>
struct Indices {};

template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};

template <int... I>
struct MakeIndices<0, I...> {
  typedef Indices<I...> all;
};

/**
 * Does one step of summing each of LANES vectors: in every SIZE lanes, the lower half gets the sum of a's two halves,
 * the upper half that of b's. Repeating it for all powers of two sums each vector.
 */
template <int SIZE, int... I>
static INLINE Floats folded(Floats a, Floats b, Indices<I...>) {
  // In __builtin_shufflevector the lanes of b are numbered from LANES on.
  return __builtin_shufflevector(
             a, b, (I % SIZE < SIZE / 2 ? I : I - SIZE / 2 + LANES)...) +
      __builtin_shufflevector(a, b, (I % SIZE < SIZE / 2 ? I + SIZE / 2 : I + LANES)...);
}

template <int SIZE>
static INLINE Floats fold(const Floats* x) {
  if constexpr (SIZE == 1) {
    return *x;
  } else {
    Floats half[SIZE / 2];
    for (int i = 0; i < SIZE / 2; i++) {
      half[i] = folded<SIZE>(x[i], x[i + SIZE / 2], typename MakeIndices<LANES>::all{});
    }
    return fold<SIZE / 2>(half);
  }
}

/** Sums the lanes of each of LANES vectors: lane i of the result is the sum of x[i]. */
static INLINE Floats sums(const Floats* x) {
  return fold<LANES>(x);
}

constexpr int COLUMNS = 4;

#if defined(__AVX512F__)
constexpr int ROWS = 6;
#elif defined(__aarch64__)
constexpr int ROWS = 4;
#else
constexpr int ROWS = 3;
#endif

/** A tile's position and its range of the depth. `out` already has the sums over the depth below `from`. */
struct Slice {
  int row, column, from, to;
};

/** Multiplies M rows of x by N rows of w; the accumulators fit in registers. */
template <int M, int N>
static INLINE void tile(const Product& p, Slice at) {
  const float* x = p.x + at.row * p.x_stride;
  const float* w = p.w + at.column * p.w_stride;
  Floats parts[M * N + LANES - 1] = {};
  int i = at.from;
  for (; i + LANES <= at.to; i += LANES) {
    Floats xs[M];
    for (int m = 0; m < M; m++) xs[m] = load(x + m * p.x_stride + i);
    for (int n = 0; n < N; n++) {
      const Floats weights = load(w + n * p.w_stride + i);
      // Prefetches the next rows; the hardware prefetcher would start only when they are first read.
      __builtin_prefetch(w + (n + N) * p.w_stride + i, 0, 2);
      for (int m = 0; m < M; m++) parts[m * N + n] += weights * xs[m];
    }
  }
  float whole[M * N + LANES - 1];
  for (int k = 0; k < M * N; k += LANES) store(whole + k, sums(parts + k));
  for (; i < at.to; i++) {
    for (int m = 0; m < M; m++) {
      for (int n = 0; n < N; n++) whole[m * N + n] += x[m * p.x_stride + i] * w[n * p.w_stride + i];
    }
  }
  const float before = at.from == 0 ? p.beta : 1;
  for (int m = 0; m < M; m++) {
    typedef float Some __attribute__((vector_size(N * 4)));
    float* out = p.out + (at.row + m) * p.out_stride + at.column;
    Some sum, old;
    __builtin_memcpy(&sum, whole + m * N, sizeof sum);
    sum *= p.alpha;
    if (before != 0) {
      __builtin_memcpy(&old, out, sizeof old);
      sum += old * before;
    }
    __builtin_memcpy(out, &sum, sizeof sum);
  }
}

template <int M>
static INLINE void tiles(const Product& p, Slice at, int columns) {
  for (; columns >= COLUMNS; columns -= COLUMNS, at.column += COLUMNS) tile<M, COLUMNS>(p, at);
  for (; columns > 0; columns--, at.column++) tile<M, 1>(p, at);
}

/** Cache blocking: PANEL rows of w, DEPTH of each, stay in L1 while all rows of x use them. */
constexpr int PANEL = 3 * COLUMNS, DEPTH = 640;

static void product(const Product& p, int from, int to) {
  const int slices = p.rows > ROWS ? (p.depth + DEPTH - 1) / DEPTH : 1;
  const int depth = ((p.depth + slices - 1) / slices + LANES - 1) / LANES * LANES;
  for (int column = from; column < to; column += PANEL) {
    const int columns = to - column < PANEL ? to - column : PANEL;
    for (int start = 0; start < p.depth; start += depth) {
      const int end = start + depth < p.depth ? start + depth : p.depth;
      int row = 0;
      for (; row + ROWS <= p.rows; row += ROWS) tiles<ROWS>(p, {row, column, start, end}, columns);
      switch (p.rows - row) {
        case 5: tiles<5>(p, {row, column, start, end}, columns); break;
        case 4: tiles<4>(p, {row, column, start, end}, columns); break;
        case 3: tiles<3>(p, {row, column, start, end}, columns); break;
        case 2: tiles<2>(p, {row, column, start, end}, columns); break;
        case 1: tiles<1>(p, {row, column, start, end}, columns); break;
      }
    }
  }
}

} // namespace VARIANT
} // namespace mlx_serve
