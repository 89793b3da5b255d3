// Paged latent attention (MLA) as an MLX operation.
#include "ops.h"

#include "places.h"

namespace mlx_serve {
namespace {

/** Query heads and tokens per work item, which loads each KV block once for all of them. */
constexpr int HEADS_TOGETHER = 8, TOKENS_TOGETHER = 4;
static_assert(HEADS_TOGETHER * TOKENS_TOGETHER <= MOST_QUERIES);

struct LatentSizes {
  int heads, latent, rotary;
  bool rotated;
};

LatentLayer layer_of(const LatentSizes& sizes, const float* packed) {
  const auto& [heads, latent, rotary, rotated] = sizes;
  const float* wavelengths = packed + 4 + 3 * latent;
  return {heads, latent, rotary, packed[0], packed[3], rotated ? wavelengths : nullptr};
}

LatentSizes sizes_of(
    const mx::array& queries, const mx::array& latents, const mx::array& pool, int latent, bool rotated) {
  const bool floats = queries.dtype() == mx::float32 && latents.dtype() == mx::float32;
  require(floats && queries.ndim() == 2 && latents.ndim() == 2, "the rows are not float32 (T, columns)");
  const int dim = latents.shape(1);
  require(pool.dtype() == mx::float32 && pool.ndim() == 4, "the pool is not float32 with four axes");
  require(
      pool.shape(1) == 1 && pool.shape(2) == BLOCK_TOKENS && pool.shape(3) == dim,
      "the pool is not (blocks, 1, 32, D)");
  require(latent > 0 && latent <= dim && dim <= MOST_DIM, "the vectors do not fit");
  require((dim - latent) % 2 == 0, "the rotary features are no even number");
  require(
      queries.shape(0) == latents.shape(0) && queries.shape(1) > 0 && queries.shape(1) % dim == 0,
      "the queries are no whole number of heads a token");
  return {queries.shape(1) / dim, latent, dim - latent, rotated};
}

mx::array attend_latent(
    const mx::array& queries, const mx::array& latents, const mx::array& pool, const mx::array&
    tables, const mx::array* places, const mx::array& layer, int latent, bool rotated, mx::Stream
    stream) {
  const LatentSizes sizes = sizes_of(queries, latents, pool, latent, rotated);
  const int count = queries.shape(0), dim = latent + sizes.rotary;
  const size_t least = 4 + 3 * latent + (rotated ? sizes.rotary / 2 : 0);
  require(
      layer.dtype() == mx::float32 && layer.ndim() == 1 && layer.size() >= least,
      "the layer has too few numbers");
  Arrays inputs = {queries, latents, pool, tables, layer};
  if (places) {
    check_ints(tables, "the tables are not int32 in a row");
    check_places(*places, count);
    inputs.push_back(*places);
  } else {
    check_tables(tables, count);
  }
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const float* vectors = memory<float>(in[1]);
    float* blocks = memory<float>(in[2]);
    const int* packed = memory<int>(in[3]);
    const float* numbers = memory<float>(in[4]);
    const auto* given = in.size() > 5 ? reinterpret_cast<const Place*>(memory<int>(in[5])) : nullptr;
    float* attended = out[0].data<float>();
    return [=] {
      const LatentLayer layer = layer_of(sizes, numbers);
      const std::vector<Place> newest = given ? std::vector<Place>() : newest_places(packed, count);
      const Place* where = given ? given : newest.data();
      const long width = static_cast<long>(sizes.heads) * dim;
      const Buffer prepared(count * width);
      each_row(count, static_cast<int>(width), [&](long token, auto&) {
        const auto& [position, slot, row] = where[token];
        kernels().prepare_latent(
            layer, rows + token * width, vectors + token * dim, position,
            blocks + static_cast<long>(slot) * dim, prepared.data() + token * width);
      });
      const auto spans = spans_of(packed, where, count, TOKENS_TOGETHER);
      const int groups = (sizes.heads + HEADS_TOGETHER - 1) / HEADS_TOGETHER;
      parallel(static_cast<int>(spans.size()) * groups, [&](int i) {
        const auto& [first, span] = spans[i / groups];
        const int head = i % groups * HEADS_TOGETHER;
        kernels().attend_latent(
            layer, blocks, prepared.data() + first * width, span, head,
            std::min(HEADS_TOGETHER, sizes.heads - head),
            attended + static_cast<long>(first) * sizes.heads * latent);
      });
    };
  };
  const mx::Shape shape = {count, sizes.heads * latent};
  return operation(stream, "mlx_serve_attend_latent", shape, inputs, make);
}

} // namespace
} // namespace mlx_serve

extern "C" int mlx_serve_attend_latent(
    mlx_array* res, const mlx_array queries, const mlx_array latents, const mlx_array pool, const
    mlx_array tables, const mlx_array places, const mlx_array layer, int latent, bool rotated, const
    mlx_stream s) {
  return mlx_serve::result(res, [&] {
    return mlx_serve::attend_latent(
        mlx_array_get_(queries), mlx_array_get_(latents), mlx_array_get_(pool), mlx_array_get_(tables),
        places.ctx ? &mlx_array_get_(places) : nullptr, mlx_array_get_(layer), latent, rotated,
        mlx_stream_get_(s));
  });
}
