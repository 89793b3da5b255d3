// Wraps our CPU operations as MLX primitives. Shapes and types are checked when an operation is built; exceptions
// become mlx-c errors. Operations run on the stream's thread, or in a recorded sequence (sequence.cpp) on the
// caller's thread, and use the thread pool.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../calls.h"
#include "kernels.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/private/mlx.h"
#include "mlx/primitives.h"
#include "pool.h"

namespace mx = mlx::core;

namespace mlx_serve {

using Arrays = std::vector<mx::array>;
using Task = std::function<void()>;
/** Called when inputs and outputs have memory; returns the task that computes the outputs. */
using MakeTask = std::function<Task(const Arrays& inputs, Arrays& outputs)>;

/** Bytes of a cache line: vector loads that cross one take twice as long. */
constexpr size_t LINE = 64;

/** Allocates an output aligned to a cache line, which MLX's allocator does not ensure. */
inline void allocate(mx::array& output) {
  auto data = mx::allocator::malloc(output.nbytes() + LINE);
  const auto address = reinterpret_cast<size_t>(data.buffer().raw_ptr());
  mx::array::Flags flags;
  flags.contiguous = flags.row_contiguous = true;
  flags.col_contiguous = output.ndim() <= 1 || output.size() <= 1;
  output.set_data(std::move(data), output.size(), output.strides(), flags, -address % LINE);
}

/** The primitive of all our operations; only their tasks differ. */
class Operation : public mx::Primitive {
 public:
  Operation(mx::Stream stream, const char* name, MakeTask make)
      : Primitive(stream), name_(name), make_(std::move(make)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    for (auto& output : outputs) allocate(output);
    mx::cpu::get_command_encoder(stream()).dispatch(make_(inputs, outputs));
  }

  /** Returns the task that computes `outputs`, which have memory already. */
  Task task(const Arrays& inputs, Arrays& outputs) const {
    return make_(inputs, outputs);
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error(std::string(name_) + " runs on a CPU only");
  }

  const char* name() const override {
    return name_;
  }

 private:
  const char* name_;
  MakeTask make_;
};

inline mx::array operation(
    mx::Stream stream, const char* name, mx::Shape shape, Arrays inputs, MakeTask make, mx::Dtype type = mx::float32) {
  auto primitive = std::make_shared<Operation>(stream, name, std::move(make));
  return mx::array(std::move(shape), type, std::move(primitive), std::move(inputs));
}

/** Returns the data of a row-contiguous input. */
template <class T>
T* memory(const mx::array& x) {
  require(x.flags().row_contiguous, "an input is not in row order");
  return const_cast<T*>(x.data<T>());
}

/** The rows of an array along its last axis, in any layout. */
class Rows {
 public:
  explicit Rows(const mx::array& x)
      : data_(x.data<float>()), shape_(x.shape()), strides_(x.strides()) {
    width_ = shape_.back();
    stride_ = width_ == 1 ? 1 : strides_.back();
    count_ = width_ == 0 ? 0 : x.size() / width_;
    is_plain_ = x.flags().row_contiguous;
  }

  int count() const {
    return count_;
  }

  int width() const {
    return width_;
  }

  /** Returns a pointer to a row. A row that is not contiguous is first copied to `copy`. */
  const float* at(long row, std::vector<float>& copy) const {
    if (is_plain_) return data_ + row * width_;
    long offset = 0;
    for (int axis = static_cast<int>(shape_.size()) - 2; axis >= 0; axis--) {
      offset += row % shape_[axis] * strides_[axis];
      row /= shape_[axis];
    }
    if (stride_ == 1) return data_ + offset;
    copy.resize(width_);
    for (int i = 0; i < width_; i++) copy[i] = data_[offset + i * stride_];
    return copy.data();
  }

 private:
  const float* data_;
  mx::Shape shape_;
  mx::Strides strides_;
  int width_, count_;
  long stride_;
  bool is_plain_;
};

/** Minimum number of elements per piece of parallel work. */
constexpr int PIECE = 8192;

/** Calls `each(row, copies)` for all rows on the thread pool. `copies` is scratch memory for Rows::at. */
template <class Each>
inline void each_row(int count, int width, const Each& each) {
  const int most = mlx_serve_pool_threads() * 2;
  const int some = std::max({1, PIECE / std::max(width, 1), (count + most - 1) / most});
  parallel((count + some - 1) / some, [&](int piece) {
    std::vector<float> copies[2];
    for (int row = piece * some; row < std::min(count, (piece + 1) * some); row++) each(row, copies);
  });
}

inline void check_rows(const mx::array& x) {
  require(x.dtype() == mx::float32, "the numbers are not float32");
  require(x.ndim() > 0 && x.shape(-1) > 0, "there are no rows");
}

inline void check_ints(const mx::array& x, const char* fault) {
  require(x.dtype() == mx::int32 && x.ndim() == 1, fault);
}

/** Returns the shape without its last axis. */
inline mx::Shape leading(const mx::array& x) {
  return mx::Shape(x.shape().begin(), x.shape().end() - 1);
}

/** Uninitialized floats, aligned to a cache line. */
class Buffer {
 public:
  explicit Buffer(size_t count) : memory_(new float[count + LINE / sizeof(float)]) {}

  float* data() const {
    const auto address = reinterpret_cast<size_t>(memory_.get());
    return memory_.get() + -address % LINE / sizeof(float);
  }

 private:
  std::unique_ptr<float[]> memory_;
};

/** Stores the result of `make` in `res`, or reports its exception as an mlx-c error. */
template <class Make>
int result(mlx_array* res, const Make& make) {
  return attempt([&] { mlx_array_set_(*res, make()); });
}

} // namespace mlx_serve
