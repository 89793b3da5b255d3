// How the columns of a product are divided among the pool's threads.
#pragma once

#include <algorithm>

#include "pool.h"

namespace mlx_serve {

/** Products below this many multiplications are not worth another thread. */
constexpr long SMALL = 1 << 16;

/** Calls for all columns, some at a time: 16, or a whole number of them. */
template <class Some>
void each_columns(int columns, long multiplications, const Some& some) {
  const int most = multiplications < SMALL ? 1 : 4 * mlx_serve_pool_threads();
  const int each = ((columns + most - 1) / most + 15) / 16 * 16;
  parallel((columns + each - 1) / each, [&](int i) {
    some(i * each, std::min(columns, (i + 1) * each));
  });
}

} // namespace mlx_serve
