// Merges the partial softmax results of decode.c's splits.
//
// Inputs: parts (tokens, HEADS, SPLITS, D + 2), written by store_attention; layer (layer.h).
// Output: attended (tokens, HEADS, D).
// Template arguments: T, D, HEADS, SPLITS, ROTARY_DIMS, SINKS; THREADS per CTA.
// Grid: (1, HEADS, tokens) CTAs of THREADS threads.
#include "layer.h"
  const int token = cta_z, head = cta_y;
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
