// Finds the memory of MLX's arrays on CUDA, and allocates pinned host memory that the GPU can access.
#pragma once

#include "mlx/array.h"

namespace mlx_serve {

/** Redeclares MLX's memory record, because mlx/backend/cuda/allocator.h needs CUDA's headers. */
struct Memory {
  void* data;
  size_t size;
  /** Index of the GPU; -1 if the host can read the memory directly (managed or pinned). */
  int device;
};

inline Memory* memory_of(const mlx::core::array& x) {
  return static_cast<Memory*>(const_cast<mlx::core::array&>(x).buffer().ptr());
}

/** Returns the address of the array's first element. */
inline char* address_of(const mlx::core::array& x) {
  return static_cast<char*>(memory_of(x)->data) + x.offset();
}

/** Gives an array pinned host memory, which returns to the free list when the array is freed. */
void pin(mlx::core::array& x);

} // namespace mlx_serve
