// Latent attention (MLA): all heads of a token share one vector per token. The whole vector is the key, its first
// LATENT features are the value. RoPE rotates the other ROTARY features in adjacent pairs. A CTA loads a tile of
// vectors into shared memory, and each warp attends to the tile with HEADS heads.
#include "attention.h"

/** Tokens per tile, few enough that shared memory stays below Metal's 32 KiB per CTA. */
enum { LATENT_TILE = 8 };

/** WIDE features, loaded as one access. A vector has PACKS packs. */
template <typename T, int D>
struct LatentPack {
  enum { WIDE = sizeof(T) == 2 && D % 8 == 0 ? 8 : D % 4 == 0 ? 4 : D % 2 == 0 ? 2 : 1, PACKS = D / WIDE };
  struct alignas(sizeof(T) * WIDE) Pack {
    T x[WIDE];
  };
};

/** Returns feature `d` of `from`, a query or a token's vector, with RoPE applied. */
template <int LATENT, bool ROTATED, typename T>
FUNCTION float latent_feature(const DEVICE T* from, const DEVICE float* layer, int position, int d) {
  if (!ROTATED || d < LATENT) return float(from[d]);
  const int pair = (d - LATENT) / 2;
  float sine, cosine;
  SINCOS(float(position) / layer_wavelengths<LATENT>(layer)[pair], sine, cosine);
  const float magnitude = layer[LAYER_ROPE_MAGNITUDE];
  const float a = float(from[LATENT + 2 * pair]) * magnitude;
  const float b = float(from[LATENT + 2 * pair + 1]) * magnitude;
  // Rounds the rotated feature to T, as unfused operations would.
  return float(T((d - LATENT) % 2 == 0 ? a * cosine - b * sine : a * sine + b * cosine));
}

/**
 * Normalizes the latent features of the vector `from`, applies RoPE to the others, and writes the
 * vector to `to`, with a CTA of THREADS threads. `squares`: shared memory, one float per warp.
 */
template <int THREADS, int LATENT, int ROTARY, bool ROTATED, typename T>
FUNCTION void write_latent(
    const DEVICE T* from, const DEVICE float* layer, int position, IN_SHARED float* squares, int lane, int warp,
    int thread_index, DEVICE T* to) {
  float sum = 0;
  for (int d = thread_index; d < LATENT; d += THREADS) sum += float(from[d]) * float(from[d]);
  for (int mask = 16; mask > 0; mask /= 2) sum += SHUFFLE_XOR(sum, mask);
  if (lane == 0) squares[warp] = sum;
  BARRIER;
  sum = 0;
  for (int w = 0; w < THREADS / 32; w++) sum += squares[w];
  const float scale = RSQRT(sum / LATENT + layer[LAYER_NORM_EPS]);
  for (int d = thread_index; d < LATENT + ROTARY; d += THREADS) {
    const float x = latent_feature<LATENT, ROTATED>(from, layer, position, d);
    to[d] = T(d < LATENT ? x * scale * layer[LAYER_QUERY_NORM + d] : x);
  }
}

/** A warp's heads in registers: query, accumulator, softmax. A lane has every 32nd feature. */
template <int HEADS, int LATENT, int ROTARY>
struct LatentHeads {
  enum { EACH = (LATENT + ROTARY + 31) / 32, VALUES = (LATENT + 31) / 32 };
  float query[HEADS][EACH], sum[HEADS][VALUES], top[HEADS], total[HEADS];
};

/** Loads the queries of HEADS heads, from head `first` on; a token has `all` heads. */
template <bool ROTATED, int HEADS, int LATENT, int ROTARY, typename T>
FUNCTION void begin_latent(
    PRIVATE LatentHeads<HEADS, LATENT, ROTARY>& heads, const DEVICE T* queries, const DEVICE float* layer,
    int position, int first, int all, int lane) {
  typedef LatentHeads<HEADS, LATENT, ROTARY> Heads;
  constexpr int D = LATENT + ROTARY;
  for (int h = 0; h < HEADS; h++) {
    heads.top[h] = -1e30f;
    heads.total[h] = 0;
    for (int i = 0; i < Heads::VALUES; i++) heads.sum[h][i] = 0;
    const DEVICE T* from = queries + (first + h < all ? first + h : 0) * D;
    for (int i = 0; i < Heads::EACH; i++) {
      const int d = i * 32 + lane;
      heads.query[h][i] =
          d < D ? latent_feature<LATENT, ROTATED>(from, layer, position, d) * layer[LAYER_SCALE] : 0;
    }
  }
}

/** Attends to the `count` tokens of a tile. The loops are unrolled, so that the heads' state stays in registers. */
template <int HEADS, int LATENT, int ROTARY, typename T>
FUNCTION void attend_tile(
    PRIVATE LatentHeads<HEADS, LATENT, ROTARY>& heads, const IN_SHARED T* tile, int count, int lane) {
  typedef LatentHeads<HEADS, LATENT, ROTARY> Heads;
  constexpr int D = LATENT + ROTARY;
  float score[LATENT_TILE][HEADS];
  #pragma unroll
  for (int t = 0; t < LATENT_TILE; t++) {
    for (int h = 0; h < HEADS; h++) score[t][h] = t < count ? 0 : -1e30f;
    if (t >= count) continue;
    #pragma unroll
    for (int i = 0; i < Heads::EACH; i++) {
      const int d = i * 32 + lane;
      const float x = D % 32 == 0 || d < D ? float(tile[t * D + d]) : 0;
      for (int h = 0; h < HEADS; h++) score[t][h] += heads.query[h][i] * x;
    }
    for (int mask = 16; mask > 0; mask /= 2)
      for (int h = 0; h < HEADS; h++) score[t][h] += SHUFFLE_XOR(score[t][h], mask);
  }
  #pragma unroll
  for (int h = 0; h < HEADS; h++) {
    float highest = heads.top[h];
    #pragma unroll
    for (int t = 0; t < LATENT_TILE; t++) highest = score[t][h] > highest ? score[t][h] : highest;
    const float keep = EXP(heads.top[h] - highest);
    heads.top[h] = highest;
    heads.total[h] *= keep;
    #pragma unroll
    for (int i = 0; i < Heads::VALUES; i++) heads.sum[h][i] *= keep;
    #pragma unroll
    for (int t = 0; t < LATENT_TILE; t++) {
      score[t][h] = t < count ? EXP(score[t][h] - highest) : 0;
      heads.total[h] += score[t][h];
    }
  }
  #pragma unroll
  for (int t = 0; t < LATENT_TILE; t++) {
    // Skips tile rows after the last token, which may contain anything, even NaN.
    if (t >= count) continue;
    #pragma unroll
    for (int i = 0; i < Heads::VALUES; i++) {
      const int d = i * 32 + lane;
      const float x = LATENT % 32 == 0 || d < LATENT ? float(tile[t * D + d]) : 0;
      for (int h = 0; h < HEADS; h++) heads.sum[h][i] += score[t][h] * x;
    }
  }
}

/**
 * Attends to the tokens of a range; all THREADS threads of the CTA must call it. The newest token, at
 * `newest_position`, is not in the pool (blocks, 1, 32, LATENT + ROTARY) yet: its vector is at `newest`.
 */
template <int THREADS, int HEADS, int LATENT, int ROTARY, typename T, typename Pack>
FUNCTION void attend_latents(
    PRIVATE LatentHeads<HEADS, LATENT, ROTARY>& heads, const DEVICE T* pool, const DEVICE int* table,
    TokenRange range, int newest_position, const IN_SHARED Pack* newest, IN_SHARED Pack* tile, int lane,
    int thread_index) {
  constexpr int PACKS = LatentPack<T, LATENT + ROTARY>::PACKS;
  const DEVICE Pack* vectors = reinterpret_cast<const DEVICE Pack*>(pool);
  for (int first = range.begin; first < range.end; first += LATENT_TILE) {
    const int count = range.end - first < LATENT_TILE ? range.end - first : LATENT_TILE;
    BARRIER;
    for (int j = thread_index; j < count * PACKS; j += THREADS) {
      const int t = first + j / PACKS, p = j % PACKS;
      if (t == newest_position) tile[j] = newest[p];
      else tile[j] = vectors[(long(table[t / 32]) * 32 + t % 32) * PACKS + p];
    }
    BARRIER;
    attend_tile(heads, tile[0].x, count, lane);
  }
}

/** Writes the output or, with SPLITS above 1, partial results, as store_attention does with D = LATENT. */
template <int SPLITS, int HEADS, int LATENT, int ROTARY, typename Out>
FUNCTION void store_latent(
    const PRIVATE LatentHeads<HEADS, LATENT, ROTARY>& heads, int token, int split, int first, int all,
    int lane, DEVICE Out* out) {
  for (int h = 0; h < HEADS; h++) {
    if (first + h >= all) continue;
    const long row = long(token) * all + first + h;
    DEVICE Out* to = out + (SPLITS == 1 ? row * LATENT : (row * SPLITS + split) * (LATENT + 2));
    for (int i = 0; i < (LATENT + 31) / 32; i++) {
      const int d = i * 32 + lane;
      if (d < LATENT) to[d] = Out(SPLITS == 1 ? heads.sum[h][i] / heads.total[h] : heads.sum[h][i]);
    }
    if (SPLITS > 1 && lane == 0) {
      to[LATENT] = Out(heads.top[h]);
      to[LATENT + 1] = Out(heads.total[h]);
    }
  }
}
