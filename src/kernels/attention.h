// Attention of the few queries that a group of warps computes together over the blocks of one sequence, in
// three steps: `begin_blocks` starts to load the first keys and values, `attend_blocks` computes what each warp
// makes of its tokens, `store_attention` merges the warps. The first two are by tensor cores where they fit.
#include "layer.h"

/** Tokens of a sequence, by their positions. */
struct TokenRange {
  int begin, end;
};

/** The tokens of split `split` of SPLITS: of a sequence with `length` tokens, `stored` of them in its blocks. */
template <int WINDOW, bool CHUNKED, int SPLITS>
FUNCTION TokenRange split_range(int length, int stored, int split) {
  const int oldest = oldest_seen<WINDOW, CHUNKED>(length - 1);
  const int share = (stored - oldest + SPLITS - 1) / SPLITS;
  const int begin = oldest + split * share;
  return {begin, begin + share < stored ? begin + share : stored};
}

/** The blocks of one sequence, and what of them a group goes over. */
template <typename T, int D, int KV_HEADS>
struct SequenceBlocks {
  const DEVICE T* keys; // the pools: (blocks, KV_HEADS, 32, D), and so are the values
  const DEVICE T* values;
  const DEVICE int* table; // the sequence's blocks in the pools, `width` of them
  int width;
  int kv; // which head of the keys and values
  TokenRange range;
};

#ifdef TENSOR_CORES
#include "attention-tiles.h"
#else
#include "attention-lanes.h"
#endif

/**
 * Merges what the warps have left in shared memory: the highest score `tops` (WARPS, QUERIES), the sum of
 * weights relative to it `totals`, and the sum of values `sums` (WARPS, QUERIES, D). With `has_newest` the
 * token that is not in the blocks is added, by its scores (QUERIES) and its value (D). Query q is head
 * first_head + q of `token`.
 *
 * With SPLITS of 1 `out` (tokens, heads, D) gets the result. Otherwise (tokens, heads, SPLITS, D + 2) gets the
 * sum of values, then the highest score and the sum of weights, which merge.c brings together.
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
    float highest = SINKS && SPLITS == 1 ? sinks[head] : -1e30f;
    if (has_newest && newest_scores[q] > highest) highest = newest_scores[q];
    for (int w = 0; w < WARPS; w++) {
      const float top = tops[w * QUERIES + q];
      highest = top > highest ? top : highest;
    }
    float total = SINKS && SPLITS == 1 ? EXP(sinks[head] - highest) : 0, sum = 0;
    if (has_newest) {
      const float weight = EXP(newest_scores[q] - highest);
      total += weight;
      sum += newest_value[d] * weight;
    }
    for (int w = 0; w < WARPS; w++) {
      const float weight = EXP(tops[w * QUERIES + q] - highest);
      total += totals[w * QUERIES + q] * weight;
      sum += sums[(w * QUERIES + q) * D + d] * weight;
    }
    if (SPLITS == 1) {
      out[(long(token) * HEADS + head) * D + d] = Out(sum / total);
    } else {
      const long to = ((long(token) * HEADS + head) * SPLITS + split) * (D + 2);
      out[to + d] = Out(sum);
      if (d == 0) {
        out[to + D] = Out(highest);
        out[to + D + 1] = Out(total);
      }
    }
  }
}
