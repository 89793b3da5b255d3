  // Attention of a few queries that share their keys over the blocks of one sequence, by the warps of a
  // group. Each warp takes some tokens at a time, LANES lanes to a token; each such bundle of lanes keeps
  // a softmax of its own, and in the end all of them are brought together.
  //
  // Before this: token, kv, part, split, length, table; queries[QUERIES * D] in shared memory, and with OWN
  // the newest token's own_key[D] and own_value[D]; STORE, which takes what has come out.
  constexpr int LANES = QUERIES * D / 8 > 64 ? 16 : 8;
  constexpr int EACH = D / LANES;
  constexpr int WIDE = EACH % 8 == 0 ? 8 : EACH % 4 == 0 ? 4 : 1;
  constexpr int BUNDLES = 32 / LANES;
  struct alignas(sizeof(T) * WIDE) Pack {
    T x[WIDE];
  };
  const int lane = LANE % LANES, bundle = LANE / LANES;
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
  const int oldest = WINDOW > 0 && length > WINDOW ? length - WINDOW : 0;
  const int share = (length - oldest + SPLITS - 1) / SPLITS;
  const int begin = oldest + split * share;
  const int end = begin + share < length ? begin + share : length;
  for (int base = begin + WARP * BUNDLES; base < end; base += WARPS * BUNDLES) {
    // All lanes go through the loop together: those past the end read the last token again, for nothing.
    const bool lives = base + bundle < end;
    const int t = lives ? base + bundle : end - 1;
    const long at = ((long(table[t / 32]) * KV + kv) * 32 + t % 32) * D + lane * EACH;
    float key[EACH], value[EACH];
    if (OWN && t == length - 1) {
      for (int i = 0; i < EACH; i++) {
        key[i] = float(T(own_key[lane * EACH + i]));
        value[i] = float(T(own_value[lane * EACH + i]));
      }
    } else {
      for (int p = 0; p < EACH / WIDE; p++) {
        const Pack k = *reinterpret_cast<const DEVICE Pack*>(keys + at + p * WIDE);
        const Pack v = *reinterpret_cast<const DEVICE Pack*>(values + at + p * WIDE);
        for (int i = 0; i < WIDE; i++) {
          key[p * WIDE + i] = float(k.x[i]);
          value[p * WIDE + i] = float(v.x[i]);
        }
      }
    }
    for (int q = 0; q < QUERIES; q++) {
      float score = 0;
      for (int i = 0; i < EACH; i++) score += query[q][i] * key[i];
      for (int mask = LANES / 2; mask > 0; mask /= 2) score += SHUFFLE_XOR(score, mask);
      if (CAPPED) score = work[2] * TANH(score / work[2]);
      const float highest = lives && score > top[q] ? score : top[q];
      const float keep = EXP(top[q] - highest);
      const float weight = lives ? EXP(score - highest) : 0;
      total[q] = total[q] * keep + weight;
      top[q] = highest;
      for (int i = 0; i < EACH; i++) sum[q][i] = sum[q][i] * keep + weight * value[i];
    }
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
  BARRIER;
  for (int j = THREAD; j < QUERIES * D; j += WARPS * 32) {
    const int q = j / D, d = j % D;
    const int head = kv * SHARERS + part * QUERIES + q;
    float highest = SINKS && SPLITS == 1 ? work[4 + 2 * D + TURNED / 2 + head] : -1e30f;
    for (int w = 0; w < WARPS; w++) highest = tops[w][q] > highest ? tops[w][q] : highest;
    float all = SINKS && SPLITS == 1 ? EXP(work[4 + 2 * D + TURNED / 2 + head] - highest) : 0, result = 0;
    for (int w = 0; w < WARPS; w++) {
      const float scale = EXP(tops[w][q] - highest);
      all += totals[w][q] * scale;
      result += sums[w][q][d] * scale;
    }
    STORE(head, d, result, all, highest)
  }
