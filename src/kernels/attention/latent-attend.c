// Latent attention (MLA) of arbitrary tokens of any sequences, each over its sequence's KV blocks up to its own
// position.
//
// Inputs: queries (tokens, HEADS, LATENT + ROTARY); layer (layer.h, with D = LATENT); pool (blocks, 1, 32, LATENT +
// ROTARY); tables (block tables, packTables); places (positions, KV slots, packPlaces) as latent-write.c returns it.
// Output: attended (tokens, HEADS, LATENT).
// Template arguments: T, HEADS, LATENT, ROTARY, ROTATED of the layer; OWN heads per warp; WARPS per CTA.
// Grid: (1, HEADS / (WARPS * OWN), tokens) CTAs of WARPS warps.
#include "latent.h"
  constexpr int D = LATENT + ROTARY;
  const int token = cta_z, position = places[3 * token];
  const int first_head = (cta_y * WARPS + warp) * OWN;
  const DEVICE int* table = tables + 2 + places[3 * token + 2] * (tables[0] + 1);
  typedef LatentPack<T, D> Vector;
  SHARED typename Vector::Pack tile[LATENT_TILE * Vector::PACKS];
  LatentHeads<OWN, LATENT, ROTARY> heads;
  begin_latent<ROTATED>(heads, queries + long(token) * HEADS * D, layer, position, first_head, HEADS, lane);
  const TokenRange range = split_range<0, false, 1>(position + 1, position + 1, 0);
  // Position -1 says that there is no separate newest token: all tokens are in the KV blocks already.
  attend_latents<WARPS * 32>(heads, pool, table, range, -1, tile, tile, lane, thread_index);
  store_latent<1>(heads, token, 0, first_head, HEADS, lane, attended);
