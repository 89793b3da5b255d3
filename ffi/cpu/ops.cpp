// The operations of ops.h as primitives of MLX. Shapes and types are checked when an operation is built;
// an exception here becomes an mlx-c error. The work itself is done on the stream's thread, with the threads
// of the pool.
#include "ops.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../calls.h"
#include "columns.h"
#include "kernels.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/private/mlx.h"
#include "mlx/primitives.h"
#include "pool.h"

namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

#ifdef WITH_BLAS
extern "C" void cblas_sgemm(
    int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
    const float* b, int ldb, float beta, float* c, int ldc);
#endif

namespace mlx_serve {
namespace {

using Task = std::function<void()>;
/** The task that computes outputs from inputs, once both have their memory. */
using MakeTask = std::function<Task(const Arrays& inputs, Arrays& outputs)>;

/** A vector that crosses two cache lines is read at half the speed. */
constexpr size_t LINE = 64;

/** Memory aligned to a cache line, which MLX's own is not. */
void allocate(mx::array& output) {
  auto buffer = mx::allocator::malloc(output.nbytes() + LINE);
  const auto address = reinterpret_cast<size_t>(buffer.raw_ptr());
  mx::array::Flags flags;
  flags.contiguous = flags.row_contiguous = true;
  flags.col_contiguous = output.ndim() <= 1 || output.size() <= 1;
  output.set_data(buffer, output.size(), output.strides(), flags, -address % LINE);
}

/** All our operations are one primitive: they differ in their task. */
class Operation : public mx::Primitive {
 public:
  Operation(mx::Stream stream, const char* name, MakeTask make)
      : Primitive(stream), name_(name), make_(std::move(make)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    for (auto& output : outputs) allocate(output);
    mx::cpu::get_command_encoder(stream()).dispatch(make_(inputs, outputs));
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

mx::array operation(
    mx::Stream stream, const char* name, mx::Shape shape, Arrays inputs, MakeTask make) {
  auto primitive = std::make_shared<Operation>(stream, name, std::move(make));
  return mx::array(std::move(shape), mx::float32, std::move(primitive), std::move(inputs));
}

/** An input that is read as it lies in memory. */
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

  /** A row that is not contiguous is copied to `copy`. */
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

/** How many numbers are worth a piece of their own. */
constexpr int PIECE = 8192;

/** Calls for all rows, some at a time. */
template <class Each>
void each_row(int count, int width, const Each& each) {
  const int most = mlx_serve_pool_threads() * 2;
  const int some = std::max({1, PIECE / std::max(width, 1), (count + most - 1) / most});
  parallel((count + some - 1) / some, [&](int piece) {
    std::vector<float> copies[2];
    for (int row = piece * some; row < std::min(count, (piece + 1) * some); row++) each(row, copies);
  });
}

mx::array room(const int* shape, size_t axes, mx::Stream stream) {
  const mx::Shape sizes(shape, shape + axes);
  for (const int size : sizes) require(size >= 0, "a size is below 0");
  const auto make = [](const Arrays&, Arrays&) -> Task { return [] {}; };
  return operation(stream, "mlx_serve_room", sizes, {}, make);
}

// ---- Attention over blocks

struct Options {
  bool normed;
  int rotary_dims, window;
  bool capped, sinks;
};

/** The sizes that follow from the shapes, which are checked first. */
struct Sizes {
  int heads, kv_heads, dim;

  Sizes(const mx::array& rows, const mx::array& keys, const mx::array& values, bool with_kv) {
    const auto& pool = keys.shape();
    require(keys.dtype() == mx::float32 && values.dtype() == mx::float32, "the pools are not float32");
    require(pool.size() == 4 && pool[2] == BLOCK_TOKENS, "the pools are not (blocks, heads, 32, D)");
    require(values.shape() == pool, "the pools differ in shape");
    require(rows.dtype() == mx::float32 && rows.ndim() == 2, "the rows are not float32 (T, columns)");
    kv_heads = pool[1];
    dim = pool[3];
    require(dim > 0 && kv_heads > 0 && dim <= MOST_DIM, "the heads are too large");
    heads = rows.shape(1) / dim - (with_kv ? 2 * kv_heads : 0);
    const int columns = (heads + (with_kv ? 2 * kv_heads : 0)) * dim;
    require(rows.shape(1) == columns, "the columns are no whole number of heads");
    require(heads > 0 && heads % kv_heads == 0, "the query heads are no multiple of the KV heads");
    const int heads_per_kv = heads / kv_heads;
    require(
        heads_per_kv <= MOST_QUERIES && heads_per_kv * dim <= MOST_NUMBERS,
        "too many query heads share a KV head");
  }
};

void check_layer(const mx::array& layer, const Sizes& sizes, const Options& options) {
  const bool is_even = options.rotary_dims >= 0 && options.rotary_dims % 2 == 0;
  require(is_even && options.rotary_dims <= sizes.dim, "the rotary dimensions are no even number up to the head's");
  require(options.window >= 0, "the window is below 0");
  const size_t least = 4 + 2 * sizes.dim + options.rotary_dims / 2 + (options.sinks ? sizes.heads : 0);
  require(
      layer.dtype() == mx::float32 && layer.ndim() == 1 && layer.size() >= least,
      "the layer has too few numbers");
}

void check_ints(const mx::array& x, const char* fault) {
  require(x.dtype() == mx::int32 && x.ndim() == 1, fault);
}

Layer layer_of(const Sizes& sizes, const float* packed, const Options& options) {
  const float* norms = packed + 4;
  const float* wavelengths = norms + 2 * sizes.dim;
  return {
      sizes.heads,
      sizes.kv_heads,
      sizes.dim,
      packed[0],
      packed[1],
      options.capped ? packed[2] : 0,
      packed[3],
      options.normed ? norms : nullptr,
      options.normed ? norms + sizes.dim : nullptr,
      wavelengths,
      options.rotary_dims,
      options.sinks ? wavelengths + options.rotary_dims / 2 : nullptr,
      options.window,
  };
}

/** A token's position in its sequence, its slot in the pool, and its sequence's row of the tables. */
struct Place {
  int position, slot, row;
};
static_assert(sizeof(Place) == 3 * sizeof(int));

const int* table_of(const int* tables, int row) {
  return tables + 2 + static_cast<long>(row) * (tables[0] + 1);
}

void prepare_all(
    const Layer& layer, Pools pools, const float* qkv, const Place* places, int count, float* queries) {
  const long width = static_cast<long>(layer.heads) * layer.dim;
  const long columns = width + 2L * layer.kv_heads * layer.dim;
  each_row(count, static_cast<int>(columns), [&](long token, auto&) {
    const auto& [position, slot, row] = places[token];
    kernels().prepare(layer, pools, qkv + token * columns, position, slot, queries + token * width);
  });
}

void attend_all(
    const Layer& layer,
    Pools pools,
    const float* queries,
    const int* tables,
    const Place* places,
    int count,
    float* attended) {
  const int heads_per_kv = layer.heads / layer.kv_heads;
  const int most = std::max(1, std::min(32, 4096 / layer.dim) / heads_per_kv);
  std::vector<std::pair<int, Span>> spans; // with their first tokens
  for (int token = 0; token < count; token++) {
    const auto& [position, slot, row] = places[token];
    const bool follows = token > 0 && places[token - 1].row == row &&
        places[token - 1].position + 1 == position && spans.back().second.count < most;
    if (follows) spans.back().second.count += 1;
    else spans.push_back({token, {1, position, table_of(tables, row)}});
  }
  const long width = static_cast<long>(layer.heads) * layer.dim;
  parallel(static_cast<int>(spans.size()) * layer.kv_heads, [&](int i) {
    const auto& [first, span] = spans[i / layer.kv_heads];
    const long at = first * width;
    kernels().attend(layer, pools, queries + at, span, i % layer.kv_heads, attended + at);
  });
}

mx::array decode(
    const mx::array& qkv,
    const mx::array& keys,
    const mx::array& values,
    const mx::array& tables,
    const mx::array& layer,
    Options options,
    mx::Stream stream) {
  const Sizes sizes(qkv, keys, values, true);
  check_layer(layer, sizes, options);
  check_ints(tables, "the tables are not int32 in a row");
  const int count = qkv.shape(0);
  require(tables.size() >= 1 + 2 * static_cast<size_t>(count), "there are too few tables");
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const Pools pools = {memory<float>(in[1]), memory<float>(in[2])};
    const int* packed = memory<int>(in[3]);
    const float* numbers = memory<float>(in[4]);
    float* attended = out[0].data<float>();
    return [=] {
      const Layer layer = layer_of(sizes, numbers, options);
      std::vector<Place> places(count);
      for (int row = 0; row < count; row++) {
        const int* table = table_of(packed, row);
        const int position = table[-1] - 1;
        const int block = table[position / BLOCK_TOKENS];
        places[row] = {position, block * BLOCK_TOKENS + position % BLOCK_TOKENS, row};
      }
      std::vector<float> queries(static_cast<size_t>(count) * sizes.heads * sizes.dim);
      prepare_all(layer, pools, rows, places.data(), count, queries.data());
      attend_all(layer, pools, queries.data(), packed, places.data(), count, attended);
    };
  };
  const mx::Shape shape = {count, sizes.heads * sizes.dim};
  return operation(stream, "mlx_serve_decode", shape, {qkv, keys, values, tables, layer}, make);
}

void check_places(const mx::array& places, int count) {
  check_ints(places, "the places are not int32 in a row");
  require(places.size() == 3 * static_cast<size_t>(count), "the places are not three numbers a token");
}

mx::array prepare(
    const mx::array& qkv,
    const mx::array& keys,
    const mx::array& values,
    const mx::array& places,
    const mx::array& layer,
    Options options,
    mx::Stream stream) {
  const Sizes sizes(qkv, keys, values, true);
  check_layer(layer, sizes, options);
  const int count = qkv.shape(0);
  check_places(places, count);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const Pools pools = {memory<float>(in[1]), memory<float>(in[2])};
    const auto* where = reinterpret_cast<const Place*>(memory<int>(in[3]));
    const float* numbers = memory<float>(in[4]);
    float* queries = out[0].data<float>();
    return [=] {
      prepare_all(layer_of(sizes, numbers, options), pools, rows, where, count, queries);
    };
  };
  const mx::Shape shape = {count, sizes.heads * sizes.dim};
  return operation(stream, "mlx_serve_prepare", shape, {qkv, keys, values, places, layer}, make);
}

mx::array attend(
    const mx::array& queries,
    const mx::array& keys,
    const mx::array& values,
    const mx::array& tables,
    const mx::array& places,
    const mx::array& layer,
    Options options,
    mx::Stream stream) {
  const Sizes sizes(queries, keys, values, false);
  check_layer(layer, sizes, options);
  check_ints(tables, "the tables are not int32 in a row");
  const int count = queries.shape(0);
  check_places(places, count);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const Pools pools = {memory<float>(in[1]), memory<float>(in[2])};
    const int* packed = memory<int>(in[3]);
    const auto* where = reinterpret_cast<const Place*>(memory<int>(in[4]));
    const float* numbers = memory<float>(in[5]);
    float* attended = out[0].data<float>();
    return [=] {
      attend_all(layer_of(sizes, numbers, options), pools, rows, packed, where, count, attended);
    };
  };
  const Arrays inputs = {queries, keys, values, tables, places, layer};
  return operation(stream, "mlx_serve_attend", queries.shape(), inputs, make);
}

mx::array copy_blocks(const mx::array& pool, const mx::array& pairs, mx::Stream stream) {
  require(pool.dtype() == mx::float32 && pool.ndim() == 4, "the pool is not float32 with four axes");
  check_ints(pairs, "the pairs are not int32 in a row");
  require(pairs.size() % 2 == 0, "the pairs are not two numbers each");
  const auto make = [](const Arrays& in, Arrays& out) -> Task {
    float* blocks = memory<float>(in[0]);
    const long size = in[0].size() / std::max(in[0].shape(0), 1);
    const int* numbers = memory<int>(in[1]);
    const size_t count = in[1].size();
    float* done = out[0].data<float>();
    return [=] {
      for (size_t i = 0; i < count; i += 2) {
        std::memcpy(blocks + numbers[i + 1] * size, blocks + numbers[i] * size, size * sizeof(float));
      }
      *done = 1;
    };
  };
  return operation(stream, "mlx_serve_copy_blocks", {1}, {pool, pairs}, make);
}

// ---- Rows of numbers

void check_rows(const mx::array& x) {
  require(x.dtype() == mx::float32, "the numbers are not float32");
  require(x.ndim() > 0 && x.shape(-1) > 0, "there are no rows");
}

mx::array gate(const mx::array& gates, const mx::array& ups, bool gelu, mx::Stream stream) {
  check_rows(gates);
  check_rows(ups);
  require(gates.shape() == ups.shape(), "gates and ups differ in shape");
  const Gate kind = gelu ? Gate::gelu : Gate::silu;
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]), others(in[1]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), static_cast<int>(4 * width), [&](long row, auto& copies) {
        const float* own = rows.at(row, copies[0]);
        kernels().gate(kind, own, others.at(row, copies[1]), rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_gate", gates.shape(), {gates, ups}, make);
}

mx::array rms_norm(const mx::array& x, const mx::array* weight, float eps, mx::Stream stream) {
  check_rows(x);
  if (weight) {
    const bool fits = weight->ndim() == 1 && weight->shape(0) == x.shape(-1);
    require(weight->dtype() == mx::float32 && fits, "the weight does not fit the last axis");
  }
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    const float* weights = in.size() > 1 ? memory<float>(in[1]) : nullptr;
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().norm(rows.at(row, copies[0]), weights, rows.width(), eps, to + row * width);
      });
    };
  };
  const Arrays inputs = weight ? Arrays{x, *weight} : Arrays{x};
  return operation(stream, "mlx_serve_rms_norm", x.shape(), inputs, make);
}

/** The shape without its last axis. */
mx::Shape leading(const mx::array& x) {
  return mx::Shape(x.shape().begin(), x.shape().end() - 1);
}

Arrays best(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    auto* indices = out[0].data<uint32_t>();
    float* highest = out[1].data<float>();
    return [=] {
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().best(rows.at(row, copies[0]), rows.width(), indices + row, highest + row);
      });
    };
  };
  auto primitive = std::make_shared<Operation>(stream, "mlx_serve_best", make);
  const auto shape = leading(x);
  return mx::array::make_arrays({shape, shape}, {mx::uint32, mx::float32}, primitive, {x});
}

mx::array log_sum_exp(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    float* to = out[0].data<float>();
    return [=] {
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        to[row] = kernels().log_sum_exp(rows.at(row, copies[0]), rows.width());
      });
    };
  };
  auto shape = leading(x);
  shape.push_back(1);
  return operation(stream, "mlx_serve_log_sum_exp", shape, {x}, make);
}

mx::array softmax(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), static_cast<int>(4 * width), [&](long row, auto& copies) {
        kernels().softmax(rows.at(row, copies[0]), rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_softmax", x.shape(), {x}, make);
}

mx::array mask(const mx::array& x, const mx::array& words, mx::Stream stream) {
  check_rows(x);
  require(words.dtype() == mx::uint32, "the words are not uint32");
  const bool fits = x.ndim() == 2 && words.ndim() == 2 && words.shape(0) == x.shape(0) &&
      words.shape(1) == (x.shape(1) + 31) / 32;
  require(fits, "there is not a bit for each number");
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    const auto* bits = memory<uint32_t>(in[1]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width(), each = (width + 31) / 32;
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().mask(rows.at(row, copies[0]), bits + row * each, rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_mask", x.shape(), {x, words}, make);
}

// ---- Products with quantized matrices

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

#ifdef WITH_BLAS
/** How many weights are dequantized for BLAS at a time. */
constexpr int DEQUANTIZED = 1 << 21;

void multiply_many(const QuantizedProduct& product, int columns) {
  enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
  const int depth = product.depth, most = std::min(columns, std::max(16, DEQUANTIZED / depth));
  // Kept, so that the next product does not fault in new pages.
  static thread_local std::vector<float> kept;
  kept.resize(std::max(kept.size(), static_cast<size_t>(most) * depth));
  float* const weights = kept.data(); // The name alone would be another thread's in the lambda.
  for (int column = 0; column < columns; column += most) {
    const int count = std::min(most, columns - column);
    each_columns(count, static_cast<long>(product.rows) * count * depth, [&](int from, int to) {
      kernels().dequantize(product, column + from, column + to, weights + static_cast<long>(from) * depth);
    });
    cblas_sgemm(
        ROW_MAJOR, AS_IT_IS, TRANSPOSED, product.rows, count, depth, 1, product.x, depth, weights,
        depth, product.beta, product.out + column, columns);
  }
}
#endif

void multiply(const QuantizedProduct& product, int columns) {
#ifdef WITH_BLAS
  if (product.rows > MANY_ROWS) return multiply_many(product, columns);
#endif
  const long multiplications = static_cast<long>(product.rows) * columns * product.depth;
  each_columns(columns, multiplications, [&](int from, int to) {
    kernels().quantized_product(product, from, to);
  });
}

/** What is fused with a product; norm is null for none. */
struct Fusion {
  const float* norm;
  float eps;
  bool gated;
};

void multiply_fused(
    QuantizedProduct product, int columns, const Rows& rows, const Rows* residual, Fusion fused) {
  const int count = product.rows, depth = product.depth;
  const bool adds = residual && !fused.gated;
  float* out = product.out;
  const Buffer x(static_cast<size_t>(count) * depth);
  const Buffer halves(fused.gated ? static_cast<size_t>(count) * columns : 0);
  each_row(count, depth, [&](long row, auto& copies) {
    const float* from = rows.at(row, copies[0]);
    if (fused.norm) {
      copies[1].resize(depth);
      kernels().norm(from, fused.norm, depth, fused.eps, copies[1].data());
      from = copies[1].data();
    }
    kernels().arrange(from, depth, product.bits, x.data() + row * depth);
    if (!adds) return;
    const float* added = residual->at(row, copies[0]);
    std::copy(added, added + columns, out + row * columns);
  });
  product.x = x.data();
  product.beta = adds ? 1 : 0;
  if (fused.gated) product.out = halves.data();
  multiply(product, columns);
  if (!fused.gated) return;
  const int width = columns / 2;
  each_row(count, 4 * width, [&](long row, auto& copies) {
    const float* gates = halves.data() + row * columns;
    float* to = out + row * width;
    kernels().gate(Gate::silu, gates, gates + width, width, to);
    const float* added = residual ? residual->at(row, copies[0]) : nullptr;
    for (int i = 0; added && i < width; i++) to[i] += added[i];
  });
}

struct QuantizedMatrix {
  const mx::array &weight, &scales, &biases;
  int bits, group;
};

mx::array packed_product(
    const mx::array& x,
    const QuantizedMatrix& matrix,
    const mx::array* norm,
    const mx::array* residual,
    float eps,
    bool gated,
    mx::Stream stream) {
  const auto& [weight, scales, biases, bits, group] = matrix;
  check_rows(x);
  require(bits == 4 || bits == 8, "the weights have neither 4 nor 8 bits");
  require(group == 32 || group == 64 || group == 128, "the groups are not of 32, 64 or 128 weights");
  require(weight.dtype() == mx::uint32 && weight.ndim() == 2, "the weights are no rows of uint32");
  const int depth = x.shape(-1), columns = weight.shape(0);
  const bool fits = depth % group == 0 && weight.shape(1) == depth / 32 * bits;
  require(columns > 0 && fits, "the weights do not fit the last axis");
  const mx::Shape groups = {columns, depth / group};
  for (const auto* each : {&scales, &biases}) {
    require(
        each->dtype() == mx::float32 && each->shape() == groups,
        "there is not a float32 scale and bias for each group");
  }
  require(!gated || columns % 2 == 0, "there are no halves to gate");
  auto shape = leading(x);
  shape.push_back(gated ? columns / 2 : columns);
  Arrays inputs = {x, weight, scales, biases};
  if (norm) {
    const bool is_one = norm->dtype() == mx::float32 && norm->shape() == mx::Shape{depth};
    require(is_one, "the norm does not fit the last axis");
    inputs.push_back(*norm);
  }
  if (residual) {
    const bool is_one = residual->dtype() == mx::float32 && residual->shape() == shape;
    require(is_one, "the residual does not fit the product");
    inputs.push_back(*residual);
  }
  const auto make = [=, bits = bits, group = group, normed = norm != nullptr,
                     adds = residual != nullptr](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]), added(adds ? in.back() : in[0]);
    QuantizedProduct product = {rows.count(), depth, bits, group, nullptr};
    product.w = reinterpret_cast<const unsigned char*>(memory<uint32_t>(in[1]));
    product.scales = memory<float>(in[2]);
    product.biases = memory<float>(in[3]);
    product.out = out[0].data<float>();
    product.out_stride = columns;
    const Fusion fused = {normed ? memory<float>(in[4]) : nullptr, eps, gated};
    return [=] { multiply_fused(product, columns, rows, adds ? &added : nullptr, fused); };
  };
  return operation(stream, "mlx_serve_packed_product", shape, inputs, make);
}

/** The result of a call, or mlx-c's error. */
template <class Make>
int result(mlx_array* res, const Make& make) {
  return attempt([&] { mlx_array_set_(*res, make()); });
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_room(
    mlx_array* res, const int* shape, size_t shape_num, const mlx_stream s) {
  return result(res, [&] { return mlx_serve::room(shape, shape_num, mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_decode(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values,
    const mlx_array tables, const mlx_array layer, bool normed, int rotary_dims, int window, bool capped,
    bool sinks, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::decode(
        mlx_array_get_(qkv), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(tables),
        mlx_array_get_(layer), {normed, rotary_dims, window, capped, sinks}, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_prepare(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values,
    const mlx_array places, const mlx_array layer, bool normed, int rotary_dims, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::prepare(
        mlx_array_get_(qkv), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(places),
        mlx_array_get_(layer), {normed, rotary_dims, 0, false, false}, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_attend(
    mlx_array* res, const mlx_array queries, const mlx_array keys, const mlx_array values,
    const mlx_array tables, const mlx_array places, const mlx_array layer, int rotary_dims, int window,
    bool capped, bool sinks, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::attend(
        mlx_array_get_(queries), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(tables),
        mlx_array_get_(places), mlx_array_get_(layer), {false, rotary_dims, window, capped, sinks},
        mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_copy_blocks(
    mlx_array* res, const mlx_array pool, const mlx_array pairs, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::copy_blocks(mlx_array_get_(pool), mlx_array_get_(pairs), mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_packed_product(
    mlx_array* res, const mlx_array x, const mlx_array weight, const mlx_array scales,
    const mlx_array biases, const mlx_array norm, const mlx_array residual, int bits, int group,
    float eps, bool gated, const mlx_stream s) {
  return result(res, [&] {
    const auto optional = [](const mlx_array& x) { return x.ctx ? &mlx_array_get_(x) : nullptr; };
    return mlx_serve::packed_product(
        mlx_array_get_(x),
        {mlx_array_get_(weight), mlx_array_get_(scales), mlx_array_get_(biases), bits, group},
        optional(norm), optional(residual), eps, gated, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_gate(
    mlx_array* res, const mlx_array gates, const mlx_array ups, bool gelu, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::gate(mlx_array_get_(gates), mlx_array_get_(ups), gelu, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_rms_norm(
    mlx_array* res, const mlx_array x, const mlx_array weight, float eps, const mlx_stream s) {
  return result(res, [&] {
    const mx::array* scales = weight.ctx ? &mlx_array_get_(weight) : nullptr;
    return mlx_serve::rms_norm(mlx_array_get_(x), scales, eps, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_best(mlx_vector_array* res, const mlx_array x, const mlx_stream s) {
  return mlx_serve::attempt([&] {
    mlx_vector_array_set_(*res, mlx_serve::best(mlx_array_get_(x), mlx_stream_get_(s)));
  });
}

extern "C" int mlx_serve_log_sum_exp(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return result(
      res, [&] { return mlx_serve::log_sum_exp(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_softmax(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return result(res, [&] { return mlx_serve::softmax(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_mask(
    mlx_array* res, const mlx_array x, const mlx_array words, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::mask(mlx_array_get_(x), mlx_array_get_(words), mlx_stream_get_(s));
  });
}
