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

/** Loads the kernel that copies, which `waits` for the launch before it, as ours do. Throws where that cannot be. */
void load_copies(bool waits);

/**
 * Copies that a graph begins or ends with. Their places differ from one launch of it to the next, but not their lengths.
 * None of them reads what another writes.
 */
class RecordedCopies {
 public:
  RecordedCopies();
  ~RecordedCopies();

  /** Those of small arrays become nodes of the graph that the stream is captured as. */
  void capture(const std::vector<Copy>& copies, CudaStream stream);

  /** Finds its own among the nodes of the graph, which has to be there as long as this. */
  void find(const std::vector<CudaGraphNode>& nodes);

  /** Tells what the next launch of the graph copies, and copies what is not small by itself, in front of it. */
  void prepare(const std::vector<Copy>& copies, CudaGraphExec graph, CudaStream stream);

 private:
  struct Launch;
  std::vector<Launch> launches_;
};

} // namespace mlx_serve
