// Paged attention as MLX operations.
#include "ops.h"

#include "places.h"

namespace mlx_serve {
namespace {

struct Options {
  bool normed, values_normed, shares_kv;
  int rotary_dims, long_beyond, window;
  bool chunked, capped, sinks;
};

/** Head counts and head size, derived from the arrays' shapes. The constructor checks the shapes. */
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
  const size_t rope = options.rotary_dims / 2 + (options.long_beyond > 0 ? options.rotary_dims / 2 + 1 : 0);
  const size_t least = 4 + 3 * sizes.dim + rope + (options.sinks ? sizes.heads : 0);
  require(
      layer.dtype() == mx::float32 && layer.ndim() == 1 && layer.size() >= least,
      "the layer has too few numbers");
}

Layer layer_of(const Sizes& sizes, const float* packed, const Options& options) {
  const float* norms = packed + 4;
  const float* wavelengths = norms + 3 * sizes.dim;
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
      options.values_normed ? norms + 2 * sizes.dim : nullptr,
      wavelengths,
      options.rotary_dims,
      options.sinks ? wavelengths + options.rotary_dims / 2 : nullptr,
      options.window,
      options.chunked,
      options.shares_kv,
  };
}

/** Returns the layer with longrope's RoPE factors for long sequences; the layer itself if `long_beyond` is 0. */
Layer long_layer_of(const Layer& layer, const Options& options) {
  if (options.long_beyond == 0) return layer;
  Layer own = layer;
  own.wavelengths += options.rotary_dims / 2 + (options.sinks ? layer.heads : 0);
  own.magnitude = own.wavelengths[options.rotary_dims / 2];
  return own;
}

void prepare_all(
    const Layer& layer, const Options& options, Pools pools, const float* qkv, const Place* places,
    int count, float* queries) {
  const Layer long_layer = long_layer_of(layer, options);
  const long width = static_cast<long>(layer.heads) * layer.dim;
  const long columns = width + (layer.shares_kv ? 0 : 2L * layer.kv_heads * layer.dim);
  each_row(count, static_cast<int>(columns), [&](long token, auto&) {
    const auto& [position, slot, row] = places[token];
    const bool is_long = slot < 0;
    kernels().prepare(
        is_long ? long_layer : layer, pools, qkv + token * columns, position, is_long ? ~slot : slot,
        queries + token * width);
  });
}

void attend_all(
    const Layer& layer, Pools pools, const float* queries, const int* tables, const Place* places,
    int count, float* attended) {
  const int heads_per_kv = layer.heads / layer.kv_heads;
  const int most = std::max(1, std::min(32, 4096 / layer.dim) / heads_per_kv);
  const auto spans = spans_of(tables, places, count, most);
  const long width = static_cast<long>(layer.heads) * layer.dim;
  parallel(static_cast<int>(spans.size()) * layer.kv_heads, [&](int i) {
    const auto& [first, span] = spans[i / layer.kv_heads];
    const long at = first * width;
    kernels().attend(layer, pools, queries + at, span, i % layer.kv_heads, attended + at);
  });
}

mx::array decode(
    const mx::array& qkv, const mx::array& keys, const mx::array& values, const mx::array& tables,
    const mx::array& layer, Options options, mx::Stream stream) {
  const Sizes sizes(qkv, keys, values, !options.shares_kv);
  check_layer(layer, sizes, options);
  const int count = qkv.shape(0);
  check_tables(tables, count);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const Pools pools = {memory<float>(in[1]), memory<float>(in[2])};
    const int* packed = memory<int>(in[3]);
    const float* numbers = memory<float>(in[4]);
    float* attended = out[0].data<float>();
    return [=] {
      const Layer layer = layer_of(sizes, numbers, options);
      const std::vector<Place> places = newest_places(packed, count, options.long_beyond);
      std::vector<float> queries(static_cast<size_t>(count) * sizes.heads * sizes.dim);
      prepare_all(layer, options, pools, rows, places.data(), count, queries.data());
      attend_all(layer, pools, queries.data(), packed, places.data(), count, attended);
    };
  };
  const mx::Shape shape = {count, sizes.heads * sizes.dim};
  return operation(stream, "mlx_serve_decode", shape, {qkv, keys, values, tables, layer}, make);
}

mx::array prepare(
    const mx::array& qkv, const mx::array& keys, const mx::array& values, const mx::array& places,
    const mx::array& layer, Options options, mx::Stream stream) {
  const Sizes sizes(qkv, keys, values, !options.shares_kv);
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
      prepare_all(layer_of(sizes, numbers, options), options, pools, rows, where, count, queries);
    };
  };
  const mx::Shape shape = {count, sizes.heads * sizes.dim};
  return operation(stream, "mlx_serve_prepare", shape, {qkv, keys, values, places, layer}, make);
}

mx::array attend(
    const mx::array& queries, const mx::array& keys, const mx::array& values, const mx::array&
    tables, const mx::array& places, const mx::array& layer, Options options, mx::Stream stream) {
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

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_decode(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values, const
    mlx_array tables, const mlx_array layer, bool normed, bool values_normed, bool shares_kv, int
    rotary_dims, int long_beyond, int window, bool chunked, bool capped, bool sinks, const
    mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::decode(
        mlx_array_get_(qkv), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(tables),
        mlx_array_get_(layer),
        {normed, values_normed, shares_kv, rotary_dims, long_beyond, window, chunked, capped, sinks},
        mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_prepare(
    mlx_array* res, const mlx_array qkv, const mlx_array keys, const mlx_array values,
    const mlx_array places, const mlx_array layer, bool normed, bool values_normed, bool shares_kv,
    int rotary_dims, int long_beyond, bool sinks, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::prepare(
        mlx_array_get_(qkv), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(places),
        mlx_array_get_(layer),
        {normed, values_normed, shares_kv, rotary_dims, long_beyond, 0, false, false, sinks},
        mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_attend(
    mlx_array* res, const mlx_array queries, const mlx_array keys, const mlx_array values,
    const mlx_array tables, const mlx_array places, const mlx_array layer, int rotary_dims, int window,
    bool chunked, bool capped, bool sinks, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::attend(
        mlx_array_get_(queries), mlx_array_get_(keys), mlx_array_get_(values), mlx_array_get_(tables),
        mlx_array_get_(places), mlx_array_get_(layer),
        {false, false, false, rotary_dims, 0, window, chunked, capped, sinks}, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_copy_blocks(
    mlx_array* res, const mlx_array pool, const mlx_array pairs, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::copy_blocks(mlx_array_get_(pool), mlx_array_get_(pairs), mlx_stream_get_(s));
  });
}
