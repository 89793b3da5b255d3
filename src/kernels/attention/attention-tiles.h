// Implements attention.h with tensor cores (mma.m16n8k16); CUDA only. A warp processes every WARPS-th tile of 8
// tokens.
#include "cuda-instructions.h"

constexpr int TILE = 8;

/**
 * The next tile, prefetched. This lane holds its part of one key, of token lane / 4, and of two values, of tokens
 * lane % 4 * 2 and lane % 4 * 2 + 1.
 */
template <typename T, int D, int WARPS>
struct LoadedTokens {
  uint4 keys[D / 32], values[2][D / 64];
  /** Where in the pools the KV block of the warp's next tile begins (offset in elements). */
  long next_block;
};

/** Returns the index of a warp's first tile. */
FUNCTION int first_tile(TokenRange range, int warp) {
  return range.begin / TILE + warp;
}

FUNCTION int end_tile(TokenRange range) {
  return range.begin < range.end ? (range.end + TILE - 1) / TILE : 0;
}

/** Returns where in the pools the KV block of a tile begins (offset in elements). */
template <typename T, int D, int KV_HEADS>
FUNCTION long block_of(const SequenceBlocks<T, D, KV_HEADS>& blocks, int tile) {
  return (long(blocks.table[min(tile * TILE / 32, blocks.width - 1)]) * KV_HEADS + blocks.kv) * 32 * D;
}

/**
 * Returns the offset of token t of a tile in its KV block. The token is clamped to the range, because slots outside
 * the range may contain anything, even NaN.
 */
template <int D>
FUNCTION int token_in_block(TokenRange range, int tile, int t) {
  return min(max(tile * TILE + t, range.begin), range.end - 1) % 32 * D;
}

template <typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void load_keys(
    const SequenceBlocks<T, D, KV_HEADS>& blocks, LoadedTokens<T, D, WARPS>& loaded, int tile, long block,
    int lane) {
  if (tile >= end_tile(blocks.range)) return;
  #pragma unroll
  for (int p = 0; p < D / 32; p++) {
    const int token = token_in_block<D>(blocks.range, tile, lane / 4);
    const T* from = blocks.keys + block + token + p * 32 + lane % 4 * 8;
    loaded.keys[p] = *reinterpret_cast<const uint4*>(from);
  }
}

template <typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void load_values(
    const SequenceBlocks<T, D, KV_HEADS>& blocks, LoadedTokens<T, D, WARPS>& loaded, int tile, long block,
    int lane) {
  if (tile >= end_tile(blocks.range)) return;
  #pragma unroll
  for (int i = 0; i < 2 * (D / 64); i++) {
    const int t = i % 2, p = i / 2;
    const int token = token_in_block<D>(blocks.range, tile, lane % 4 * 2 + t);
    const T* from = blocks.values + block + token + p * 64 + lane / 4 * 8;
    loaded.values[t][p] = *reinterpret_cast<const uint4*>(from);
  }
}

/** Starts to load the keys and values of the warp's first tile. */
template <typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void begin_blocks(
    const SequenceBlocks<T, D, KV_HEADS>& blocks, LoadedTokens<T, D, WARPS>& loaded, int lane, int warp) {
  const int tile = first_tile(blocks.range, warp);
  const long block = block_of(blocks, tile);
  load_keys(blocks, loaded, tile, block, lane);
  load_values(blocks, loaded, tile, block, lane);
  loaded.next_block = block_of(blocks, tile + WARPS);
}

/**
 * Attends with up to 8 `queries` (QUERIES, D) and writes this warp's partial result to `sums`, `tops` and `totals`
 * (see merge_warps). There are two MMAs per tile: scores = Q K^T, then V^T times the softmax weights, transposed.
 * With high = lane / 4 and low = lane % 4, a lane has the scores of query `high` and tokens 2 `low` and 2 `low` + 1,
 * the operand layout of the second MMA, so the weights need no shuffles; of that MMA's results it has queries 2 `low`
 * and 2 `low` + 1. Queries and keys have their features in the same order, that of the key loads.
 */
template <int QUERIES, bool CAPPED, typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void attend_blocks(
    const SequenceBlocks<T, D, KV_HEADS>& blocks, LoadedTokens<T, D, WARPS>& loaded, const float* queries,
    float layer_scale, float cap, int lane, int warp, float* sums, float* tops, float* totals) {
  const T* type = nullptr;
  const int high = lane / 4, low = lane % 4;
  unsigned query[D / 32][4];
  #pragma unroll
  for (int i = 0; i < D / 8; i++) {
    const int d = high * D + i / 4 * 32 + low * 8 + i % 4 * 2;
    query[i / 4][i % 4] = high < QUERIES ? pack_pair(queries[d], queries[d + 1], type) : 0;
  }
  const float scale = CAPPED ? 1 : layer_scale;
  float sum[D / 16][4] = {}, top = -1e30f, total = 0;
  const int first = first_tile(blocks.range, warp), end = end_tile(blocks.range);
  for (int tile = first; tile < end; tile += WARPS) {
    // Two accumulators, so that consecutive MMAs do not depend on each other.
    float score[4] = {}, other[4] = {};
    #pragma unroll
    for (int i = 0; i < D / 32; i++) {
      const unsigned* q = query[i];
      const uint4 k = loaded.keys[i];
      mma_m16n8k16(score, q[0], 0, q[1], 0, k.x, k.y, type);
      mma_m16n8k16(other, q[2], 0, q[3], 0, k.z, k.w, type);
    }
    for (int i = 0; i < 2; i++) score[i] += other[i];
    load_keys(blocks, loaded, tile + WARPS, loaded.next_block, lane);
    float most = top;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
      float& x = score[i];
      if (CAPPED) x = cap * TANH(x * (layer_scale / cap));
      const int t = tile * TILE + low * 2 + i;
      if (t < blocks.range.begin || t >= blocks.range.end) x = -3e38f;
      most = fmaxf(most, x);
    }
    most = fmaxf(most, SHUFFLE_XOR(most, 1));
    most = fmaxf(most, SHUFFLE_XOR(most, 2));
    const float keep = EXP((top - most) * scale);
    top = most;
    total *= keep;
    const float x = EXP((score[0] - most) * scale), y = EXP((score[1] - most) * scale);
    total += x + y;
    const unsigned weights = pack_pair(x, y, type);
    const float keeps[2] = {__shfl_sync(~0u, keep, low * 8), __shfl_sync(~0u, keep, low * 8 + 4)};
    #pragma unroll
    for (int i = 0; i < D / 16; i++) {
      const uint4 u = loaded.values[0][i / 4], v = loaded.values[1][i / 4];
      const unsigned x = i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
      const unsigned y = i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
      #pragma unroll
      for (int j = 0; j < 4; j++) sum[i][j] *= keeps[j % 2];
      // Packs the same feature of two tokens into one register.
      mma_m16n8k16(
          sum[i], __byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632), 0, 0, weights, 0, type);
    }
    load_values(blocks, loaded, tile + WARPS, loaded.next_block, lane);
    loaded.next_block = block_of(blocks, tile + 2 * WARPS);
  }
  total += SHUFFLE_XOR(total, 1);
  total += SHUFFLE_XOR(total, 2);
  if (low == 0 && high < QUERIES) {
    tops[warp * QUERIES + high] = top * scale;
    totals[warp * QUERIES + high] = total;
  }
  #pragma unroll
  for (int i = 0; i < D / 4; i++) {
    const int q = low * 2 + i % 2, d = i / 16 * 64 + high * 8 + i / 2 % 8;
    if (q < QUERIES) sums[(warp * QUERIES + q) * D + d] = sum[i / 4][i % 4];
  }
}
