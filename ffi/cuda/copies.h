// Stream-ordered copies between GPU memory and pinned host memory.
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

/** Arrays up to this size are copied together by one kernel launch. */
constexpr size_t SMALL_BYTES = 64 << 10;

/** Loads the copy kernel. With `waits` it uses programmatic dependent launch, like our other kernels. */
void load_copies(bool waits);

/**
 * The copies at the beginning or end of a CUDA graph. Their addresses change with every graph
 * launch, their lengths do not. No copy reads what another one writes.
 */
class RecordedCopies {
 public:
  RecordedCopies();
  ~RecordedCopies();

  /** Launches copies of small arrays on a stream that is being captured: they become nodes of the graph. */
  void capture(const std::vector<Copy>& copies, CudaStream stream);

  /** Finds the nodes of these copies among the captured graph's `nodes`. The graph must outlive this object. */
  void find(const std::vector<CudaGraphNode>& nodes);

  /** Sets the addresses for the next graph launch, and enqueues the copies of large arrays before that launch. */
  void prepare(const std::vector<Copy>& copies, CudaGraphExec graph, CudaStream stream);

 private:
  struct Launch;
  std::vector<Launch> launches_;
};

} // namespace mlx_serve
