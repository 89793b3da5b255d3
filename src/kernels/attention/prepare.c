// Prepares prompt tokens for attention: RMSNorm and RoPE of their heads, and keys and values written to their KV
// slots.
//
// Inputs: qkv (tokens, HEADS + 2 KV_HEADS, D), only queries with SHARES_KV; layer (layer.h); keys and values (blocks,
// KV_HEADS, 32, D), written in place; places (positions and KV slots, packPlaces).
// Output: queries (tokens, HEADS, D).
// Template arguments: T, D, HEADS, KV_HEADS, NORMED, VALUES_NORMED, SHARES_KV, ROTARY_DIMS, LONG_BEYOND (length above
// which RoPE changes), SINKS of the layer; WARPS per CTA, OWN heads per warp.
// Grid: (1, heads of qkv / (WARPS * OWN), tokens) CTAs of WARPS warps.
#include "head.h"
  constexpr int ALL_HEADS = HEADS + (SHARES_KV ? 0 : 2 * KV_HEADS);
  const int token = cta_z, first = (cta_y * WARPS + warp) * OWN;
  const int position = places[3 * token], packed = places[3 * token + 1], slot = slot_of<LONG_BEYOND>(packed);
  const LayerRope rope =
      layer_rope<D, ROTARY_DIMS, LONG_BEYOND, SINKS ? HEADS : 0>(layer, is_long_slot<LONG_BEYOND>(packed));
  const DEVICE T* from = qkv + long(token) * ALL_HEADS * D;
  // Destination of a head: the queries output, or a KV slot. MLX assumes that inputs are constant, so later launches
  // that read these slots take this launch's output as an input.
#define PREPARED_AT(index) \
  ((index) < HEADS \
       ? queries + (long(token) * HEADS + (index)) * D \
       : const_cast<DEVICE T*>((index) >= HEADS + KV_HEADS ? values : keys) + \
             ((long(slot / 32) * KV_HEADS + ((index) - HEADS) % KV_HEADS) * 32 + slot % 32) * D)
#define NORM_OF(index) \
  ((index) < HEADS                ? layer + LAYER_QUERY_NORM \
   : (index) >= HEADS + KV_HEADS ? layer_value_norm<D>(layer) \
                                  : layer_key_norm<D>(layer))
  // A lane has EACH features of a head's first half and the matching features of the second half, because RoPE
  // rotates the two halves together.
  constexpr bool IS_WHOLE = (D == 64 || D == 128 || D == 256) && (ROTARY_DIMS == 0 || ROTARY_DIMS == D);
  constexpr int EACH = IS_WHOLE ? D / 64 : 1;
  struct alignas(EACH * sizeof(T)) Part {
    T x[EACH];
  };
  struct alignas(EACH * sizeof(float)) Factors {
    float x[EACH];
  };
  if (IS_WHOLE) {
    Part halves[OWN][2];
    for (int i = 0; i < OWN; i++)
      for (int h = 0; h < 2; h++) {
        const int index = first + i < ALL_HEADS ? first + i : ALL_HEADS - 1;
        halves[i][h] = *reinterpret_cast<const DEVICE Part*>(from + long(index) * D + h * (D / 2) + lane * EACH);
      }
    float sines[EACH], cosines[EACH];
    for (int e = 0; e < EACH && ROTARY_DIMS > 0 && first < HEADS + KV_HEADS; e++)
      SINCOS(float(position) / rope.wavelengths[lane * EACH + e], sines[e], cosines[e]);
    const float magnitude = rope.magnitude;
    for (int i = 0; i < OWN; i++) {
      const int index = first + i;
      const bool is_value = index >= HEADS + KV_HEADS;
      float head[2][EACH], squares = 0;
      for (int e = 0; e < 2 * EACH; e++) {
        head[e / EACH][e % EACH] = float(halves[i][e / EACH].x[e % EACH]);
        squares += head[e / EACH][e % EACH] * head[e / EACH][e % EACH];
      }
      if (is_value ? VALUES_NORMED : NORMED) {
        const DEVICE float* norm = NORM_OF(index);
        for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
        const float scale = RSQRT(squares / D + layer[LAYER_NORM_EPS]);
        // Rounds the normed features to T, as unfused operations would.
        for (int h = 0; h < 2; h++) {
          const Factors factors = *reinterpret_cast<const DEVICE Factors*>(norm + h * (D / 2) + lane * EACH);
          for (int e = 0; e < EACH; e++) head[h][e] = float(T(head[h][e] * scale * factors.x[e]));
        }
      }
      if (index >= ALL_HEADS) continue;
      Part rotated[2];
      for (int e = 0; e < EACH; e++) {
        const bool is_rotated = ROTARY_DIMS > 0 && !is_value;
        const float a = head[0][e] * (is_rotated ? magnitude : 1), b = head[1][e] * (is_rotated ? magnitude : 1);
        rotated[0].x[e] = T(is_rotated ? a * cosines[e] - b * sines[e] : a);
        rotated[1].x[e] = T(is_rotated ? a * sines[e] + b * cosines[e] : b);
      }
      DEVICE T* to = PREPARED_AT(index) + lane * EACH;
      for (int h = 0; h < 2; h++) *reinterpret_cast<DEVICE Part*>(to + h * (D / 2)) = rotated[h];
    }
    return;
  }
  SHARED float prepared[IS_WHOLE ? 1 : WARPS * D];
  const HeadAngles<ROTARY_DIMS> angles = load_angles<ROTARY_DIMS>(rope, position, lane);
  for (int i = 0; i < OWN; i++) {
    const int index = first + i;
    const bool is_value = index >= HEADS + KV_HEADS;
    IN_SHARED float* head = prepared + warp * D;
    const HeadNorm<D> norm = load_norm<D>(layer, NORM_OF(index), lane);
    prepare_head<T, D, ROTARY_DIMS>(
        from + long(index < ALL_HEADS ? index : 0) * D, head, is_value ? VALUES_NORMED : NORMED, norm,
        ROTARY_DIMS > 0 && !is_value, angles, lane);
    if (index >= ALL_HEADS) continue;
    DEVICE T* to = PREPARED_AT(index);
    for (int d = lane; d < D; d += 32) to[d] = T(head[d]);
  }
#undef PREPARED_AT
#undef NORM_OF
