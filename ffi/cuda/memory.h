// Memory of MLX's arrays on CUDA, and pinned host memory that the GPU can access.
#pragma once

#include "mlx/array.h"

namespace mlx_serve {

/** MLX's memory record, redeclared: mlx/backend/cuda/allocator.h needs CUDA's headers. */
struct Memory {
  void* data;
  size_t size;
  /** -1 if the host can read it directly (managed or pinned memory). */
  int device;
};

inline Memory* memory_of(const mlx::core::array& x) {
  return static_cast<Memory*>(const_cast<mlx::core::array&>(x).buffer().ptr());
}

/** The address of the array's first element. */
inline char* address_of(const mlx::core::array& x) {
  return static_cast<char*>(memory_of(x)->data) + x.offset();
}

/** Gives an array pinned host memory, which returns to the free list when the array is freed. */
void pin(mlx::core::array& x);

} // namespace mlx_serve
