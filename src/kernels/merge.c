// Merges what decode.c has computed of a sequence in several splits.
//
// Inputs: parts (tokens, HEADS, SPLITS, D + 2), as store_attention writes them, layer (layer.h).
// Output: attended (tokens, HEADS, D).
// Constants: T, D, HEADS, SPLITS, ROTARY_DIMS, SINKS.
// Groups: (1, HEADS, tokens) of one warp.
#include "layer.h"
  const int token = group_z, head = group_y;
  const DEVICE float* part = parts + (long(token) * HEADS + head) * SPLITS * (D + 2);
  const DEVICE float* sinks = layer_sinks<D, ROTARY_DIMS>(layer);
  float highest = SINKS ? sinks[head] : -1e30f;
  for (int s = 0; s < SPLITS; s++) {
    const float top = part[s * (D + 2) + D];
    highest = top > highest ? top : highest;
  }
  float total = SINKS ? EXP(sinks[head] - highest) : 0;
  for (int s = 0; s < SPLITS; s++) {
    total += part[s * (D + 2) + D + 1] * EXP(part[s * (D + 2) + D] - highest);
  }
  for (int d = lane; d < D; d += 32) {
    float sum = 0;
    for (int s = 0; s < SPLITS; s++) {
      sum += part[s * (D + 2) + d] * EXP(part[s * (D + 2) + D] - highest);
    }
    attended[(long(token) * HEADS + head) * D + d] = T(sum / total);
  }
