// Products with quantized matrices as MLX operations.
#include "packed-product.h"

#include <cmath>

#include "blas.h"
#include "columns.h"
#include "ops.h"

namespace mlx_serve {
namespace {

#ifdef WITH_BLAS
/** Number of weights that are dequantized for BLAS at a time. */
constexpr int DEQUANTIZED = 1 << 21;

void multiply_many(const QuantizedProduct& product, int columns) {
  const int depth = product.depth, most = std::min(columns, std::max(16, DEQUANTIZED / depth));
  // The buffer is kept between calls, so that the next product does not fault in new pages.
  static thread_local std::vector<float> kept;
  kept.resize(std::max(kept.size(), static_cast<size_t>(most) * depth));
  float* const weights = kept.data(); // inside the lambda `kept` would be that of the pool thread
  for (int column = 0; column < columns; column += most) {
    const int count = std::min(most, columns - column);
    each_columns(count, product.rows, depth, [&](int from, int to) {
      kernels().dequantize(product, column + from, column + to, weights + static_cast<long>(from) * depth);
    });
    const Product part = {product.rows, depth, product.x,    depth,        weights,
                          depth,        1,     product.beta, product.out + column, product.out_stride};
    blas_product(part, count);
  }
}
#endif

} // namespace

void multiply(const QuantizedProduct& product, int columns) {
#ifdef WITH_BLAS
  if (product.rows > MANY_ROWS && !product.in_panels) return multiply_many(product, columns);
#endif
  each_columns(columns, product.rows, product.depth, [&](int from, int to) {
    kernels().quantized_product(product, from, to);
  });
}

QuantizedShape shape_of(const QuantizedMatrix& matrix, int axes, int depth) {
  const auto& [weight, scales, biases, bits, group] = matrix;
  require(bits == 4 || bits == 8, "the weights have neither 4 nor 8 bits");
  require(group == 32 || group == 64 || group == 128, "the groups are not of 32, 64 or 128 weights");
  require(biases || (bits == 4 && group == 32), "without biases there are not 4 bits in groups of 32");
  const bool in_panels = static_cast<int>(weight.ndim()) == axes + 1 && weight.shape(-1) == PANEL_COLUMNS;
  const bool is_stack = weight.dtype() == mx::uint32 && (in_panels || static_cast<int>(weight.ndim()) == axes);
  require(is_stack, "the weights are no rows of uint32");
  require(!in_panels || kernels().takes_panels, "this processor has no products with panels");
  const int words = weight.shape(in_panels ? -2 : -1), rows = weight.shape(in_panels ? -3 : -2);
  const bool fits = depth % group == 0 && words == depth / 32 * bits;
  require(weight.size() > 0 && fits, "the weights do not fit the last axis");
  auto groups = weight.shape();
  groups[groups.size() - (in_panels ? 2 : 1)] = depth / group;
  QuantizedShape shape = {rows * (in_panels ? PANEL_COLUMNS : 1), depth, bits, group, biases != nullptr, in_panels};
  if (!biases) {
    require(scales.dtype() == mx::uint8 && scales.shape() == groups, "there is not a uint8 scale for each group");
    return shape;
  }
  const auto type = scales.dtype();
  if (in_panels && type == mx::float16) shape.numbers = Numbers::float16;
  else if (in_panels && type == mx::bfloat16) shape.numbers = Numbers::bfloat16;
  else require(type == mx::float32, "there is not a float32 scale and bias for each group");
  const bool are_alike = biases->dtype() == type && scales.shape() == groups && biases->shape() == groups;
  require(are_alike, "there is not a float32 scale and bias for each group");
  return shape;
}

QuantizedProduct QuantizedShape::product(const mx::array* in) const {
  QuantizedProduct product = {0, depth, bits, group, nullptr};
  product.w = memory<unsigned char>(in[0]);
  product.scales = memory<unsigned char>(in[1]);
  product.biases = has_biases ? memory<unsigned char>(in[2]) : nullptr;
  product.numbers = numbers;
  product.in_panels = in_panels;
  return product;
}

namespace {

/** Operations fused with a product: RMSNorm before it (`norm` is null for none), and SwiGLU after it if `gated`. */
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
  const Buffer x(arranged_size(count, depth));
  const Buffer halves(fused.gated ? static_cast<size_t>(count) * columns : 0);
  parallel((count + ARRANGED_ROWS - 1) / ARRANGED_ROWS, [&](int block) {
    const int first = block * ARRANGED_ROWS, some = std::min(ARRANGED_ROWS, count - first);
    const Buffer normed(fused.norm ? static_cast<size_t>(some) * depth : 0);
    std::vector<float> copies[ARRANGED_ROWS], copy;
    const float* from[ARRANGED_ROWS];
    for (int i = 0; i < some; i++) {
      from[i] = rows.at(first + i, copies[i]);
      if (fused.norm) {
        float* const to = normed.data() + static_cast<long>(i) * depth;
        kernels().norm(from[i], fused.norm, depth, fused.eps, to);
        from[i] = to;
      }
      if (!adds) continue;
      const float* added = residual->at(first + i, copy);
      std::copy(added, added + columns, out + static_cast<long>(first + i) * columns);
    }
    kernels().arrange(from, first, product, x.data());
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

mx::array packed_product(
    const mx::array& x, const QuantizedMatrix& matrix, const mx::array* norm, const mx::array*
    residual, float eps, bool gated, mx::Stream stream) {
  check_rows(x);
  const int depth = x.shape(-1);
  const QuantizedShape quantized = shape_of(matrix, 2, depth);
  const int columns = quantized.columns;
  require(!gated || columns % 2 == 0, "there are no halves to gate");
  auto shape = leading(x);
  shape.push_back(gated ? columns / 2 : columns);
  Arrays inputs = {x};
  put_inputs(matrix, inputs);
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
  const auto make = [=, normed = norm != nullptr, adds = residual != nullptr](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]), added(adds ? in.back() : in[0]);
    QuantizedProduct product = quantized.product(&in[1]);
    product.rows = rows.count();
    product.out = out[0].data<float>();
    product.out_stride = columns;
    const Fusion fused = {normed ? memory<float>(in[4]) : nullptr, eps, gated};
    return [=] { multiply_fused(product, columns, rows, adds ? &added : nullptr, fused); };
  };
  return operation(stream, "mlx_serve_packed_product", shape, inputs, make);
}

float number_at(const void* from, Numbers numbers, long index) {
  if (numbers == Numbers::float32) return static_cast<const float*>(from)[index];
  if (numbers == Numbers::float16) return static_cast<const mx::float16_t*>(from)[index];
  return static_cast<const mx::bfloat16_t*>(from)[index];
}

/** Dequantizes a row's weights, in their original order. */
void dequantize_row(const QuantizedProduct& matrix, long row, float* out) {
  static constexpr float levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const int bits = matrix.bits, each = 32 / bits, words = matrix.depth / each, groups = matrix.depth / matrix.group;
  // Panels interleave rows, so a row's elements are `apart` words from each other.
  const long apart = matrix.in_panels ? PANEL_COLUMNS : 1, before = row - row % apart;
  const auto* packed = reinterpret_cast<const uint32_t*>(matrix.w) + before * words + row % apart;
  for (int word = 0; word < words; word++) {
    const long own = before * groups + word * each / matrix.group * apart + row % apart;
    const bool is_affine = matrix.biases != nullptr;
    const int exponent = is_affine ? 0 : static_cast<const unsigned char*>(matrix.scales)[own] - 127;
    const float scale = is_affine ? number_at(matrix.scales, matrix.numbers, own) : 0;
    const float bias = is_affine ? number_at(matrix.biases, matrix.numbers, own) : 0;
    for (int i = 0; i < each; i++) {
      const int q = packed[word * apart] >> i * bits & ((1 << bits) - 1);
      *out++ = is_affine ? scale * q + bias : std::ldexp(levels[q], exponent);
    }
  }
}

mx::array lookup(
    const mx::array& indices, const mx::array& weight, const QuantizedMatrix* quantized, mx::Stream stream) {
  require(indices.dtype() == mx::uint32 && indices.ndim() == 1, "the indices are no uint32 in a row");
  require(weight.ndim() >= 2 && weight.size() > 0, "the weights are no matrix");
  const int count = indices.shape(0);
  Arrays inputs = {indices};
  QuantizedShape shape = {weight.shape(0), weight.shape(1)};
  if (quantized) {
    shape = shape_of(*quantized, 2, weight.shape(1) * 32 / quantized->bits);
    put_inputs(*quantized, inputs);
  } else {
    require(weight.dtype() == mx::float32 && weight.ndim() == 2, "the weights are no matrix of float32");
    inputs.push_back(weight);
  }
  const int depth = shape.depth, rows = shape.columns;
  const auto make = [=, is_quantized = quantized != nullptr](const Arrays& in, Arrays& out) -> Task {
    const auto* chosen = memory<uint32_t>(in[0]);
    float* to = out[0].data<float>();
    if (!is_quantized) {
      const float* from = memory<float>(in[1]);
      return [=] {
        each_row(count, depth, [&](long i, auto&) {
          const float* row = from + static_cast<long>(std::min<uint32_t>(chosen[i], rows - 1)) * depth;
          std::copy(row, row + depth, to + i * depth);
        });
      };
    }
    const QuantizedProduct matrix = shape.product(&in[1]);
    return [=] {
      each_row(count, depth, [&](long i, auto&) {
        dequantize_row(matrix, std::min<uint32_t>(chosen[i], rows - 1), to + i * depth);
      });
    };
  };
  return operation(stream, "mlx_serve_lookup", {count, depth}, inputs, make);
}

template <class T>
void put_in_panels(T* all, int panels, int width) {
  each_row(panels, PANEL_COLUMNS * width, [&](long panel, auto&) {
    T* const to = all + panel * PANEL_COLUMNS * width;
    const std::vector<T> rows(to, to + PANEL_COLUMNS * width);
    for (int i = 0; i < width; i++) {
      for (int row = 0; row < PANEL_COLUMNS; row++) to[i * PANEL_COLUMNS + row] = rows[row * width + i];
    }
  });
}

/** Converts a matrix to panels in place: the output shares the memory of x. */
class Panels : public Operation {
 public:
  using Operation::Operation;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    const auto& x = inputs[0];
    outputs[0].copy_shared_buffer(x, outputs[0].strides(), x.flags(), x.data_size());
    mx::cpu::get_command_encoder(stream()).dispatch(task(inputs, outputs));
  }
};

mx::array panels(const mx::array& x, mx::Stream stream) {
  const bool has_rows = x.ndim() >= 2 && x.size() > 0 && x.shape(-2) % PANEL_COLUMNS == 0;
  require(has_rows, "the rows are no whole number of panels");
  const size_t bytes = x.itemsize();
  require(bytes <= sizeof(uint32_t), "the elements are larger than a word");
  auto shape = x.shape();
  const int width = shape.back(), all = static_cast<int>(x.size() / width / PANEL_COLUMNS);
  shape[shape.size() - 2] /= PANEL_COLUMNS;
  shape.push_back(PANEL_COLUMNS);
  const auto make = [=](const Arrays& in, Arrays&) -> Task {
    auto* const to = memory<unsigned char>(in[0]);
    return [=] {
      if (bytes == 1) put_in_panels(to, all, width);
      else if (bytes == 2) put_in_panels(reinterpret_cast<uint16_t*>(to), all, width);
      else put_in_panels(reinterpret_cast<uint32_t*>(to), all, width);
    };
  };
  return mx::array(shape, x.dtype(), std::make_shared<Panels>(stream, "mlx_serve_panels", make), {x});
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_panel_rows() {
  return mlx_serve::kernels().takes_panels ? mlx_serve::PANEL_COLUMNS : 0;
}

extern "C" int mlx_serve_panels(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return result(res, [&] { return mlx_serve::panels(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_lookup(
    mlx_array* res, const mlx_array indices, const mlx_array weight, const mlx_array scales,
    const mlx_array biases, int bits, int group, const mlx_stream s) {
  return result(res, [&] {
    const auto& matrix = mlx_array_get_(weight);
    const mx::array* shifts = biases.ctx ? &mlx_array_get_(biases) : nullptr;
    if (!scales.ctx) return mlx_serve::lookup(mlx_array_get_(indices), matrix, nullptr, mlx_stream_get_(s));
    const mlx_serve::QuantizedMatrix quantized = {matrix, mlx_array_get_(scales), shifts, bits, group};
    return mlx_serve::lookup(mlx_array_get_(indices), matrix, &quantized, mlx_stream_get_(s));
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
        {mlx_array_get_(weight), mlx_array_get_(scales), optional(biases), bits, group},
        optional(norm), optional(residual), eps, gated, mlx_stream_get_(s));
  });
}
