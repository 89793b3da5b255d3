  // One new token of each sequence: its heads are normed and turned, its key and value go to their block,
  // and its queries attend to the blocks, all in one launch.
  const int token = GROUP_Z / SPLITS, split = GROUP_Z % SPLITS;
  const int kv = GROUP_Y / (SHARERS / QUERIES), part = GROUP_Y % (SHARERS / QUERIES);
  const DEVICE int* table = tables + 2 + token * (tables[0] + 1);
  const int length = table[-1], position = length - 1;
  ATTENTION_BEGIN
  constexpr int PASSES = (QUERIES + 2 + WARPS - 1) / WARPS;
  SHARED float prepared[PASSES * WARPS * D];
  for (int pass = 0; pass < PASSES; pass++) {
    const int own = pass * WARPS + WARP;
    const bool is_key = own == QUERIES, is_value = own == QUERIES + 1;
    const int index = is_key ? KV * SHARERS + kv
                    : is_value ? KV * SHARERS + KV + kv
                    : kv * SHARERS + part * QUERIES + (own < QUERIES ? own : 0);
    const DEVICE T* from = qkv + (long(token) * (KV * SHARERS + 2 * KV) + index) * D;
    IN_SHARED float* head = prepared + own * D;
    const DEVICE float* norm = work + 4 + (is_key ? D : 0);
    const bool is_normed = NORMED && !is_value, is_turned = TURNED > 0 && !is_value;
    HEADS
    if (part == 0 && split == SPLITS - 1 && (is_key || is_value)) {
      const long slot = ((long(table[position / 32]) * KV + kv) * 32 + position % 32) * D;
      // MLX takes inputs for constant; nobody else reads this place before the next launch.
      DEVICE T* to = const_cast<DEVICE T*>(is_key ? keys : values) + slot;
      for (int d = LANE; d < D; d += 32) to[d] = T(head[d]);
    }
  }
  IN_SHARED float* queries = prepared;
  IN_SHARED float* own_key = prepared + QUERIES * D;
  IN_SHARED float* own_value = own_key + D;
  SHARED float own_scores[QUERIES];
  for (int q = WARP; q < QUERIES; q += WARPS) {
    float score = 0;
    // Rounded as it would be between two operations.
    for (int d = LANE; d < D; d += 32) score += float(T(queries[q * D + d])) * float(T(own_key[d]));
    for (int mask = 16; mask > 0; mask /= 2) score += SHUFFLE_XOR(score, mask);
    score *= work[0];
    if (LANE == 0) own_scores[q] = CAPPED ? work[2] * TANH(score / work[2]) : score;
  }
  ATTENTION
