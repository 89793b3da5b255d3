  // Brings together what the warps have found, and with OWN the newest token.
  //
  // Before this: sums, tops and totals of each warp; token, part; with OWN own_scores[QUERIES] and
  // own_value[D]; STORE, which takes what has come out.
  BARRIER;
  const bool has_own = OWN && split == SPLITS - 1;
  for (int j = THREAD; j < QUERIES * D; j += WARPS * 32) {
    const int q = j / D, d = j % D;
    const int head = kv * SHARERS + part * QUERIES + q;
    float highest = SINKS && SPLITS == 1 ? work[4 + 2 * D + TURNED / 2 + head] : -1e30f;
    if (has_own && own_scores[q] > highest) highest = own_scores[q];
    for (int w = 0; w < WARPS; w++) highest = tops[w][q] > highest ? tops[w][q] : highest;
    float all = SINKS && SPLITS == 1 ? EXP(work[4 + 2 * D + TURNED / 2 + head] - highest) : 0, result = 0;
    if (has_own) {
      const float scale = EXP(own_scores[q] - highest);
      all += scale;
      result += own_value[d] * scale;
    }
    for (int w = 0; w < WARPS; w++) {
      const float scale = EXP(tops[w][q] - highest);
      all += totals[w][q] * scale;
      result += sums[w][q][d] * scale;
    }
    STORE(head, d, result, all, highest)
  }
