// Reports errors in mlx-c's convention: an exception is stored as MLX's last error, and the call returns 1.
#pragma once

#include <exception>
#include <stdexcept>

#include "mlx/c/error.h"

namespace mlx_serve {

inline void require(bool holds, const char* fault) {
  if (!holds) throw std::runtime_error(fault);
}

/** Runs `call`. Returns 0, or 1 after storing the exception as MLX's last error. */
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
