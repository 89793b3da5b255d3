// Latent attention (MLA) of one token of each sequence in one launch: RoPE of its queries and its vector, the vector
// written to the sequence's last KV block, attention over all its blocks.
//
// Inputs: queries (tokens, HEADS, LATENT + ROTARY); latents (tokens, LATENT + ROTARY); layer (layer.h, with D =
// LATENT); pool (blocks, 1, 32, LATENT + ROTARY), written in place; tables (block tables, packTables).
// Output: attended, as store_latent writes it.
// Template arguments: T, HEADS, LATENT, ROTARY, ROTATED of the layer; OWN heads per warp; WARPS per CTA; SPLITS, the
// CTAs among which a sequence's tokens are divided.
// Grid: (1, HEADS / (WARPS * OWN), tokens * SPLITS) CTAs of WARPS warps.
#include "latent.h"
  constexpr int D = LATENT + ROTARY;
  const int token = cta_z / SPLITS, split = cta_z % SPLITS;
  const int first_head = (cta_y * WARPS + warp) * OWN;
  const DEVICE int* table = tables + 2 + token * (tables[0] + 1);
  const int length = table[-1], position = length - 1;
  typedef LatentPack<T, D> Vector;
  SHARED typename Vector::Pack newest[Vector::PACKS], tile[LATENT_TILE * Vector::PACKS];
  const long slot = (long(table[position / 32]) * 32 + position % 32) * D;
  for (int d = thread_index; d < D; d += WARPS * 32) {
    const T x = T(latent_feature<LATENT, ROTATED>(latents + long(token) * D, layer, position, d));
    newest[d / Vector::WIDE].x[d % Vector::WIDE] = x;
    // Writes to an input, which MLX assumes constant. Nothing else reads the slot before the next launch.
    if (cta_y == 0 && split == SPLITS - 1) const_cast<DEVICE T*>(pool)[slot + d] = x;
  }
  LatentHeads<OWN, LATENT, ROTARY> heads;
  begin_latent<ROTATED>(heads, queries + long(token) * HEADS * D, layer, position, first_head, HEADS, lane);
  const TokenRange range = split_range<0, false, SPLITS>(length, length, split);
  attend_latents<WARPS * 32>(heads, pool, table, range, position, newest, tile, lane, thread_index);
  store_latent<SPLITS>(heads, token, split, first_head, HEADS, lane, attended);
