// Writes the vectors of prompts' tokens to their slots, rotated.
//
// Inputs: latents (tokens, LATENT + ROTARY), layer (layer.h, with D of LATENT), pool (blocks, 1, 32, LATENT + ROTARY),
// which is written to, places (packPlaces).
// Output: written, the same places, for launches that must wait for this one.
// Constants: T, LATENT, ROTARY, ROTATED of the layer.
// Groups: (1, 1, tokens) of 128 threads.
#include "latent.h"
  constexpr int D = LATENT + ROTARY;
  const int token = group_z, position = places[3 * token];
  // MLX takes inputs for constant; launches that read these slots depend on this one's output.
  DEVICE T* to = const_cast<DEVICE T*>(pool) + long(places[3 * token + 1]) * D;
  for (int d = thread_index; d < D; d += 128) {
    to[d] = T(latent_feature<LATENT, ROTATED>(latents + long(token) * D, layer, position, d));
  }
  if (thread_index < 3) written[3 * token + thread_index] = places[3 * token + thread_index];
