// Attention of a few query heads, which one CTA computes together, over the KV blocks of one sequence: `begin_blocks`
// starts to load the first keys and values, `attend_blocks` computes a partial softmax and value sum per warp,
// `store_attention` merges the warps' results. `begin_blocks` and `attend_blocks` come from attention-tiles.h if the
// head size and type suit tensor cores, otherwise from attention-lanes.h.
#include "layer.h"

/** A range of token positions. */
struct TokenRange {
  int begin, end;
};

/**
 * Returns the tokens that split `split` of SPLITS attends to (split-K decoding). The sequence has `length` tokens, of
 * which the first `stored` are in its KV blocks.
 */
template <int WINDOW, bool CHUNKED, int SPLITS>
FUNCTION TokenRange split_range(int length, int stored, int split) {
  const int oldest = oldest_seen<WINDOW, CHUNKED>(length - 1);
  const int share = (stored - oldest + SPLITS - 1) / SPLITS;
  const int begin = oldest + split * share;
  return {begin, begin + share < stored ? begin + share : stored};
}

/** The KV blocks of one sequence, and the KV head and token range that a CTA attends to. */
template <typename T, int D, int KV_HEADS>
struct SequenceBlocks {
  const DEVICE T* keys; // pool (blocks, KV_HEADS, 32, D); values have the same shape
  const DEVICE T* values;
  const DEVICE int* table; // the sequence's block table, `width` entries
  int width;
  int kv; // KV head
  TokenRange range;
};

#ifdef TENSOR_CORES
#include "attention-tiles.h"
#else
#include "attention-lanes.h"
#endif

/** Online softmax of one feature: maximum score, sum of exp(score - maximum), weighted value sum. */
struct MergedFeature {
  float highest, total, sum;
};

/**
 * Merges the warps' partial results of feature d of query q, in shared memory: maximum scores `tops` (WARPS,
 * QUERIES), softmax denominators `totals` (WARPS, QUERIES), value sums `sums` (WARPS, QUERIES, D). With `has_newest`
 * it also adds the newest token, which is not in the KV blocks yet, from its scores (QUERIES) and value (D); with
 * SINKS it adds the head's attention sink.
 */
template <int D, int WARPS, int QUERIES, bool SINKS>
FUNCTION MergedFeature merge_warps(
    const IN_SHARED float* sums, const IN_SHARED float* tops, const IN_SHARED float* totals,
    bool has_newest, const IN_SHARED float* newest_scores, const IN_SHARED float* newest_value, float sink, int q, int d) {
  MergedFeature merged = {SINKS ? sink : -1e30f, 0, 0};
  if (has_newest && newest_scores[q] > merged.highest) merged.highest = newest_scores[q];
  for (int w = 0; w < WARPS; w++) {
    const float top = tops[w * QUERIES + q];
    merged.highest = top > merged.highest ? top : merged.highest;
  }
  if (SINKS) merged.total = EXP(sink - merged.highest);
  if (has_newest) {
    const float weight = EXP(newest_scores[q] - merged.highest);
    merged.total += weight;
    merged.sum += newest_value[d] * weight;
  }
  for (int w = 0; w < WARPS; w++) {
    const float weight = EXP(tops[w * QUERIES + q] - merged.highest);
    merged.total += totals[w * QUERIES + q] * weight;
    merged.sum += sums[(w * QUERIES + q) * D + d] * weight;
  }
  return merged;
}

/**
 * Merges the warps' partial results (merge_warps) and writes them. Query q is head first_head + q of `token`.
 *
 * If SPLITS is 1, `out` (tokens, heads, D) gets the attention output. Otherwise `out` (tokens, heads, SPLITS, D + 2)
 * gets the unnormalized value sum, the maximum score and the softmax denominator, which merge.c combines.
 */
template <int D, int WARPS, int QUERIES, int HEADS, int SPLITS, bool SINKS, typename Out>
FUNCTION void store_attention(
    const IN_SHARED float* sums, const IN_SHARED float* tops, const IN_SHARED float* totals,
    bool has_newest, const IN_SHARED float* newest_scores, const IN_SHARED float* newest_value,
    const DEVICE float* sinks, int token, int split, int first_head, int thread_index, DEVICE Out* out) {
  BARRIER;
  for (int j = thread_index; j < QUERIES * D; j += WARPS * 32) {
    const int q = j / D, d = j % D;
    const int head = first_head + q;
    constexpr bool HAS_SINK = SINKS && SPLITS == 1;
    const MergedFeature merged = merge_warps<D, WARPS, QUERIES, HAS_SINK>(
        sums, tops, totals, has_newest, newest_scores, newest_value, HAS_SINK ? sinks[head] : 0, q, d);
    if (SPLITS == 1) {
      out[(long(token) * HEADS + head) * D + d] = Out(merged.sum / merged.total);
    } else {
      const long to = ((long(token) * HEADS + head) * SPLITS + split) * (D + 2);
      out[to + d] = Out(merged.sum);
      if (d == 0) {
        out[to + D] = Out(merged.highest);
        out[to + D + 1] = Out(merged.total);
      }
    }
  }
}

#ifdef CLUSTER
#include "cluster.h"

/**
 * store_attention for splits that are the CTAs of one cluster: each CTA leaves its partial results in shared memory
 * (per query D value sums, then the maximum score and the softmax denominator), and CTA 0 reads them through DSMEM
 * and writes the attention output. No merge launch is needed.
 */
template <int D, int WARPS, int QUERIES, int HEADS, bool SINKS, typename Out>
FUNCTION void store_cluster_attention(
    const float* sums, const float* tops, const float* totals, bool has_newest, const float* newest_scores,
    const float* newest_value, const float* sinks, int token, int split, int first_head, int thread_index, Out* out) {
  constexpr int LINE = D + 4;
  const unsigned partials = dynamic_shared_memory();
  BARRIER;
  for (int j = thread_index; j < QUERIES * D; j += WARPS * 32) {
    const int q = j / D, d = j % D;
    const MergedFeature merged = merge_warps<D, WARPS, QUERIES, false>(
        sums, tops, totals, has_newest, newest_scores, newest_value, 0, q, d);
    store_shared(partials + (q * LINE + d) * 4, merged.sum);
    if (d > 1) continue;
    store_shared(partials + (q * LINE + D + d) * 4, d == 0 ? merged.highest : merged.total);
    store_shared(partials + (q * LINE + D + 2 + d) * 4, 0.0f);
  }
  cluster_barrier();
  constexpr int FOURS = QUERIES * D / 4, ROUNDS = (FOURS + WARPS * 32 - 1) / (WARPS * 32);
  for (int round = 0; round < ROUNDS; round++) {
    const int j = round * WARPS * 32 + thread_index, q = j / (D / 4), d = j % (D / 4) * 4;
    const bool is_own = split == 0 && j < FOURS;
    float scores[CLUSTER][4], values[CLUSTER][4];
    #pragma unroll
    for (int i = 0; is_own && i < CLUSTER; i++) {
      load_shared_of(i, scores[i], partials + (q * LINE + D) * 4);
      load_shared_of(i, values[i], partials + (q * LINE + d) * 4);
    }
    // CTA 0 has read everything, so the other CTAs may exit.
    if (round == ROUNDS - 1) cluster_arrive();
    if (!is_own) continue;
    const float sink = SINKS ? sinks[first_head + q] : 0;
    float highest = SINKS ? sink : -1e30f, sum[4] = {};
    #pragma unroll
    for (int i = 0; i < CLUSTER; i++) highest = fmaxf(highest, scores[i][0]);
    float total = SINKS ? EXP(sink - highest) : 0;
    #pragma unroll
    for (int i = 0; i < CLUSTER; i++) {
      const float weight = EXP(scores[i][0] - highest);
      total += scores[i][1] * weight;
      for (int c = 0; c < 4; c++) sum[c] += values[i][c] * weight;
    }
    for (int c = 0; c < 4; c++)
      out[(long(token) * HEADS + first_head + q) * D + d + c] = Out(sum[c] / total);
  }
  // Waits before exiting, because CTA 0 still reads this CTA's shared memory.
  if (split != 0) cluster_wait();
}
#endif
