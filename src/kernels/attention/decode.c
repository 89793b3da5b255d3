// Decodes one token of each sequence in one launch: RMSNorm and RoPE of its heads, its key and value written to the
// sequence's last KV block, attention over all its blocks. With SHARES_KV an earlier layer has written keys and
// values already.
//
// Inputs: qkv (tokens, HEADS + 2 KV_HEADS, D), only queries with SHARES_KV; layer (layer.h); keys and values (blocks,
// KV_HEADS, 32, D), written in place; tables (block tables, packTables).
// Output: attended, as store_attention writes it.
// Template arguments: T, D, HEADS, KV_HEADS, NORMED, VALUES_NORMED, SHARES_KV, ROTARY_DIMS, LONG_BEYOND (length above
// which RoPE changes), WINDOW, CHUNKED, CAPPED (softcap), SINKS of the layer; QUERIES, the query heads of one KV head
// that a CTA computes; WARPS per CTA; SPLITS, the CTAs among which a sequence's tokens are divided.
// Grid: (1, HEADS / QUERIES, tokens * SPLITS) CTAs of WARPS warps. If CLUSTER is defined, equal to SPLITS: (SPLITS,
// HEADS / QUERIES, tokens) in clusters of SPLITS, which merge their results themselves, with QUERIES * (D + 4) floats
// of dynamic shared memory.
#include "attention.h"
#include "head.h"
  constexpr int HEADS_PER_KV = HEADS / KV_HEADS;
#ifdef CLUSTER
  const int token = cta_z, split = cta_x;
#else
  const int token = cta_z / SPLITS, split = cta_z % SPLITS;
#endif
  const int kv = cta_y / (HEADS_PER_KV / QUERIES), part = cta_y % (HEADS_PER_KV / QUERIES);
  const int first_head = kv * HEADS_PER_KV + part * QUERIES;
  const DEVICE int* table = tables + 2 + token * (tables[0] + 1);
  const int length = table[-1], position = length - 1;
  // With IS_NEW the newest token's key is not in its KV block yet, so its score is computed separately.
  constexpr bool IS_NEW = !SHARES_KV;
  const TokenRange range = split_range<WINDOW, CHUNKED, SPLITS>(length, length - int(IS_NEW), split);
  const SequenceBlocks<T, D, KV_HEADS> blocks = {keys, values, table, tables[0], kv, range};
  if (SHARES_KV) AWAIT_INPUTS;
  LoadedTokens<T, D, WARPS> loaded;
  begin_blocks(blocks, loaded, lane, warp);
  // Prepares the queries, the key and the value, one warp each, while the blocks load. RoPE angles and norm weights
  // do not depend on the previous launch, so they are loaded before its output is awaited.
  constexpr int PASSES = (QUERIES + (IS_NEW ? 2 : 0) + WARPS - 1) / WARPS;
  constexpr int ALL_HEADS = HEADS + (IS_NEW ? 2 * KV_HEADS : 0);
  const float scale = layer[LAYER_SCALE], cap = layer[LAYER_SOFTCAP];
  const long slot = ((long(table[position / 32]) * KV_HEADS + kv) * 32 + position % 32) * D;
  const LayerRope rope =
      layer_rope<D, ROTARY_DIMS, LONG_BEYOND, SINKS ? HEADS : 0>(layer, length > LONG_BEYOND);
  const HeadAngles<ROTARY_DIMS> angles = load_angles<ROTARY_DIMS>(rope, position, lane);
  HeadNorm<D> norms[PASSES];
  for (int pass = 0; pass < PASSES; pass++) {
    const int own = pass * WARPS + warp;
    const DEVICE float* weights = IS_NEW && own == QUERIES       ? layer_key_norm<D>(layer)
                                : IS_NEW && own == QUERIES + 1 ? layer_value_norm<D>(layer)
                                                               : layer + LAYER_QUERY_NORM;
    norms[pass] = load_norm<D>(layer, weights, lane);
  }
  if (!SHARES_KV) AWAIT_INPUTS;
  SHARED float prepared[PASSES * WARPS * D];
  for (int pass = 0; pass < PASSES; pass++) {
    const int own = pass * WARPS + warp;
    const bool is_key = IS_NEW && own == QUERIES, is_value = IS_NEW && own == QUERIES + 1;
    const int index = is_key ? HEADS + kv
                    : is_value ? HEADS + KV_HEADS + kv
                    : first_head + (own < QUERIES ? own : 0);
    const DEVICE T* from = qkv + (long(token) * ALL_HEADS + index) * D;
    IN_SHARED float* head = prepared + own * D;
    prepare_head<T, D, ROTARY_DIMS>(
        from, head, is_value ? VALUES_NORMED : NORMED, norms[pass], ROTARY_DIMS > 0 && !is_value, angles, lane);
    if (part == 0 && split == SPLITS - 1 && (is_key || is_value)) {
      // Writes to an input, which MLX assumes constant. Nothing else reads the slot before the next launch.
      DEVICE T* to = const_cast<DEVICE T*>(is_key ? keys : values) + slot;
      for (int d = lane; d < D; d += 32) to[d] = T(head[d]);
    }
  }
  BARRIER;
  IN_SHARED float* queries = prepared;
  IN_SHARED float* newest_key = prepared + QUERIES * D;
  IN_SHARED float* newest_value = newest_key + D;
  SHARED float newest_scores[QUERIES];
  for (int q = warp; IS_NEW && q < QUERIES; q += WARPS) {
    float score = 0;
    // With a constant trip count, not one that depends on the lane, the compiler does not unroll the loop further.
    for (int first = 0; first < D; first += 32) {
      const int d = first + lane;
      // Rounds query and key to T, as unfused operations would.
      if (D % 32 == 0 || d < D) score += float(T(queries[q * D + d])) * float(T(newest_key[d]));
    }
    for (int mask = 16; mask > 0; mask /= 2) score += SHUFFLE_XOR(score, mask);
    score *= scale;
    if (lane == 0) newest_scores[q] = CAPPED ? cap * TANH(score / cap) : score;
  }
  SHARED float sums[WARPS * QUERIES * D], tops[WARPS * QUERIES], totals[WARPS * QUERIES];
  attend_blocks<QUERIES, CAPPED>(blocks, loaded, queries, scale, cap, lane, warp, sums, tops, totals);
#ifdef CLUSTER
  store_cluster_attention<D, WARPS, QUERIES, HEADS, SINKS>(
      sums, tops, totals, IS_NEW && split == SPLITS - 1, newest_scores, newest_value,
      layer_sinks<D, ROTARY_DIMS>(layer), token, split, first_head, thread_index, attended);
#else
  store_attention<D, WARPS, QUERIES, HEADS, SPLITS, SINKS>(
      sums, tops, totals, IS_NEW && split == SPLITS - 1, newest_scores, newest_value,
      layer_sinks<D, ROTARY_DIMS>(layer), token, split, first_head, thread_index, attended);
#endif
