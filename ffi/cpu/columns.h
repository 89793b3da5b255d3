// How the columns of a product are divided among the pool's threads.
#pragma once

#include <algorithm>
#include <climits>

#include "pool.h"

namespace mlx_serve {

/** Products below this many multiplications are not worth another thread. */
constexpr long SMALL = 1 << 16;

/** With so few rows a product waits for its weights, which are read fastest in pieces of at least so many. */
constexpr int READING_ROWS = 2;
constexpr long READ = 1 << 18;

/** How many pieces of a product are a thread's. */
inline int pieces_each(int columns, int rows, int depth, int threads) {
  if (rows > READING_ROWS) return 4;
  return static_cast<long>(columns) * depth < 2 * READ * threads ? 1 : 2;
}

/** A piece is a whole number of so many columns: vectors and tiles of kernels take as many. */
constexpr int COLUMN_STEP = 16;

/**
 * How many columns are a piece, so that no thread has more of them than need be. Of equals the smallest: where a thread is
 * late the others take more of them.
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

/** Calls for all columns of a product, some at a time. */
template <class Some>
void each_columns(int columns, int rows, int depth, const Some& some) {
  const bool is_small = static_cast<long>(rows) * columns * depth < SMALL;
  const int each = is_small ? columns : piece_of(columns, rows, depth, mlx_serve_pool_threads());
  parallel((columns + each - 1) / each, [&](int i) {
    some(i * each, std::min(columns, (i + 1) * each));
  });
}

} // namespace mlx_serve
