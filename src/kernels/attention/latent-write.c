// Writes the latent vectors of prompt tokens to their KV slots, with RMSNorm and RoPE applied.
//
// Inputs: latents (tokens, LATENT_COLUMNS), with LATENT + ROTARY features at column LATENT_FIRST; layer (layer.h,
// with D = LATENT); pool (blocks, 1, 32, LATENT + ROTARY), written in place; places (positions, KV slots, packPlaces).
// Output: written, a copy of places, so that later launches can depend on this one.
// Template arguments: T, LATENT, ROTARY, ROTATED of the layer; LATENT_COLUMNS, LATENT_FIRST.
// Grid: (1, 1, tokens) CTAs of 128 threads.
#include "latent.h"
  const int token = cta_z, position = places[3 * token];
  // Writes to an input, which MLX assumes constant. Launches that read the slot take this one's output.
  DEVICE T* to = const_cast<DEVICE T*>(pool) + long(places[3 * token + 1]) * (LATENT + ROTARY);
  SHARED float squares[4];
  write_latent<128, LATENT, ROTARY, ROTATED>(
      latents + long(token) * LATENT_COLUMNS + LATENT_FIRST, layer, position, squares, lane, warp, thread_index, to);
  if (thread_index < 3) written[3 * token + thread_index] = places[3 * token + thread_index];
