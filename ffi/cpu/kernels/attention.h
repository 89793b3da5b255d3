// Paged attention: prepares heads, writes keys and values, attends. Part of kernels.cpp.
#pragma once

#include "rows.h"

extern "C" float sinf(float);
extern "C" float cosf(float);

namespace mlx_serve {
namespace VARIANT {

static INLINE void rotate(const Layer& layer, const float* sines, const float* cosines, float* head) {
  const int half = layer.rotary_dims / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i] * layer.magnitude, b = head[i + half] * layer.magnitude;
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = a * sines[i] + b * cosines[i];
  }
}

static void prepare(
    const Layer& layer, Pools pools, const float* qkv, int position, long slot, float* queries) {
  const int dim = layer.dim;
  float sines[MOST_DIM / 2], cosines[MOST_DIM / 2], head[MOST_DIM];
  for (int i = 0; i < layer.rotary_dims / 2; i++) {
    const float angle = position / layer.wavelengths[i];
    sines[i] = sinf(angle);
    cosines[i] = cosf(angle);
  }
  const int kv_heads = layer.shares_kv ? 0 : layer.kv_heads;
  for (int i = 0; i < layer.heads + kv_heads; i++) {
    const bool is_query = i < layer.heads;
    const float* weight = is_query ? layer.query_norm : layer.key_norm;
    float* to = is_query ? queries + (long)i * dim : head;
    if (weight) norm(qkv + (long)i * dim, weight, dim, layer.eps, to);
    else __builtin_memcpy(to, qkv + (long)i * dim, dim * sizeof(float));
    if (layer.rotary_dims > 0) rotate(layer, sines, cosines, to);
    if (is_query) continue;
    const long block = slot / BLOCK_TOKENS * layer.kv_heads + i - layer.heads;
    float* keys = pools.keys + block * dim * BLOCK_TOKENS + slot % BLOCK_TOKENS;
    for (int d = 0; d < dim; d++) keys[(long)d * BLOCK_TOKENS] = head[d];
  }
  for (int kv = 0; kv < kv_heads; kv++) {
    const long block = slot / BLOCK_TOKENS * layer.kv_heads + kv;
    float* value = pools.values + (block * BLOCK_TOKENS + slot % BLOCK_TOKENS) * dim;
    const float* from = qkv + (long)(layer.heads + layer.kv_heads + kv) * dim;
    if (layer.value_norm) norm(from, layer.value_norm, dim, layer.eps, value);
    else __builtin_memcpy(value, from, dim * sizeof(float));
  }
}

/** Computes scores of Q queries against all keys of a KV block: (Q, BLOCK_TOKENS). */
template <int Q>
static INLINE void score(const float* queries, const float* keys, int dim, float* scores) {
  for (int t = 0; t < BLOCK_TOKENS; t += 2 * LANES) {
    Floats low[Q] = {}, high[Q] = {};
    for (int d = 0; d < dim; d++) {
      const Floats a = load(keys + (long)d * BLOCK_TOKENS + t);
      const Floats b = load(keys + (long)d * BLOCK_TOKENS + t + LANES);
      for (int q = 0; q < Q; q++) {
        low[q] += queries[q * dim + d] * a;
        high[q] += queries[q * dim + d] * b;
      }
    }
    for (int q = 0; q < Q; q++) {
      store(scores + q * BLOCK_TOKENS + t, low[q]);
      store(scores + q * BLOCK_TOKENS + t + LANES, high[q]);
    }
  }
}

/** Adds to sums (Q, dim): weights * values of tokens from..to of a block. Values are `stride` apart. */
template <int Q>
static INLINE void add_values(
    const float* weights, const float* values, long stride, int from, int to, int dim, float* sums) {
  int d = 0;
  for (; d + 2 * LANES <= dim; d += 2 * LANES) {
    Floats low[Q], high[Q];
    for (int q = 0; q < Q; q++) {
      low[q] = load(sums + q * dim + d);
      high[q] = load(sums + q * dim + d + LANES);
    }
    for (int t = from; t < to; t++) {
      const Floats a = load(values + t * stride + d);
      const Floats b = load(values + t * stride + d + LANES);
      for (int q = 0; q < Q; q++) {
        low[q] += weights[q * BLOCK_TOKENS + t] * a;
        high[q] += weights[q * BLOCK_TOKENS + t] * b;
      }
    }
    for (int q = 0; q < Q; q++) {
      store(sums + q * dim + d, low[q]);
      store(sums + q * dim + d + LANES, high[q]);
    }
  }
  for (int t = from; t < to; t++) {
    for (int q = 0; q < Q; q++) {
      const float weight = weights[q * BLOCK_TOKENS + t];
      for (int i = d; i < dim; i++) sums[q * dim + i] += weight * values[t * stride + i];
    }
  }
}

/** State of one query's online softmax: the maximum score, and the sum of the weights relative to that score. */
struct Softmax {
  float top, total;
};

/**
 * Replaces a block's scores by softmax weights, 0 outside from..to. Returns the factor that
 * rescales earlier sums. A NaN score makes the weights NaN.
 */
static INLINE float update_softmax(Softmax& soft, float* scores, int from, int to, float cap) {
  Ints token;
  for (int i = 0; i < LANES; i++) token[i] = i;
  const auto seen = [&](int t) { return (token + t >= from) & (token + t < to); };
  Floats most = all(soft.top);
  for (int t = 0; t < BLOCK_TOKENS; t += LANES) {
    Floats x = load(scores + t);
    if (cap > 0) {
      x = cap * tanh(x / cap);
      store(scores + t, x);
    }
    most = select(seen(t), max(x, most), most);
  }
  const float before = soft.top;
  soft.top = highest(most);
  Floats added = {};
  for (int t = 0; t < BLOCK_TOKENS; t += LANES) {
    const Floats x = select(seen(t), exponential(load(scores + t) - soft.top), Floats{});
    store(scores + t, x);
    added += x;
  }
  const float shrink = before == soft.top ? 1 : exponential(all(before - soft.top))[0];
  soft.total = soft.total * shrink + sum(added);
  return shrink;
}

static void attend(
    const Layer& layer, Pools pools, const float* queries, Span span, int kv, float* attended) {
  const int dim = layer.dim, heads_per_kv = layer.heads / layer.kv_heads;
  const int count = span.count * heads_per_kv;
  const auto at = [&](int q) {
    return ((long)(q / heads_per_kv) * layer.heads + kv * heads_per_kv + q % heads_per_kv) * dim;
  };
  float scaled[MOST_NUMBERS], sums[MOST_NUMBERS], weights[MOST_QUERIES * BLOCK_TOKENS];
  Softmax softs[MOST_QUERIES];
  for (int q = 0; q < count; q++) {
    const float* query = queries + at(q);
    for (int d = 0; d < dim; d++) {
      scaled[q * dim + d] = query[d] * layer.scale;
      sums[q * dim + d] = 0;
    }
    softs[q] = {-__builtin_inff(), 0};
  }
  const auto oldest = [&](int position) {
    if (layer.window == 0 || position < layer.window) return 0;
    return layer.chunked ? position - position % layer.window : position - layer.window + 1;
  };
  const int last = span.position + span.count - 1;
  for (int block = oldest(span.position) / BLOCK_TOKENS; block <= last / BLOCK_TOKENS; block++) {
    const long offset = ((long)span.table[block] * layer.kv_heads + kv) * BLOCK_TOKENS * dim;
    const float* keys = pools.keys + offset;
    const float* values = pools.values + offset;
    const int start = block * BLOCK_TOKENS;
    for (int q = 0; q < count; q += 4) {
      const int some = count - q < 4 ? count - q : 4;
      float* own = weights + q * BLOCK_TOKENS;
      switch (some) {
        case 4: score<4>(scaled + q * dim, keys, dim, own); break;
        case 3: score<3>(scaled + q * dim, keys, dim, own); break;
        case 2: score<2>(scaled + q * dim, keys, dim, own); break;
        case 1: score<1>(scaled + q * dim, keys, dim, own); break;
      }
      int first = BLOCK_TOKENS, end = 0;
      for (int i = q; i < q + some; i++) {
        const int position = span.position + i / heads_per_kv;
        const int from = oldest(position) > start ? oldest(position) - start : 0;
        const int to = position - start < BLOCK_TOKENS ? position - start + 1 : BLOCK_TOKENS;
        if (from >= to) {
          for (int t = 0; t < BLOCK_TOKENS; t++) weights[i * BLOCK_TOKENS + t] = 0;
          continue;
        }
        if (from < first) first = from;
        if (to > end) end = to;
        const float shrink = update_softmax(softs[i], weights + i * BLOCK_TOKENS, from, to, layer.cap);
        if (shrink != 1) {
          for (int d = 0; d < dim; d++) sums[i * dim + d] *= shrink;
        }
      }
      switch (some) {
        case 4: add_values<4>(own, values, dim, first, end, dim, sums + q * dim); break;
        case 3: add_values<3>(own, values, dim, first, end, dim, sums + q * dim); break;
        case 2: add_values<2>(own, values, dim, first, end, dim, sums + q * dim); break;
        case 1: add_values<1>(own, values, dim, first, end, dim, sums + q * dim); break;
      }
    }
  }
  for (int q = 0; q < count; q++) {
    float scale = 1 / softs[q].total;
    if (layer.sinks) {
      const float sink = layer.sinks[kv * heads_per_kv + q % heads_per_kv], top = softs[q].top;
      const float most = sink > top ? sink : top;
      const float shrink = exponential(all(top - most))[0];
      scale = shrink / (softs[q].total * shrink + exponential(all(sink - most))[0]);
    }
    float* to = attended + at(q);
    for (int d = 0; d < dim; d++) to[d] = sums[q * dim + d] * scale;
  }
}

} // namespace VARIANT
} // namespace mlx_serve
