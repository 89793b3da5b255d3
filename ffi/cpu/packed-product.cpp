// Products with quantized matrices.
#include "packed-product.h"

#include <cmath>

#include "blas.h"
#include "columns.h"
#include "ops.h"

namespace mlx_serve {
namespace {

#ifdef WITH_BLAS
/** How many weights are dequantized for BLAS at a time. */
constexpr int DEQUANTIZED = 1 << 21;

void multiply_many(const QuantizedProduct& product, int columns) {
  const int depth = product.depth, most = std::min(columns, std::max(16, DEQUANTIZED / depth));
  // Kept, so that the next product does not fault in new pages.
  static thread_local std::vector<float> kept;
  kept.resize(std::max(kept.size(), static_cast<size_t>(most) * depth));
  float* const weights = kept.data(); // The name alone would be another thread's in the lambda.
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
  if (product.rows > kernels().most_quantized) return multiply_many(product, columns);
#endif
  each_columns(columns, product.rows, product.depth, [&](int from, int to) {
    kernels().quantized_product(product, from, to);
  });
}

void check_quantized(const QuantizedMatrix& matrix, int axes, int depth) {
  const auto& [weight, scales, biases, bits, group] = matrix;
  require(bits == 4 || bits == 8, "the weights have neither 4 nor 8 bits");
  require(group == 32 || group == 64 || group == 128, "the groups are not of 32, 64 or 128 weights");
  require(biases || (bits == 4 && group == 32), "without biases there are not 4 bits in groups of 32");
  const bool is_stack = weight.dtype() == mx::uint32 && static_cast<int>(weight.ndim()) == axes;
  require(is_stack, "the weights are no rows of uint32");
  const bool fits = depth % group == 0 && weight.shape(-1) == depth / 32 * bits;
  require(weight.size() > 0 && fits, "the weights do not fit the last axis");
  auto groups = leading(weight);
  groups.push_back(depth / group);
  const auto fits_groups = [&](const mx::array& x, mx::Dtype type) {
    return x.dtype() == type && x.shape() == groups;
  };
  if (!biases) return require(fits_groups(scales, mx::uint8), "there is not a uint8 scale for each group");
  require(
      fits_groups(scales, mx::float32) && fits_groups(*biases, mx::float32),
      "there is not a float32 scale and bias for each group");
}

namespace {

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
    const mx::array& x,
    const QuantizedMatrix& matrix,
    const mx::array* norm,
    const mx::array* residual,
    float eps,
    bool gated,
    mx::Stream stream) {
  const auto& [weight, scales, biases, bits, group] = matrix;
  check_rows(x);
  const int depth = x.shape(-1);
  check_quantized(matrix, 2, depth);
  const int columns = weight.shape(0);
  require(!gated || columns % 2 == 0, "there are no halves to gate");
  auto shape = leading(x);
  shape.push_back(gated ? columns / 2 : columns);
  Arrays inputs = {x, weight, scales, biases ? *biases : scales};
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
  const auto make = [=, bits = bits, group = group, biased = biases != nullptr, normed = norm != nullptr,
                     adds = residual != nullptr](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]), added(adds ? in.back() : in[0]);
    QuantizedProduct product = {rows.count(), depth, bits, group, nullptr};
    product.w = reinterpret_cast<const unsigned char*>(memory<uint32_t>(in[1]));
    product.scales = memory<unsigned char>(in[2]);
    product.biases = biased ? memory<float>(in[3]) : nullptr;
    product.out = out[0].data<float>();
    product.out_stride = columns;
    const Fusion fused = {normed ? memory<float>(in[4]) : nullptr, eps, gated};
    return [=] { multiply_fused(product, columns, rows, adds ? &added : nullptr, fused); };
  };
  return operation(stream, "mlx_serve_packed_product", shape, inputs, make);
}

/** A row's weights in their order. */
void dequantize_row(const QuantizedProduct& matrix, long row, float* out) {
  static constexpr float levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const auto& [rows, depth, bits, group, x, w, scales, biases, beta, to, stride] = matrix;
  const unsigned char* packed = w + row * (depth / 8 * bits);
  const long first = row * (depth / group);
  for (int i = 0; i < depth; i++) {
    const long own = first + i / group;
    const int q = bits == 8 ? packed[i] : packed[i / 2] >> i % 2 * 4 & 15;
    if (biases) out[i] = static_cast<const float*>(scales)[own] * q + biases[own];
    else out[i] = std::ldexp(levels[q], static_cast<const unsigned char*>(scales)[own] - 127);
  }
}

mx::array lookup(
    const mx::array& indices, const mx::array& weight, const QuantizedMatrix* quantized, mx::Stream stream) {
  require(indices.dtype() == mx::uint32 && indices.ndim() == 1, "the indices are no uint32 in a row");
  require(weight.ndim() == 2 && weight.size() > 0, "the weights are no matrix");
  const int depth = quantized ? weight.shape(1) * 32 / quantized->bits : weight.shape(1);
  const int count = indices.shape(0), rows = weight.shape(0);
  Arrays inputs = {indices, weight};
  if (quantized) {
    check_quantized(*quantized, 2, depth);
    inputs.push_back(quantized->scales);
    inputs.push_back(quantized->biases ? *quantized->biases : quantized->scales);
  } else {
    require(weight.dtype() == mx::float32, "the weights are not float32");
  }
  const int bits = quantized ? quantized->bits : 0, group = quantized ? quantized->group : 0;
  const auto make = [=, biased = quantized && quantized->biases](const Arrays& in, Arrays& out) -> Task {
    const auto* chosen = memory<uint32_t>(in[0]);
    float* to = out[0].data<float>();
    if (!bits) {
      const float* from = memory<float>(in[1]);
      return [=] {
        each_row(count, depth, [&](long i, auto&) {
          const float* row = from + static_cast<long>(std::min<uint32_t>(chosen[i], rows - 1)) * depth;
          std::copy(row, row + depth, to + i * depth);
        });
      };
    }
    QuantizedProduct matrix = {rows, depth, bits, group, nullptr};
    matrix.w = reinterpret_cast<const unsigned char*>(memory<uint32_t>(in[1]));
    matrix.scales = memory<unsigned char>(in[2]);
    matrix.biases = biased ? memory<float>(in[3]) : nullptr;
    return [=] {
      each_row(count, depth, [&](long i, auto&) {
        dequantize_row(matrix, std::min<uint32_t>(chosen[i], rows - 1), to + i * depth);
      });
    };
  };
  return operation(stream, "mlx_serve_lookup", {count, depth}, inputs, make);
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

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
