  // Tokens of prompts: heads are normed and turned, keys and values go to their blocks, queries come out.
  const int token = GROUP_Z, index = GROUP_Y * WARPS + WARP;
  const int position = places[3 * token], slot = places[3 * token + 1];
  constexpr int HEADS_ALL = KV * SHARERS + 2 * KV;
  SHARED float prepared[WARPS * D];
  const bool is_query = index < KV * SHARERS, is_value = index >= KV * SHARERS + KV;
  const DEVICE T* from = qkv + (long(token) * HEADS_ALL + (index < HEADS_ALL ? index : 0)) * D;
  IN_SHARED float* head = prepared + WARP * D;
  const DEVICE float* norm = work + 4 + (is_query ? 0 : D);
  const bool is_normed = NORMED && !is_value, is_turned = TURNED > 0 && !is_value;
  HEADS
  if (index < HEADS_ALL) {
    const int kv = (index - KV * SHARERS) % KV;
    const long at = ((long(slot / 32) * KV + kv) * 32 + slot % 32) * D;
    DEVICE T* to = is_query ? queries + (long(token) * KV * SHARERS + index) * D
                            : const_cast<DEVICE T*>(is_value ? values : keys) + at;
    for (int d = LANE; d < D; d += 32) to[d] = T(head[d]);
  }
