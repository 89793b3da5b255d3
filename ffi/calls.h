// How functions of mlx-c's kind report what is thrown in them.
#pragma once

#include <exception>
#include <stdexcept>

#include "mlx/c/error.h"

namespace mlx_serve {

inline void require(bool holds, const char* fault) {
  if (!holds) throw std::runtime_error(fault);
}

/** 0, or 1 and the error is MLX's last. */
template <class F>
int attempt(const F& call) {
  try {
    call();
  } catch (std::exception& e) {
    mlx_error("%s", e.what());
    return 1;
  }
  return 0;
}

} // namespace mlx_serve
