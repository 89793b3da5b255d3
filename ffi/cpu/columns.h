// How the columns of a product are divided among the pool's threads.
#pragma once

#include <algorithm>

#include "pool.h"

namespace mlx_serve {

/** Products below this many multiplications are not worth another thread. */
constexpr long SMALL = 1 << 16;

/** With so few rows a product waits for its weights, which are read fastest in pieces of at least so many. */
constexpr int READING_ROWS = 2;
constexpr long READ = 1 << 18;

/** How many pieces of a product are a thread's. */
inline long pieces_each(int columns, int rows, int depth, int threads) {
  if (rows > READING_ROWS) return 4;
  return static_cast<long>(columns) * depth < 2 * READ * threads ? 1 : 2;
}

/** Calls for all columns of a product, some at a time: 16, or a whole number of them. */
template <class Some>
void each_columns(int columns, int rows, int depth, const Some& some) {
  const int threads = mlx_serve_pool_threads();
  const bool is_small = static_cast<long>(rows) * columns * depth < SMALL;
  const int most = is_small ? 1 : pieces_each(columns, rows, depth, threads) * threads;
  const int each = ((columns + most - 1) / most + 15) / 16 * 16;
  parallel((columns + each - 1) / each, [&](int i) {
    some(i * each, std::min(columns, (i + 1) * each));
  });
}

} // namespace mlx_serve
