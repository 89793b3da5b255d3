// Implements attention.h without tensor cores. A subwarp of LANES lanes holds one token's key and value, EACH
// features per lane. In a round a warp processes TOKENS tokens per subwarp.

/** This lane's part of the keys and values of the next round, prefetched into registers. */
template <typename T, int D, int WARPS>
struct LoadedTokens {
  enum {
    LANES = D % 256 == 0 ? 32 : D % 128 == 0 ? 16 : 8,
    EACH = D / LANES, // features per lane, in PACKS loads of WIDE
    WIDE = EACH % 8 == 0 ? 8 : EACH % 4 == 0 ? 4 : 1,
    PACKS = EACH / WIDE,
    SUBWARPS = 32 / LANES,
    TOKENS = 2,
    ROUND = WARPS * SUBWARPS * TOKENS
  };
  struct alignas(sizeof(T) * WIDE) Pack {
    T x[WIDE];
  };
  struct Round {
    Pack packs[TOKENS][PACKS];
  };
  Round keys, values;
};

/** Returns the first token of this lane's subwarp. */
template <typename Loaded>
FUNCTION int first_token(TokenRange range, int lane, int warp) {
  return range.begin + warp * (Loaded::SUBWARPS * Loaded::TOKENS) + lane / Loaded::LANES;
}

/** Loads this lane's part of a round from `pool`. `token`: the first token of its subwarp in the round. */
template <typename T, int D, int KV_HEADS, typename Loaded>
FUNCTION void load_round(
    const PRIVATE SequenceBlocks<T, D, KV_HEADS>& blocks, const DEVICE T* pool, int token, int lane,
    PRIVATE typename Loaded::Round& round) {
  if (token - lane / Loaded::LANES >= blocks.range.end) return;
  for (int t = 0; t < Loaded::TOKENS; t++) {
    // All lanes run the same rounds: past the end the last token is loaded again, and its score masked.
    const int wanted = token + t * Loaded::SUBWARPS;
    const int next = wanted < blocks.range.end ? wanted : blocks.range.end - 1;
    const long at = ((long(blocks.table[next / 32]) * KV_HEADS + blocks.kv) * 32 + next % 32) * D +
                    lane % Loaded::LANES * Loaded::EACH;
    for (int p = 0; p < Loaded::PACKS; p++)
      round.packs[t][p] = *reinterpret_cast<const DEVICE typename Loaded::Pack*>(pool + at + p * Loaded::WIDE);
  }
}

/** Starts to load the first round of keys and values. */
template <typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void begin_blocks(
    const PRIVATE SequenceBlocks<T, D, KV_HEADS>& blocks, PRIVATE LoadedTokens<T, D, WARPS>& loaded,
    int lane, int warp) {
  typedef LoadedTokens<T, D, WARPS> Loaded;
  const int token = first_token<Loaded>(blocks.range, lane, warp);
  load_round<T, D, KV_HEADS, Loaded>(blocks, blocks.keys, token, lane, loaded.keys);
  load_round<T, D, KV_HEADS, Loaded>(blocks, blocks.values, token, lane, loaded.values);
}

/**
 * Attends with `queries` (QUERIES, D) and writes this warp's partial result to `sums`, `tops` and
 * `totals` (see merge_warps). Each subwarp keeps its own online softmax until the end.
 */
template <int QUERIES, bool CAPPED, typename T, int D, int KV_HEADS, int WARPS>
FUNCTION void attend_blocks(
    const PRIVATE SequenceBlocks<T, D, KV_HEADS>& blocks, PRIVATE LoadedTokens<T, D, WARPS>& loaded,
    const IN_SHARED float* queries, float scale, float cap, int lane, int warp, IN_SHARED float* sums,
    IN_SHARED float* tops, IN_SHARED float* totals) {
  typedef LoadedTokens<T, D, WARPS> Loaded;
  constexpr int LANES = Loaded::LANES, EACH = Loaded::EACH, WIDE = Loaded::WIDE, PACKS = Loaded::PACKS;
  constexpr int SUBWARPS = Loaded::SUBWARPS, TOKENS = Loaded::TOKENS, ROUND = Loaded::ROUND;
  const int subwarp = lane / LANES, end = blocks.range.end;
  float query[QUERIES][EACH], sum[QUERIES][EACH], top[QUERIES], total[QUERIES];
  for (int q = 0; q < QUERIES; q++) {
    top[q] = -1e30f;
    total[q] = 0;
    for (int i = 0; i < EACH; i++) {
      // Rounds the query to T, as unfused operations would.
      query[q][i] = float(T(queries[q * D + lane % LANES * EACH + i])) * scale;
      sum[q][i] = 0;
    }
  }
  for (int round = first_token<Loaded>(blocks.range, lane, warp); round - subwarp < end; round += ROUND) {
    float score[TOKENS][QUERIES];
    for (int t = 0; t < TOKENS; t++) {
      for (int q = 0; q < QUERIES; q++) score[t][q] = 0;
      for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < WIDE; i++) {
          const float key = float(loaded.keys.packs[t][p].x[i]);
          for (int q = 0; q < QUERIES; q++) score[t][q] += query[q][p * WIDE + i] * key;
        }
      }
    }
    load_round<T, D, KV_HEADS, Loaded>(blocks, blocks.keys, round + ROUND, lane, loaded.keys);
    for (int mask = LANES / 2; mask > 0; mask /= 2)
      for (int t = 0; t < TOKENS; t++)
        for (int q = 0; q < QUERIES; q++) score[t][q] += SHUFFLE_XOR(score[t][q], mask);
    for (int q = 0; q < QUERIES; q++) {
      float highest = top[q];
      for (int t = 0; t < TOKENS; t++) {
        if (CAPPED) score[t][q] = cap * TANH(score[t][q] / cap);
        if (round + t * SUBWARPS >= end) score[t][q] = -1e30f;
        highest = score[t][q] > highest ? score[t][q] : highest;
      }
      const float keep = EXP(top[q] - highest);
      total[q] *= keep;
      for (int i = 0; i < EACH; i++) sum[q][i] *= keep;
      for (int t = 0; t < TOKENS; t++) {
        score[t][q] = round + t * SUBWARPS < end ? EXP(score[t][q] - highest) : 0;
        total[q] += score[t][q];
      }
      top[q] = highest;
    }
    for (int t = 0; t < TOKENS; t++) {
      for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < WIDE; i++) {
          const float value = float(loaded.values.packs[t][p].x[i]);
          for (int q = 0; q < QUERIES; q++) sum[q][p * WIDE + i] += score[t][q] * value;
        }
      }
    }
    load_round<T, D, KV_HEADS, Loaded>(blocks, blocks.values, round + ROUND, lane, loaded.values);
  }
  for (int q = 0; q < QUERIES; q++) {
    for (int mask = LANES; mask < 32; mask *= 2) {
      const float other = SHUFFLE_XOR(top[q], mask);
      const float highest = other > top[q] ? other : top[q];
      const float mine = EXP(top[q] - highest), theirs = EXP(other - highest);
      total[q] = total[q] * mine + SHUFFLE_XOR(total[q], mask) * theirs;
      for (int i = 0; i < EACH; i++) {
        sum[q][i] = sum[q][i] * mine + SHUFFLE_XOR(sum[q][i], mask) * theirs;
      }
      top[q] = highest;
    }
  }
  for (int q = 0; q < QUERIES; q++) {
    if (lane == 0) {
      tops[warp * QUERIES + q] = top[q];
      totals[warp * QUERIES + q] = total[q];
    }
    if (subwarp == 0) {
      for (int i = 0; i < EACH; i++) sums[(warp * QUERIES + q) * D + lane % LANES * EACH + i] = sum[q][i];
    }
  }
}
