// Captures a model step as a CUDA graph. A step is a few hundred launches, and MLX takes the host longer per launch
// than the GPU takes to run it; a graph is a single launch.
//
// The step's operations run as MLX would run them while the driver captures their kernels. A graph contains
// addresses, so the memory that these operations were given must never be used for anything else. MLX's allocator has
// no call for that, but it serves requests from its cache before it allocates. So: empty the cache; rehearse the
// step, which fills the cache with all memory that a step needs, until a rehearsal allocates nothing new; capture;
// finally allocate everything in the cache and keep it. That is the pool. All recordings share it, because they are
// replayed one after the other.
#include "recording.h"

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "../calls.h"
#include "../tape.h"
#include "copies.h"
#include "driver.h"
#include "memory.h"
#include "mlx/c/private/mlx.h"
#include "mlx/device.h"
#include "mlx/memory.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

namespace mlx::core::cu {
/** Redeclares the first members of MLX's class, because MLX's header needs CUDA's. */
struct CommandEncoder {
  void* device;
  mlx_serve::CudaStream stream;
};
/** Weak, because libmlx without CUDA does not define it. */
[[gnu::weak]] CommandEncoder& get_command_encoder(Stream stream);
} // namespace mlx::core::cu

namespace mlx_serve {
namespace {

CudaStream stream_of(mx::Stream stream) {
  require(mx::cu::get_command_encoder != nullptr, "MLX was built without CUDA");
  return mx::cu::get_command_encoder(stream).stream;
}

/**
 * Waits until the operations' memory has been released. MLX releases it shortly after a synchronization returns, so
 * this synchronizes twice.
 */
void settle(mx::Stream stream) {
  mx::synchronize(stream);
  mx::synchronize(stream);
}

/** Memory that operations got from MLX's allocator: the sizes of all buffers, and the buffers of the outputs. */
struct Given {
  std::set<size_t> sizes;
  std::set<Memory*> memory;
};

/** Evaluates operations like MLX, but frees inputs before the GPU is done, which is safe on a single stream. */
Given perform(Arrays computed, mx::Stream stream) {
  Given given;
  for (auto& each : computed) {
    const mx::array x = std::move(each);
    require(x.primitive().stream() == stream, "a step is not all on one stream");
    auto outputs = x.outputs();
    const size_t before = mx::get_active_memory();
    x.primitive().eval_gpu(x.inputs(), outputs);
    size_t hidden = mx::get_active_memory() - before;
    std::set<Memory*> known;
    for (const auto& input : x.inputs()) known.insert(memory_of(input));
    for (auto& output : outputs) {
      output.set_status(mx::array::Status::evaluated);
      Memory* memory = memory_of(output);
      if (memory->size == 0 || !known.insert(memory).second) continue;
      given.memory.insert(memory);
      given.sizes.insert(memory->size);
      hidden -= memory->size;
    }
    // Allocated bytes beyond the outputs are the operation's temporary memory, freed when the stream is synchronized.
    if (hidden != 0) given.sizes.insert(hidden);
    const_cast<mx::array&>(x).detach();
  }
  return given;
}

/** Returns the graph's nodes. Throws if one allocates memory, which would not be part of the pool. */
std::vector<CudaGraphNode> nodes_of(CudaGraph graph) {
  constexpr int ALLOCATION = 10;
  size_t count = 0;
  check(driver().cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  require(count > 0, "nothing was captured: MLX_USE_CUDA_GRAPHS is not 0");
  std::vector<CudaGraphNode> nodes(count);
  check(driver().cuGraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  for (CudaGraphNode node : nodes)
    require(type_of(node) != ALLOCATION, "a step asked for more memory than in its rehearsal");
  return nodes;
}

/** Returns whether the GPU supports programmatic dependent launch (AWAIT_INPUTS): compute capability 9.0 or later. */
bool kernels_wait() {
  const auto name = std::get<std::string>(mx::device_info(mx::Device::gpu).at("architecture")); // sm_90
  return std::stoi(name.substr(3)) >= 90;
}

/** Returns whether the node is one of our kernels, which all use AWAIT_INPUTS (src/kernels/host/cuda.h). */
bool waits_itself(CudaGraphNode node) {
  KernelNode found{};
  const char* const name = kernel_of(node, found);
  return name && std::strstr(name, "mlx_serve_") != nullptr;
}

/**
 * Makes the edges to our kernels programmatic, so that a kernel starts before its predecessor has ended: it loads
 * weights meanwhile, and its launch latency is hidden. The predecessor must trigger the early start: our kernels do
 * so in AWAIT_INPUTS, and so do cuBLAS kernels that start early themselves. After other kernels a programmatic edge
 * would start ours later than a plain one (docs/log.md). Nodes with several predecessors are left as they are.
 */
void overlap(CudaGraph graph) {
  constexpr EdgeData PROGRAMMATIC = {1, 0, 1, {}};
  size_t count = 0;
  check(driver().cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), "cuGraphGetEdges");
  std::vector<CudaGraphNode> from(count), to(count);
  std::vector<EdgeData> data(count);
  check(driver().cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), "cuGraphGetEdges");
  std::map<CudaGraphNode, int> before;
  std::set<CudaGraphNode> early;
  for (size_t i = 0; i < count; i++) {
    before[to[i]] += 1;
    if (data[i].type == PROGRAMMATIC.type) early.insert(to[i]);
  }
  for (size_t i = 0; i < count; i++) {
    if (before[to[i]] > 1 || !(early.contains(from[i]) || waits_itself(from[i])) || !waits_itself(to[i])) continue;
    check(driver().cuGraphRemoveDependencies(graph, &from[i], &to[i], &data[i], 1), "cuGraphRemoveDependencies");
    check(driver().cuGraphAddDependencies(graph, &from[i], &to[i], &PROGRAMMATIC, 1), "cuGraphAddDependencies");
  }
}

/** Memory of all recordings, and number of recordings. */
Arrays pool;
int recordings = 0;
/** Incremented when memory of the pool was lost, which invalidates all earlier recordings. */
int generation = 0;

/** Empties MLX's cache and moves the pool's memory there; returns the pool's buffers. */
std::set<Memory*> lend_pool() {
  mx::clear_cache();
  std::set<Memory*> lent;
  for (const auto& each : pool) lent.insert(memory_of(each));
  pool.clear();
  return lent;
}

/** Moves MLX's cached buffers to the pool. Throws if a `lent` one is missing, or another one is not of `sizes`. */
void take_cached(std::set<size_t> sizes, const std::set<Memory*>& lent, mx::Stream stream) {
  for (const Memory* memory : lent) sizes.insert(memory->size);
  Arrays fresh;
  for (const size_t size : sizes) {
    for (;;) {
      const size_t before = mx::get_cache_memory();
      // Allocates by `arange`, whose output is the only GPU memory that it takes.
      auto taken = mx::arange(0.0, static_cast<double>(size / sizeof(float)), mx::float32, stream);
      taken.eval();
      const bool was_cached = mx::get_cache_memory() < before;
      (was_cached ? pool : fresh).push_back(taken);
      if (!was_cached) break;
    }
  }
  const size_t left = mx::get_cache_memory();
  fresh.clear();
  mx::clear_cache();
  size_t found = 0;
  for (const auto& each : pool) found += lent.contains(memory_of(each));
  if (found < lent.size()) generation += 1;
  require(left == 0 && found == lent.size(), "not all memory of a step could be kept");
}

void free_unused() {
  if (recordings == 0) pool.clear();
}

/** An output of a recording; its memory belongs to the pool. */
struct Made {
  mx::Shape shape;
  mx::Dtype dtype;
  size_t bytes;
  Memory memory;
};

/** The step's outputs, built several times: the last build is captured, the others are for rehearsals. */
using Takes = std::vector<Arrays>;

class Recording {
 public:
  Recording(Arrays inputs, Takes takes, mx::Stream stream) : inputs_(std::move(inputs)) {
    for (const auto& input : inputs_) require(input.flags().row_contiguous, "an input is a view");
    load_copies(kernels_wait());
    settle(stream);
    const auto lent = lend_pool();
    std::set<size_t> sizes;
    try {
      record(std::move(takes), stream, sizes);
    } catch (...) {
      settle(stream);
      take_cached(sizes, lent, stream);
      free_unused();
      throw;
    }
    take_cached(sizes, lent, stream);
    recordings += 1;
  }

  Recording(const Recording&) = delete;

  ~Recording() {
    recordings -= 1;
    free_unused();
  }

  const std::vector<Made>& made() const {
    return made_;
  }

  void check_inputs(const Arrays& inputs) const {
    require(generation_ == generation, "the memory of a recording was lost");
    require(inputs.size() == inputs_.size(), "a recording is played with other inputs");
    for (size_t i = 0; i < inputs.size(); i++) {
      const bool fits =
          inputs[i].shape() == inputs_[i].shape() && inputs[i].dtype() == inputs_[i].dtype();
      require(fits, "a recording is played with inputs of another shape");
    }
  }

  void play(const Arrays& inputs, Arrays& outputs, mx::Stream stream) {
    const CudaStream handle = stream_of(stream);
    std::vector<Copy> from, to;
    for (size_t i = 0; i < inputs.size(); i++) {
      require(inputs[i].flags().row_contiguous, "an input is a view");
      from.push_back({address_of(inputs_[i]), address_of(inputs[i]), inputs[i].nbytes()});
    }
    for (size_t i = 0; i < outputs.size(); i++) {
      Made& made = made_[i];
      if (made.bytes <= SMALL_BYTES) {
        pin(outputs[i]);
        to.push_back({address_of(outputs[i]), made.memory.data, made.bytes});
      } else {
        const auto keep = [](mx::allocator::Buffer) {};
        outputs[i].set_data({mx::allocator::Buffer(&made.memory), keep});
      }
    }
    given_.prepare(from, playable_.get(), handle);
    copied_.prepare(to, playable_.get(), handle);
    check(driver().cuGraphLaunch(playable_.get(), handle), "cuGraphLaunch");
  }

 private:
  void record(Takes takes, mx::Stream stream, std::set<size_t>& sizes) {
    bool is_settled = false;
    for (size_t i = 0; !is_settled && i + 1 < takes.size(); i++) {
      const size_t had = mx::get_active_memory() + mx::get_cache_memory();
      sizes.merge(rehearse(std::move(takes[i]), stream));
      is_settled = mx::get_active_memory() + mx::get_cache_memory() == had;
    }
    require(is_settled, "a step asks for other memory each time");
    graph_ = {capture(std::move(takes.back()), stream), driver().cuGraphDestroy};
    settle(stream);
    const auto nodes = nodes_of(graph_.get());
    given_.find(nodes);
    copied_.find(nodes);
    if (kernels_wait()) overlap(graph_.get());
    CudaGraphExec made = nullptr;
    check(driver().cuGraphInstantiate(&made, graph_.get(), 0), "cuGraphInstantiate");
    playable_ = {made, driver().cuGraphExecDestroy};
  }

  /** Runs the step once without capture; returns the sizes of the memory that it took. */
  static std::set<size_t> rehearse(Arrays outputs, mx::Stream stream) {
    auto sizes = perform(tape_of(outputs).computed, stream).sizes;
    outputs.clear();
    settle(stream);
    return sizes;
  }

  CudaGraph capture(Arrays outputs, mx::Stream stream) {
    constexpr int RELAXED = 2;
    const CudaStream handle = stream_of(stream);
    Tape tape = tape_of(outputs);
    taken_ = std::move(tape.taken);
    check(driver().cuStreamBeginCapture(handle, RELAXED), "cuStreamBeginCapture");
    CudaGraph graph = nullptr;
    try {
      // Lists the copies without the addresses that `prepare` sets before each replay.
      std::vector<Copy> from, to;
      for (const auto& input : inputs_) from.push_back({address_of(input), nullptr, input.nbytes()});
      given_.capture(from, handle);
      const Given given = perform(std::move(tape.computed), stream);
      for (const auto& output : outputs) {
        require(output.flags().row_contiguous, "an output is a view");
        const Memory* memory = memory_of(output);
        require(given.memory.contains(memory_of(output)), "an output is not the step's own");
        made_.push_back({output.shape(), output.dtype(), output.nbytes(),
                         {address_of(output), memory->size - output.offset(), memory->device}});
        if (output.nbytes() <= SMALL_BYTES) to.push_back({nullptr, address_of(output), output.nbytes()});
      }
      copied_.capture(to, handle);
    } catch (...) {
      if (driver().cuStreamEndCapture(handle, &graph) == 0 && graph) driver().cuGraphDestroy(graph);
      throw;
    }
    check(driver().cuStreamEndCapture(handle, &graph), "cuStreamEndCapture");
    return graph;
  }

  const int generation_ = generation;
  Arrays inputs_;
  /** Weights, KV pools and constants, kept because the graph contains their addresses. */
  Arrays taken_;
  std::vector<Made> made_;
  /** Copies of the inputs before the step, and of the outputs after it. */
  RecordedCopies given_, copied_;
  std::unique_ptr<CUgraph_st, int (*)(CudaGraph)> graph_{nullptr, nullptr};
  std::unique_ptr<CUgraphExec_st, int (*)(CudaGraphExec)> playable_{nullptr, nullptr};
};

class Play : public mx::Primitive {
 public:
  Play(mx::Stream stream, std::shared_ptr<Recording> recording)
      : Primitive(stream), recording_(std::move(recording)) {}

  void eval_cpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("a recording is played on a GPU only");
  }

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    recording_->play(inputs, outputs, stream());
  }

  const char* name() const override {
    return "mlx_serve_play";
  }

 private:
  std::shared_ptr<Recording> recording_;
};

Arrays play(std::shared_ptr<Recording> recording, Arrays inputs, mx::Stream stream) {
  recording->check_inputs(inputs);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& made : recording->made()) {
    shapes.push_back(made.shape);
    dtypes.push_back(made.dtype);
  }
  auto primitive = std::make_shared<Play>(stream, std::move(recording));
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
}

mx::array pinned(const void* data, mx::Shape shape, mx::Dtype dtype) {
  mx::array made(std::move(shape), dtype, nullptr, {});
  pin(made);
  made.set_status(mx::array::Status::available);
  std::memcpy(address_of(made), data, made.nbytes());
  return made;
}

/**
 * Copies an array to pinned host memory in stream order. MLX itself would move the array to managed memory, and wait
 * until the whole GPU is idle.
 */
class Fetch : public mx::Primitive {
 public:
  explicit Fetch(mx::Stream stream) : Primitive(stream) {}

  void eval_cpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("the host has what it computes");
  }

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    const mx::array& x = inputs[0];
    mx::array& made = outputs[0];
    if (memory_of(x)->device == -1) return made.copy_shared_buffer(x);
    pin(made);
    const auto place = [](const mx::array& at) { return reinterpret_cast<DevicePointer>(address_of(at)); };
    check(driver().cuMemcpyAsync(place(made), place(x), x.nbytes(), stream_of(stream())), "cuMemcpyAsync");
  }

  const char* name() const override {
    return "mlx_serve_fetch";
  }
};

mx::array fetched(const mx::array& x, mx::Stream stream) {
  return mx::array(x.shape(), x.dtype(), std::make_shared<Fetch>(stream), {mx::contiguous(x, false, stream)});
}

using Handle = std::shared_ptr<Recording>;

} // namespace
} // namespace mlx_serve

using mlx_serve::attempt;

extern "C" int mlx_serve_pinned(
    mlx_array* res, const void* data, const int* shape, size_t shape_num, mlx_dtype dtype) {
  return attempt([&] {
    const mx::Shape dims(shape, shape + shape_num);
    mlx_array_set_(*res, mlx_serve::pinned(data, dims, mlx_dtype_to_cpp(dtype)));
  });
}

extern "C" int mlx_serve_fetch(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return attempt([&] {
    mlx_array_set_(*res, mlx_serve::fetched(mlx_array_get_(x), mlx_stream_get_(s)));
  });
}

extern "C" int mlx_serve_recording_new(
    mlx_serve_recording* res, const mlx_vector_array inputs, const mlx_vector_array outputs,
    int takes, const mlx_stream s) {
  return attempt([&] {
    Arrays& all = mlx_vector_array_get_(outputs);
    mlx_serve::Takes made(takes);
    for (size_t i = 0; i < all.size(); i++) made[i * takes / all.size()].push_back(std::move(all[i]));
    all.clear();
    auto recording = std::make_shared<mlx_serve::Recording>(
        mlx_vector_array_get_(inputs), std::move(made), mlx_stream_get_(s));
    res->ctx = new mlx_serve::Handle(std::move(recording));
  });
}

extern "C" int mlx_serve_play(
    mlx_vector_array* res, const mlx_serve_recording recording, const mlx_vector_array inputs, const
    mlx_stream s) {
  return attempt([&] {
    const auto& handle = *static_cast<mlx_serve::Handle*>(recording.ctx);
    auto made = mlx_serve::play(handle, mlx_vector_array_get_(inputs), mlx_stream_get_(s));
    mlx_vector_array_set_(*res, std::move(made));
  });
}

extern "C" int mlx_serve_recording_free(mlx_serve_recording recording) {
  return attempt([&] { delete static_cast<mlx_serve::Handle*>(recording.ctx); });
}
