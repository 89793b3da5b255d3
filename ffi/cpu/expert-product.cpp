// Products of rows with their experts' matrices (MoE). Rows are sorted by expert, so that each
// matrix is read once for all of its rows.
#include "ops.h"

#include "blas.h"
#include "columns.h"
#include "packed-product.h"

namespace mlx_serve {
namespace {

/** The rows of one expert: `count` rows starting at `first` in the sorted order. */
struct Share {
  int expert, first, count;
};

/** Products of sorted rows with one matrix (columns, depth) per expert. */
struct ExpertProducts {
  int experts, columns, depth;
  const float* w; // null if quantized
  QuantizedShape shape;
  QuantizedProduct matrix; // product with the matrix of expert 0; `x` is set later
  const float* x; // (rows, depth); if quantized, each expert's rows are in the layout of `arrange`
  float beta;
  float* out; // (rows, columns)

  /** Copies up to ARRANGED_ROWS of an expert's rows, from `first` on; if quantized, in the layout of `arrange`. */
  void put(const float* const* rows, Share share, int first, float* to) const {
    to += offset(share);
    if (!w) return kernels().arrange(rows, first, quantized(share), to);
    for (int i = first; i < std::min(share.count, first + ARRANGED_ROWS); i++, rows++) {
      std::copy(*rows, *rows + depth, to + static_cast<long>(i) * depth);
    }
  }

  /** Returns how many floats `rows` rows of x take. */
  size_t size(int rows) const {
    return w ? static_cast<size_t>(rows) * depth : arranged_size(rows, depth);
  }

  /** Whether BLAS is faster for this many rows. */
  bool are_many(int rows) const {
    return rows > MANY_ROWS && (w || !shape.in_panels);
  }

  /** Computes columns from..to for an expert with few rows. */
  void multiply_some(Share share, int from, int to) const {
    if (w) kernels().product(plain(share), from, to);
    else kernels().quantized_product(quantized(share), from, to);
  }

#ifdef WITH_BLAS
  /** Computes all columns for an expert with many rows, by BLAS. */
  void multiply_all(Share share) const {
    if (w) blas_product(plain(share), columns);
    else multiply(quantized(share), columns);
  }
#endif

 private:
  Product plain(Share share) const {
    return {share.count, depth, x_of(share), depth, w + static_cast<long>(share.expert) * columns * depth,
            depth,       1,     beta,        out_of(share), columns};
  }

  QuantizedProduct quantized(Share share) const {
    const long before = static_cast<long>(share.expert) * columns;
    const auto behind = [](const void* from, size_t bytes) {
      return from ? static_cast<const unsigned char*>(from) + bytes : nullptr;
    };
    QuantizedProduct product = matrix;
    product.rows = share.count;
    product.x = x_of(share);
    product.w = behind(matrix.w, shape.weight_bytes(before));
    product.scales = behind(matrix.scales, shape.scale_bytes(before));
    product.biases = behind(matrix.biases, shape.scale_bytes(before));
    product.beta = beta;
    product.out = out_of(share);
    product.out_stride = columns;
    return product;
  }

  size_t offset(Share share) const {
    return size(share.first);
  }

  const float* x_of(Share share) const {
    return x + offset(share);
  }

  float* out_of(Share share) const {
    return out + static_cast<long>(share.first) * columns;
  }
};

/**
 * Computes the products of experts with few rows. An expert's columns are split into pieces in proportion to its
 * rows, so that one expert with all rows keeps all threads busy, and so do many experts with one row each.
 */
void multiply_few(const ExpertProducts& products, const std::vector<Share>& shares) {
  const int columns = products.columns;
  long rows = 0;
  for (const Share& share : shares) rows += share.count;
  const long most = 4L * mlx_serve_pool_threads();
  struct Piece {
    Share share;
    int from, to;
  };
  std::vector<Piece> pieces;
  for (const Share& share : shares) {
    const int cuts = static_cast<int>((share.count * most + rows - 1) / rows);
    const int some = ((columns + cuts - 1) / cuts + 15) / 16 * 16;
    for (int from = 0; from < columns; from += some) {
      pieces.push_back({share, from, std::min(columns, from + some)});
    }
  }
  const auto multiply_piece = [&](int i) {
    const auto& [share, from, to] = pieces[i];
    products.multiply_some(share, from, to);
  };
  const int count = static_cast<int>(pieces.size());
  if (rows * columns * products.depth >= SMALL) return parallel(count, multiply_piece);
  for (int i = 0; i < count; i++) multiply_piece(i);
}

void multiply_shares(const ExpertProducts& products, const std::vector<Share>& shares) {
  std::vector<Share> few;
  for (const Share& share : shares) {
#ifdef WITH_BLAS
    if (products.are_many(share.count)) {
      products.multiply_all(share);
      continue;
    }
#endif
    few.push_back(share);
  }
  multiply_few(products, few);
}

/** Rows sorted by expert, and one Share per expert that has rows. */
struct Sorted {
  std::vector<int> rows;
  std::vector<Share> shares;
  std::vector<std::pair<int, int>> blocks; // up to ARRANGED_ROWS rows of an expert: (index in `shares`, first row)

  Sorted(const std::vector<int>& chosen, int experts) : rows(chosen.size()) {
    std::vector<int> next(experts);
    for (int expert : chosen) next[expert]++;
    int first = 0;
    for (int expert = 0; expert < experts; expert++) {
      const int count = next[expert];
      if (count > 0) {
        for (int i = 0; i < count; i += ARRANGED_ROWS) blocks.push_back({static_cast<int>(shares.size()), i});
        shares.push_back({expert, first, count});
      }
      next[expert] = first;
      first += count;
    }
    for (size_t row = 0; row < chosen.size(); row++) rows[next[chosen[row]]++] = static_cast<int>(row);
  }
};

/** Computes output row i with expert `chosen[i]`. Each row of x has chosen.size() / x.count() experts. */
void multiply_experts(
    ExpertProducts products, const Rows& x, const std::vector<int>& chosen, const float* bias, bool
    gated, float* out) {
  const int count = static_cast<int>(chosen.size()), depth = products.depth, columns = products.columns;
  if (count == 0) return;
  const int each = count / x.count(), width = gated ? columns / 2 : columns;
  const Sorted sorted(chosen, products.experts);
  const Buffer arranged(products.size(count)), made(static_cast<size_t>(count) * columns);
  parallel(static_cast<int>(sorted.blocks.size()), [&](int block) {
    const auto [index, first] = sorted.blocks[block];
    const Share share = sorted.shares[index];
    std::vector<float> copies[ARRANGED_ROWS];
    const float* rows[ARRANGED_ROWS];
    const float* added = bias ? bias + static_cast<long>(share.expert) * columns : nullptr;
    for (int i = first; i < std::min(share.count, first + ARRANGED_ROWS); i++) {
      const long at = share.first + i;
      rows[i - first] = x.at(sorted.rows[at] / each, copies[i - first]);
      if (added) std::copy(added, added + columns, made.data() + at * columns);
    }
    products.put(rows, share, first, arranged.data());
  });
  products.x = arranged.data();
  products.beta = bias ? 1 : 0;
  products.out = made.data();
  multiply_shares(products, sorted.shares);
  each_row(count, gated ? 4 * width : width, [&](long i, auto&) {
    const float* from = made.data() + i * columns;
    float* to = out + static_cast<long>(sorted.rows[i]) * width;
    if (gated) kernels().gate(Gate::silu, from, from + width, width, to);
    else std::copy(from, from + columns, to);
  });
}

mx::array expert_product(
    const mx::array& x, const mx::array& chosen, const mx::array& weight, const QuantizedMatrix*
    quantized, const mx::array* bias, bool gated, mx::Stream stream) {
  check_rows(x);
  require(x.ndim() == 2, "the rows are no matrix");
  require(
      (chosen.dtype() == mx::uint32 || chosen.dtype() == mx::int32) && chosen.ndim() == 1,
      "the experts are no 32-bit integers in a row");
  const int rows = x.shape(0), depth = x.shape(1), count = chosen.shape(0);
  require(rows == 0 ? count == 0 : count % rows == 0, "there are not as many experts for each row");
  Arrays inputs = {x, chosen};
  QuantizedShape shape = {};
  if (quantized) {
    shape = shape_of(*quantized, 3, depth);
    put_inputs(*quantized, inputs);
  } else {
    inputs.push_back(weight);
    require(weight.dtype() == mx::float32 && weight.ndim() == 3, "the weights are no matrices of float32");
    require(weight.size() > 0 && weight.shape(2) == depth, "the weights do not fit the last axis");
  }
  const int experts = weight.shape(0), columns = quantized ? shape.columns : weight.shape(1);
  require(!gated || columns % 2 == 0, "there are no halves to gate");
  if (bias) {
    const bool is_one = bias->dtype() == mx::float32 && bias->shape() == mx::Shape{experts, columns};
    require(is_one, "the bias does not fit the weights");
    inputs.push_back(*bias);
  }
  const auto make = [=, is_quantized = quantized != nullptr, has_bias = bias != nullptr](
                        const Arrays& in, Arrays& out) -> Task {
    ExpertProducts products = {experts, columns, depth};
    products.w = is_quantized ? nullptr : memory<float>(in[2]);
    products.shape = shape;
    if (is_quantized) products.matrix = shape.product(&in[2]);
    const float* added = has_bias ? memory<float>(in.back()) : nullptr;
    float* to = out[0].data<float>();
    const Rows rows(in[0]);
    // With one expert per row the indices may be strided: one column of the router's sorted indices.
    const auto* indices = in[1].data<uint32_t>();
    const long stride = count > 1 ? in[1].strides(0) : 1;
    return [=] {
      std::vector<int> listed(count);
      for (int i = 0; i < count; i++) listed[i] = static_cast<int>(indices[i * stride]);
      multiply_experts(products, rows, listed, added, gated, to);
    };
  };
  const mx::Shape made = {count, gated ? columns / 2 : columns};
  return operation(stream, "mlx_serve_expert_product", made, inputs, make);
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_expert_product(
    mlx_array* res, const mlx_array x, const mlx_array experts, const mlx_array weight, const
    mlx_array scales, const mlx_array biases, const mlx_array bias, int bits, int group, bool gated,
    const mlx_stream s) {
  return result(res, [&] {
    const auto optional = [](const mlx_array& x) { return x.ctx ? &mlx_array_get_(x) : nullptr; };
    const auto& w = mlx_array_get_(weight);
    const auto multiply = [&](const mlx_serve::QuantizedMatrix* quantized) {
      return mlx_serve::expert_product(
          mlx_array_get_(x), mlx_array_get_(experts), w, quantized, optional(bias), gated,
          mlx_stream_get_(s));
    };
    if (!scales.ctx) return multiply(nullptr);
    const mlx_serve::QuantizedMatrix quantized = {w, mlx_array_get_(scales), optional(biases), bits, group};
    return multiply(&quantized);
  });
}
