  // Attention of a few queries that share their keys over the blocks of one sequence. Each bundle of lanes
  // keeps a softmax of its own, then each warp.
  //
  // Before this: attention-begin; queries[QUERIES * D] in shared memory.
  float query[QUERIES][EACH], sum[QUERIES][EACH], top[QUERIES], total[QUERIES];
  for (int q = 0; q < QUERIES; q++) {
    top[q] = -1e30f;
    total[q] = 0;
    for (int i = 0; i < EACH; i++) {
      // Rounded as it would be between two operations.
      query[q][i] = float(T(queries[q * D + lane * EACH + i])) * work[0];
      sum[q][i] = 0;
    }
  }
  for (int round = first_token; round - bundle < end; round += ROUND) {
    float score[TOKENS][QUERIES];
    for (int t = 0; t < TOKENS; t++) {
      for (int q = 0; q < QUERIES; q++) score[t][q] = 0;
      for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < WIDE; i++) {
          const float key = float(key_packs[t][p].x[i]);
          for (int q = 0; q < QUERIES; q++) score[t][q] += query[q][p * WIDE + i] * key;
        }
      }
    }
    LOAD(key_packs, keys, round + ROUND)
    for (int mask = LANES / 2; mask > 0; mask /= 2)
      for (int t = 0; t < TOKENS; t++)
        for (int q = 0; q < QUERIES; q++) score[t][q] += SHUFFLE_XOR(score[t][q], mask);
    for (int q = 0; q < QUERIES; q++) {
      float highest = top[q];
      for (int t = 0; t < TOKENS; t++) {
        if (CAPPED) score[t][q] = work[2] * TANH(score[t][q] / work[2]);
        if (round + t * BUNDLES >= end) score[t][q] = -1e30f;
        highest = score[t][q] > highest ? score[t][q] : highest;
      }
      const float keep = EXP(top[q] - highest);
      total[q] *= keep;
      for (int i = 0; i < EACH; i++) sum[q][i] *= keep;
      for (int t = 0; t < TOKENS; t++) {
        score[t][q] = round + t * BUNDLES < end ? EXP(score[t][q] - highest) : 0;
        total[q] += score[t][q];
      }
      top[q] = highest;
    }
    for (int t = 0; t < TOKENS; t++) {
      for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < WIDE; i++) {
          const float value = float(value_packs[t][p].x[i]);
          for (int q = 0; q < QUERIES; q++) sum[q][p * WIDE + i] += score[t][q] * value;
        }
      }
    }
    LOAD(value_packs, values, round + ROUND)
  }
#undef LOAD
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
  SHARED float sums[WARPS][QUERIES][D], tops[WARPS][QUERIES], totals[WARPS][QUERIES];
  for (int q = 0; q < QUERIES; q++) {
    if (LANE == 0) {
      tops[WARP][q] = top[q];
      totals[WARP][q] = total[q];
    }
    if (bundle == 0) {
      for (int i = 0; i < EACH; i++) sums[WARP][q][lane * EACH + i] = sum[q][i];
    }
  }
