// Divides the columns of a product among the threads of the pool.
#pragma once

#include <algorithm>
#include <climits>

#include "pool.h"

namespace mlx_serve {

/** Products with fewer multiplications run on the calling thread. */
constexpr long SMALL = 1 << 16;

/** A product of up to READING_ROWS rows is memory-bound: each thread's piece should have at least READ weights. */
constexpr int READING_ROWS = 2;
constexpr long READ = 1 << 18;

/** Returns the maximum number of pieces per thread into which a product's columns are divided. */
inline int pieces_each(int columns, int rows, int depth, int threads) {
  if (rows > READING_ROWS) return 4;
  return static_cast<long>(columns) * depth < 2 * READ * threads ? 1 : 2;
}

/** Columns per piece are a multiple of this, the width of the kernels' vectors and tiles. */
constexpr int COLUMN_STEP = 16;

/**
 * Returns the number of columns per piece that gives the busiest thread the fewest columns. Among equal choices the
 * smallest piece wins, so that idle threads can take more pieces from a slow thread.
 */
inline int piece_of(int columns, int rows, int depth, int threads) {
  const int steps = (columns + COLUMN_STEP - 1) / COLUMN_STEP;
  int piece = steps, least = INT_MAX;
  for (int each = pieces_each(columns, rows, depth, threads); each > 0; each--) {
    const int some = (steps + each * threads - 1) / (each * threads);
    const int pieces = (steps + some - 1) / some;
    const int most = some * ((pieces + threads - 1) / threads);
    if (most < least) {
      least = most;
      piece = some;
    }
  }
  return piece * COLUMN_STEP;
}

/** Calls `some(from, to)` for pieces of a product's columns, on the pool. A product below SMALL is one piece. */
template <class Some>
void each_columns(int columns, int rows, int depth, const Some& some) {
  const bool is_small = static_cast<long>(rows) * columns * depth < SMALL;
  const int each = is_small ? columns : piece_of(columns, rows, depth, mlx_serve_pool_threads());
  parallel((columns + each - 1) / each, [&](int i) {
    some(i * each, std::min(columns, (i + 1) * each));
  });
}

} // namespace mlx_serve
