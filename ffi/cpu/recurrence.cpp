// Recurrent layers as MLX operations. Their states are in slots of a pool, written in place.
#include "ops.h"

#include "operation.h"

namespace mlx_serve {
namespace {

/** A sequence's tokens (`first`, `count`), and its state's slots: read `from` (negative: none), written `to`. */
struct Move {
  int first, count, from, to;
};
static_assert(sizeof(Move) == 4 * sizeof(int));

void check_moves(const mx::array& moves) {
  check_ints(moves, "the moves are not int32 in a row");
  require(moves.size() > 0 && moves.size() % 4 == 0, "the moves are not four numbers each behind four others");
}

/** Returns the moves without the header in front of them, which only GPU kernels read. */
const Move* moves_in(const mx::array& moves) {
  return reinterpret_cast<const Move*>(memory<int>(moves)) + 1;
}

int count_of(const mx::array& moves) {
  return static_cast<int>(moves.size() / 4) - 1;
}

/** Returns the state in a slot, or null for a negative index. */
float* slot(float* pool, long size, int index) {
  return index < 0 ? nullptr : pool + index * size;
}

/** Channels per piece of work. */
constexpr int CHANNELS = 512;

mx::array convolve(
    const mx::array& x, const mx::array& pool, const mx::array& moves, const mx::array& weight,
    const mx::array* bias, bool silu, mx::Stream stream) {
  check_rows(x);
  check_moves(moves);
  require(x.ndim() == 2 && weight.ndim() == 2, "the rows or the weight are no matrix");
  const int taps = weight.shape(0), channels = weight.shape(1);
  require(weight.dtype() == mx::float32 && taps > 1, "the weight is not float32 (taps, channels)");
  require(x.shape(1) == channels, "the rows do not fit the weight");
  const bool fits = pool.ndim() == 3 && pool.shape(1) == taps - 1 && pool.shape(2) == channels;
  require(pool.dtype() == mx::float32 && fits, "the pool is not float32 (slots, taps - 1, channels)");
  Arrays inputs = {x, pool, moves, weight};
  if (bias) {
    require(bias->dtype() == mx::float32 && bias->shape() == mx::Shape{channels}, "the bias does not fit");
    inputs.push_back(*bias);
  }
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    // The channels may be columns of wider rows.
    require(in[0].strides(1) == 1, "the channels of a row are not side by side");
    const float* rows = in[0].data<float>();
    const long stride = in[0].strides(0);
    float* states = memory<float>(in[1]);
    const Move* listed = moves_in(in[2]);
    const int count = count_of(in[2]);
    const Convolution of = {
        channels, taps, memory<float>(in[3]), in.size() > 4 ? memory<float>(in[4]) : nullptr, silu};
    float* to = out[0].data<float>();
    return [=] {
      const long size = (taps - 1L) * channels;
      const int pieces = (channels + CHANNELS - 1) / CHANNELS;
      parallel(count * pieces, [&](int i) {
        const auto& [first, tokens, before, after] = listed[i / pieces];
        const int from = i % pieces * CHANNELS;
        const long token = first;
        kernels().convolve(
            of,
            {tokens, rows + token * stride, stride, slot(states, size, before), slot(states, size, after),
             to + token * channels},
            from,
            std::min(channels, from + CHANNELS));
      });
    };
  };
  return operation(stream, "mlx_serve_convolve", x.shape(), inputs, make);
}

/**
 * The columns of queries, keys and values in a row. Queries and keys are divided by their root mean square unless eps
 * is negative. `finds` and `puts` are the columns of RWKV 7's erasing vectors, negative for none.
 */
struct ScanColumns {
  int key_heads, queries, keys, values, finds, puts;
  float eps, query_scale, key_scale;
};

/** Divides each head of each token by its root mean square and multiplies it by `scale`. */
void norm_heads(
    const float* from, long stride, int tokens, int heads, int dim, float eps, float scale, float* to) {
  each_row(tokens * heads, dim, [&](long i, auto&) {
    float* head = to + i * dim;
    kernels().norm(from + i / heads * stride + i % heads * dim, nullptr, dim, eps, head);
    for (int d = 0; d < dim; d++) head[d] *= scale;
  });
}

mx::array scan(
    const mx::array& x, const mx::array& decays, const mx::array& betas, const mx::array& pool,
    const mx::array& moves, ScanColumns columns, bool corrects, mx::Stream stream) {
  check_rows(x);
  check_rows(decays);
  check_rows(betas);
  check_moves(moves);
  require(pool.dtype() == mx::float32 && pool.ndim() == 4, "the pool is not float32 (slots, heads, values, keys)");
  const int heads = pool.shape(1), value_dim = pool.shape(2), key_dim = pool.shape(3);
  const int key_heads = columns.key_heads, tokens = x.shape(0), width = x.shape(1);
  require(key_heads > 0 && heads % key_heads == 0, "the value heads are no multiple of the key heads");
  const auto fits = [&](int at, int size) { return at >= 0 && at + size <= width; };
  require(
      x.ndim() == 2 && fits(columns.queries, key_heads * key_dim) &&
          fits(columns.keys, key_heads * key_dim) && fits(columns.values, heads * value_dim),
      "queries, keys or values are not in the rows");
  const bool erases = columns.finds >= 0;
  require(
      !erases || (fits(columns.finds, key_heads * key_dim) && fits(columns.puts, key_heads * key_dim)),
      "what is erased is not in the rows");
  require(!erases || !corrects, "the delta rule erases by itself");
  const bool by_feature = decays.shape(-1) == heads * key_dim && key_dim > 1;
  require(
      decays.shape() == mx::Shape{tokens, by_feature ? heads * key_dim : heads},
      "there is not a decay for each token and head");
  require(betas.shape() == mx::Shape{tokens, heads}, "there is not a beta for each token and head");
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const float* rows = memory<float>(in[0]);
    const float* decay = memory<float>(in[1]);
    const float* beta = memory<float>(in[2]);
    float* states = memory<float>(in[3]);
    const Move* listed = moves_in(in[4]);
    const int count = count_of(in[4]);
    float* to = out[0].data<float>();
    return [=] {
      const bool normed = columns.eps >= 0;
      const long keys_width = static_cast<long>(key_heads) * key_dim;
      const Buffer buffer(normed ? 2 * tokens * keys_width : 0);
      const float* queries = rows + columns.queries;
      const float* keys = rows + columns.keys;
      if (normed) {
        float* normed_queries = buffer.data();
        float* normed_keys = normed_queries + tokens * keys_width;
        norm_heads(queries, width, tokens, key_heads, key_dim, columns.eps, columns.query_scale, normed_queries);
        norm_heads(keys, width, tokens, key_heads, key_dim, columns.eps, columns.key_scale, normed_keys);
        queries = normed_queries;
        keys = normed_keys;
      }
      const long stride = normed ? keys_width : width;
      const long decay_width = by_feature ? static_cast<long>(heads) * key_dim : heads;
      const long size = static_cast<long>(value_dim) * key_dim;
      const Scan of = {key_dim, corrects, by_feature, erases};
      // Makes several pieces per thread, for load balance.
      const int most = 8 * mlx_serve_pool_threads();
      const int pieces = std::max(1, std::min(value_dim / 8, most / std::max(1, count * heads)));
      const int some = (value_dim + pieces - 1) / pieces;
      parallel(count * heads * pieces, [&](int i) {
        const auto& [first, length, before, after] = listed[i / pieces / heads];
        const int head = i / pieces % heads, from = i % pieces * some;
        const long token = first, own_keys = static_cast<long>(head / (heads / key_heads)) * key_dim;
        const long key_at = token * stride + own_keys;
        const ScanRow row = {
            length,
            queries + key_at,
            stride,
            keys + key_at,
            stride,
            rows + token * width + columns.finds + own_keys,
            rows + token * width + columns.puts + own_keys,
            rows + token * width + columns.values + static_cast<long>(head) * value_dim,
            width,
            decay + token * decay_width + static_cast<long>(head) * (by_feature ? key_dim : 1),
            decay_width,
            beta + token * heads + head,
            heads,
            before < 0 ? nullptr : slot(states, heads * size, before) + head * size,
            slot(states, heads * size, after) + head * size,
            to + (token * heads + head) * value_dim,
            static_cast<long>(heads) * value_dim,
        };
        kernels().scan(of, row, from, std::min(value_dim, from + some));
      });
    };
  };
  const mx::Shape shape = {tokens, heads * value_dim};
  return operation(stream, "mlx_serve_scan", shape, {x, decays, betas, pool, moves}, make);
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_convolve(
    mlx_array* res, const mlx_array x, const mlx_array pool, const mlx_array moves, const mlx_array weight,
    const mlx_array bias, bool silu, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::convolve(
        mlx_array_get_(x), mlx_array_get_(pool), mlx_array_get_(moves), mlx_array_get_(weight),
        bias.ctx ? &mlx_array_get_(bias) : nullptr, silu, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_scan(
    mlx_array* res, const mlx_array x, const mlx_array decays, const mlx_array betas, const mlx_array pool,
    const mlx_array moves, int key_heads, int queries, int keys, int values, int finds, int puts,
    float eps, float query_scale, float key_scale, bool corrects, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::scan(
        mlx_array_get_(x), mlx_array_get_(decays), mlx_array_get_(betas), mlx_array_get_(pool),
        mlx_array_get_(moves), {key_heads, queries, keys, values, finds, puts, eps, query_scale, key_scale}, corrects,
        mlx_stream_get_(s));
  });
}
