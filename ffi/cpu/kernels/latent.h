// Latent attention (MLA): all heads share one vector per token. Part of kernels.cpp.
#pragma once

#include "attention.h"

namespace mlx_serve {
namespace VARIANT {

static INLINE void
rotate_pairs(const LatentLayer& layer, const float* sines, const float* cosines, float* x) {
  for (int i = 0; i < layer.rotary / 2; i++) {
    const float a = x[2 * i] * layer.magnitude, b = x[2 * i + 1] * layer.magnitude;
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = a * sines[i] + b * cosines[i];
  }
}

static void prepare_latent(
    const LatentLayer& layer, const float* queries, const float* latent, int position, float* slot,
    float* prepared) {
  const int dim = layer.latent + layer.rotary;
  float sines[MOST_DIM / 2], cosines[MOST_DIM / 2];
  if (layer.wavelengths) {
    for (int i = 0; i < layer.rotary / 2; i++) {
      const float angle = position / layer.wavelengths[i];
      sines[i] = sinf(angle);
      cosines[i] = cosf(angle);
    }
  }
  __builtin_memcpy(slot, latent, dim * sizeof(float));
  if (layer.wavelengths) rotate_pairs(layer, sines, cosines, slot + layer.latent);
  for (int head = 0; head < layer.heads; head++) {
    float* to = prepared + (long)head * dim;
    for (int d = 0; d < dim; d++) to[d] = queries[(long)head * dim + d] * layer.scale;
    if (layer.wavelengths) rotate_pairs(layer, sines, cosines, to + layer.latent);
  }
}

/** Computes scores of Q queries against the first `count` vectors of a KV block: (Q, BLOCK_TOKENS). */
template <int Q>
static INLINE void
score_vectors(const float* queries, const float* block, int dim, int count, float* scores) {
  // Takes two vectors at a time: a block has an even number of vectors, and a score past `count` is ignored.
  for (int t = 0; t < count; t += 2) {
    const float* x = block + (long)t * dim;
    const float* y = x + dim;
    Floats low[Q] = {}, high[Q] = {};
    int d = 0;
    for (; d + LANES <= dim; d += LANES) {
      const Floats a = load(x + d), b = load(y + d);
      for (int q = 0; q < Q; q++) {
        const Floats query = load(queries + q * dim + d);
        low[q] += query * a;
        high[q] += query * b;
      }
    }
    for (int q = 0; q < Q; q++) {
      float first = sum(low[q]), second = sum(high[q]);
      for (int i = d; i < dim; i++) {
        first += queries[q * dim + i] * x[i];
        second += queries[q * dim + i] * y[i];
      }
      scores[q * BLOCK_TOKENS + t] = first;
      scores[q * BLOCK_TOKENS + t + 1] = second;
    }
  }
}

/** Attends with Q heads of one token to the first `count` tokens of a KV block. */
template <int Q>
static INLINE void attend_block(
    const float* queries, const float* block, int dim, int latent, int count, Softmax* softs, float*
    sums) {
  float weights[Q * BLOCK_TOKENS];
  score_vectors<Q>(queries, block, dim, count, weights);
  for (int q = 0; q < Q; q++) {
    const float shrink = update_softmax(softs[q], weights + q * BLOCK_TOKENS, 0, count, 0);
    if (shrink == 1) continue;
    for (int d = 0; d < latent; d++) sums[q * latent + d] *= shrink;
  }
  add_values<Q>(weights, block, dim, 0, count, latent, sums);
}

static void attend_latent(
    const LatentLayer& layer, const float* pool, const float* prepared, Span span, int first_head,
    int heads, float* attended) {
  const int latent = layer.latent, dim = latent + layer.rotary;
  Softmax softs[MOST_QUERIES];
  const auto row = [&](int token, int head) { return (long)token * layer.heads + first_head + head; };
  for (int token = 0; token < span.count; token++) {
    for (int head = 0; head < heads; head++) {
      softs[token * heads + head] = {-__builtin_inff(), 0};
      float* sums = attended + row(token, head) * latent;
      for (int d = 0; d < latent; d++) sums[d] = 0;
    }
  }
  const int last = span.position + span.count - 1;
  for (int index = 0; index <= last / BLOCK_TOKENS; index++) {
    const float* block = pool + (long)span.table[index] * BLOCK_TOKENS * dim;
    for (int token = 0; token < span.count; token++) {
      const int seen = span.position + token + 1 - index * BLOCK_TOKENS;
      const int count = seen < BLOCK_TOKENS ? seen : BLOCK_TOKENS;
      if (count <= 0) continue;
      for (int head = 0; head < heads; head += 4) {
        const float* queries = prepared + row(token, head) * dim;
        float* sums = attended + row(token, head) * latent;
        Softmax* own = softs + token * heads + head;
        switch (heads - head) {
          case 1: attend_block<1>(queries, block, dim, latent, count, own, sums); break;
          case 2: attend_block<2>(queries, block, dim, latent, count, own, sums); break;
          case 3: attend_block<3>(queries, block, dim, latent, count, own, sums); break;
          default: attend_block<4>(queries, block, dim, latent, count, own, sums);
        }
      }
    }
  }
  for (int token = 0; token < span.count; token++) {
    for (int head = 0; head < heads; head++) {
      const float scale = 1 / softs[token * heads + head].total;
      float* sums = attended + row(token, head) * latent;
      for (int d = 0; d < latent; d++) sums[d] *= scale;
    }
  }
}

} // namespace VARIANT
} // namespace mlx_serve
