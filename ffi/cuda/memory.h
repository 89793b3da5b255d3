// Memory of MLX's arrays on CUDA, and memory of the host's that a GPU reads and writes.
#pragma once

#include "mlx/array.h"

namespace mlx_serve {

/** MLX's own record of an array's memory there (mlx/backend/cuda/allocator.h, whose includes need CUDA). */
struct Memory {
  void* data;
  size_t size;
  /** -1 where the host reads it as it is. */
  int device;
};

inline Memory* memory_of(const mlx::core::array& x) {
  return static_cast<Memory*>(const_cast<mlx::core::array&>(x).buffer().ptr());
}

/** Where its first number is. */
inline char* address_of(const mlx::core::array& x) {
  return static_cast<char*>(memory_of(x)->data) + x.offset();
}

/** Gives an array memory of the host's, which goes back to the others when nobody holds it any more. */
void pin(mlx::core::array& x);

} // namespace mlx_serve
