// Prepares tokens of prompts: norms and rotates their heads, and writes keys and values to their slots.
//
// Inputs: qkv (tokens, HEADS + 2 KV_HEADS, D), with SHARES_KV only the queries, layer (layer.h), keys and values
// (blocks, KV_HEADS, 32, D), which are written to, places (packPlaces).
// Output: queries (tokens, HEADS, D).
// Constants: T, D, HEADS, KV_HEADS, NORMED, VALUES_NORMED, SHARES_KV, ROTARY_DIMS of the layer; WARPS of a group, a
// head each.
// Groups: (1, heads of qkv / WARPS, tokens).
#include "head.h"
  constexpr int ALL_HEADS = HEADS + (SHARES_KV ? 0 : 2 * KV_HEADS);
  const int token = group_z, index = group_y * WARPS + warp;
  const int position = places[3 * token], slot = places[3 * token + 1];
  SHARED float prepared[WARPS * D];
  const bool is_query = index < HEADS, is_value = index >= HEADS + KV_HEADS;
  const DEVICE T* from = qkv + (long(token) * ALL_HEADS + (index < ALL_HEADS ? index : 0)) * D;
  IN_SHARED float* head = prepared + warp * D;
  const DEVICE float* norm = is_query ? layer + LAYER_QUERY_NORM
                           : is_value ? layer_value_norm<D>(layer)
                           : layer_key_norm<D>(layer);
  prepare_head<T, D, ROTARY_DIMS>(
      from, head, layer, is_value ? VALUES_NORMED : NORMED, norm, ROTARY_DIMS > 0 && !is_value, position, lane);
  if (index < ALL_HEADS) {
    const int kv = (index - HEADS) % KV_HEADS;
    const long at = ((long(slot / 32) * KV_HEADS + kv) * 32 + slot % 32) * D;
    // MLX takes inputs for constant; launches that read these slots depend on this one's output.
    DEVICE T* to = is_query ? queries + (long(token) * HEADS + index) * D
                            : const_cast<DEVICE T*>(is_value ? values : keys) + at;
    for (int d = lane; d < D; d += 32) to[d] = T(head[d]);
  }
