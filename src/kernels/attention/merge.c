// Merges what decode.c has computed of a sequence in several splits.
//
// Inputs: parts (tokens, HEADS, SPLITS, D + 2), as store_attention writes them, layer (layer.h).
// Output: attended (tokens, HEADS, D).
// Constants: T, D, HEADS, SPLITS, ROTARY_DIMS, SINKS; THREADS of a group.
// Groups: (1, HEADS, tokens).
#include "layer.h"
  const int token = group_z, head = group_y;
  const DEVICE float* part = parts + (long(token) * HEADS + head) * SPLITS * (D + 2);
  const DEVICE float* sinks = layer_sinks<D, ROTARY_DIMS>(layer);
  float highest = SINKS ? sinks[head] : -1e30f;
  for (int s = 0; s < SPLITS; s++) {
    const float top = part[s * (D + 2) + D];
    highest = top > highest ? top : highest;
  }
  float total = SINKS ? EXP(sinks[head] - highest) : 0, weights[SPLITS];
  for (int s = 0; s < SPLITS; s++) {
    weights[s] = EXP(part[s * (D + 2) + D] - highest);
    total += part[s * (D + 2) + D + 1] * weights[s];
  }
  for (int d = thread_index; d < D; d += THREADS) {
    float sum = 0;
    for (int s = 0; s < SPLITS; s++) sum += part[s * (D + 2) + d] * weights[s];
    attended[(long(token) * HEADS + head) * D + d] = T(sum / total);
  }
