// Records a decode step whose operations are all ours, and runs it without MLX. A step has some two hundred
// operations, and for a small model MLX's scheduling of them takes about a tenth of the step, on a core that the step
// could use. A sequence creates their tasks once and then runs them one after the other.
//
// Tasks contain addresses, so the memory that they read and write is kept. Memory is reused within a sequence once no
// later task reads it, and all sequences of a thread share it, because only one of them runs at a time.
#include <map>
#include <unordered_map>

#include "../tape.h"
#include "operation.h"
#include "ops.h"

namespace mlx_serve {
namespace {

/** Memory that later tasks may overwrite, by size: no task reads the contents any more. */
using FreeMemory = std::multimap<size_t, mx::array>;

/** Returns the free memory that this thread's sequences share. Threads run concurrently, so each has its own. */
std::shared_ptr<FreeMemory> shared_memory() {
  static thread_local std::weak_ptr<FreeMemory> only;
  auto memory = only.lock();
  if (!memory) only = memory = std::make_shared<FreeMemory>();
  return memory;
}

bool are_own(const Tape& tape) {
  const auto is_own = [](const mx::array& x) { return dynamic_cast<Operation*>(&x.primitive()) != nullptr; };
  return std::all_of(tape.computed.begin(), tape.computed.end(), is_own);
}

/** Maximum bytes of a copied output. Larger ones are views of memory that the next run overwrites. */
constexpr size_t MOST_COPIED = 1 << 16;

class Sequence {
 public:
  Sequence(Arrays places, const Arrays& outputs)
      : memory_(shared_memory()), places_(std::move(places)), outputs_(outputs) {
    const Tape tape = tape_of(outputs);
    require(are_own(tape), "an operation is MLX's own");
    kept_ = tape.taken;
    std::unordered_map<std::uintptr_t, int> uses;
    for (const auto& x : tape.computed) {
      for (const auto& input : x.inputs()) uses[input.id()]++;
    }
    for (const auto& output : outputs) uses[output.id()]++;
    std::unordered_map<std::uintptr_t, mx::array> given;
    for (const auto& x : tape.computed) {
      auto made = x.outputs();
      for (auto& output : made) {
        const mx::array memory = take(output.nbytes());
        kept_.push_back(memory);
        given.emplace(output.id(), memory);
        mx::array::Flags flags;
        flags.contiguous = flags.row_contiguous = true;
        flags.col_contiguous = output.ndim() <= 1 || output.size() <= 1;
        output.copy_shared_buffer(memory, output.strides(), flags, output.size());
        output.set_status(mx::array::Status::available);
      }
      tasks_.push_back(static_cast<Operation&>(x.primitive()).task(x.inputs(), made));
      for (const auto& input : x.inputs()) {
        if (--uses[input.id()] == 0) give_back(given, input);
      }
      for (const auto& output : made) {
        if (uses[output.id()] == 0) give_back(given, output);
      }
    }
    for (const auto& x : tape.computed) const_cast<mx::array&>(x).detach();
    // Gives back the outputs' memory last: no task of this sequence may reuse it, but other sequences may.
    for (const auto& output : outputs) give_back(given, output);
  }

  const Arrays& outputs() const {
    return outputs_;
  }

  const Arrays& places() const {
    return places_;
  }

  void run() const {
    for (const auto& task : tasks_) task();
  }

 private:
  mx::array take(size_t bytes) {
    // Accepts memory of up to twice the size, rather than allocating more.
    const auto found = memory_->lower_bound(bytes);
    if (found != memory_->end() && found->first <= 2 * bytes) {
      mx::array memory = found->second;
      memory_->erase(found);
      return memory;
    }
    mx::array memory({static_cast<int>((bytes + LINE - 1) / LINE * LINE)}, mx::uint8, nullptr, {});
    allocate(memory);
    memory.set_status(mx::array::Status::available);
    return memory;
  }

  void give_back(std::unordered_map<std::uintptr_t, mx::array>& given, const mx::array& x) {
    const auto found = given.find(x.id());
    if (found == given.end()) return;
    memory_->emplace(found->second.nbytes(), found->second);
    given.erase(found);
  }

  std::shared_ptr<FreeMemory> memory_;
  Arrays places_, outputs_, kept_;
  std::vector<Task> tasks_;
};

/** Returns a task that copies inputs to the recorded ones, runs the sequence, and copies small outputs out. */
Task task_of(const std::shared_ptr<Sequence>& sequence, const Arrays& inputs, Arrays& outputs) {
  struct Copy {
    const void* from;
    void* to;
    size_t bytes;
  };
  std::vector<Copy> in, out;
  for (size_t i = 0; i < inputs.size(); i++) {
    require(inputs[i].flags().row_contiguous, "an input is not in row order");
    const mx::array& place = sequence->places()[i];
    in.push_back({inputs[i].data<char>(), const_cast<char*>(place.data<char>()), place.nbytes()});
  }
  for (size_t i = 0; i < outputs.size(); i++) {
    const mx::array& made = sequence->outputs()[i];
    if (made.nbytes() > MOST_COPIED) {
      outputs[i].copy_shared_buffer(made);
    } else {
      allocate(outputs[i]);
      out.push_back({made.data<char>(), outputs[i].data<char>(), made.nbytes()});
    }
  }
  return [sequence, in = std::move(in), out = std::move(out)] {
    for (const auto& [from, to, bytes] : in) std::memcpy(to, from, bytes);
    sequence->run();
    for (const auto& [from, to, bytes] : out) std::memcpy(to, from, bytes);
  };
}

class Run : public mx::Primitive {
 public:
  Run(mx::Stream stream, std::shared_ptr<Sequence> sequence)
      : Primitive(stream), sequence_(std::move(sequence)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    mx::cpu::get_command_encoder(stream()).dispatch(task_of(sequence_, inputs, outputs));
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("a sequence runs on a CPU only");
  }

  const char* name() const override {
    return "mlx_serve_sequence";
  }

 private:
  std::shared_ptr<Sequence> sequence_;
};

/** Runs on the calling thread, or on the stream's if an input is not available yet: waking a thread takes time. */
Arrays run(const std::shared_ptr<Sequence>& sequence, const Arrays& inputs, mx::Stream stream) {
  const Arrays& places = sequence->places();
  require(inputs.size() == places.size(), "there are not as many inputs as places");
  for (size_t i = 0; i < inputs.size(); i++) {
    const bool fits = inputs[i].shape() == places[i].shape() && inputs[i].dtype() == places[i].dtype();
    require(fits, "an input does not fit its place");
  }
  const auto is_there = [](const mx::array& x) { return x.is_available(); };
  if (std::all_of(inputs.begin(), inputs.end(), is_there)) {
    Arrays outputs;
    for (const auto& made : sequence->outputs()) {
      outputs.emplace_back(made.shape(), made.dtype(), nullptr, Arrays{});
      outputs.back().set_status(mx::array::Status::available);
    }
    task_of(sequence, inputs, outputs)();
    return outputs;
  }
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> types;
  for (const auto& output : sequence->outputs()) {
    shapes.push_back(output.shape());
    types.push_back(output.dtype());
  }
  return mx::array::make_arrays(
      std::move(shapes), types, std::make_shared<Run>(stream, sequence), inputs);
}

std::shared_ptr<Sequence>& sequence_of(mlx_serve_sequence sequence) {
  require(sequence.ctx != nullptr, "there is no sequence");
  return *static_cast<std::shared_ptr<Sequence>*>(sequence.ctx);
}

} // namespace
} // namespace mlx_serve

using mlx_serve::attempt;

extern "C" int mlx_serve_are_own(bool* res, const mlx_vector_array outputs) {
  return attempt([&] { *res = mlx_serve::are_own(mlx_serve::tape_of(mlx_vector_array_get_(outputs))); });
}

extern "C" int mlx_serve_sequence_new(
    mlx_serve_sequence* res, const mlx_vector_array places, const mlx_vector_array outputs) {
  return attempt([&] {
    auto sequence = std::make_shared<mlx_serve::Sequence>(
        mlx_vector_array_get_(places), mlx_vector_array_get_(outputs));
    res->ctx = new std::shared_ptr<mlx_serve::Sequence>(std::move(sequence));
  });
}

extern "C" int mlx_serve_sequence_run(
    mlx_vector_array* res, const mlx_serve_sequence sequence, const mlx_vector_array inputs, const
    mlx_stream s) {
  return attempt([&] {
    mlx_vector_array_set_(
        *res,
        mlx_serve::run(
            mlx_serve::sequence_of(sequence), mlx_vector_array_get_(inputs), mlx_stream_get_(s)));
  });
}

extern "C" int mlx_serve_sequence_free(mlx_serve_sequence sequence) {
  return attempt([&] { delete &mlx_serve::sequence_of(sequence); });
}
