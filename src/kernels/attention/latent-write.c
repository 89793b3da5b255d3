// Writes the vectors of prompts' tokens to their slots, normalized and rotated.
//
// Inputs: latents (tokens, LATENT_COLUMNS) with LATENT + ROTARY features each from column LATENT_FIRST on, layer
// (layer.h, with D of LATENT), pool (blocks, 1, 32, LATENT + ROTARY), which is written to, places (packPlaces).
// Output: written, the same places, for launches that must wait for this one.
// Constants: T, LATENT, ROTARY, ROTATED of the layer; LATENT_COLUMNS, LATENT_FIRST.
// Groups: (1, 1, tokens) of 128 threads.
#include "latent.h"
  const int token = group_z, position = places[3 * token];
  // MLX takes inputs for constant; launches that read these slots depend on this one's output.
  DEVICE T* to = const_cast<DEVICE T*>(pool) + long(places[3 * token + 1]) * (LATENT + ROTARY);
  SHARED float squares[4];
  write_latent<128, LATENT, ROTARY, ROTATED>(
      latents + long(token) * LATENT_COLUMNS + LATENT_FIRST, layer, position, squares, lane, warp, thread_index, to);
  if (thread_index < 3) written[3 * token + thread_index] = places[3 * token + thread_index];
