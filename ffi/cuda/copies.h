// Copies in the order of a stream, between what a GPU reads and writes: its memory, and pinned memory of the host's.
#pragma once

#include <cstddef>
#include <vector>

#include "driver.h"

namespace mlx_serve {

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

/** Arrays of at most so many bytes are copied by one launch. */
constexpr size_t SMALL_BYTES = 64 << 10;

/** Loads the kernel that copies. Throws where that cannot be. */
void load_copies();

/** None of them reads what another writes. */
void copy_all(const std::vector<Copy>& copies, CudaStream stream);

} // namespace mlx_serve
