// Latent attention (MLA) of one token of each sequence, like latent-decode.c, with tensor cores; CUDA only. It reads
// queries and vectors directly from the outputs of their projections, and applies the vectors' norm itself.
//
// Inputs: absorbed (tokens, HEADS, LATENT), the queries' features after absorption; placed (tokens, PLACED_COLUMNS),
// with the ROTARY query features of head h at column PLACED_FIRST + h * PLACED_STRIDE; latents (tokens,
// LATENT_COLUMNS), with LATENT + ROTARY features at column LATENT_FIRST; layer (layer.h, with D = LATENT); pool
// (blocks, 1, 32, LATENT + ROTARY), written in place; tables (block tables, packTables).
// Output: attended, as store_row writes it.
// Template arguments: the columns above; T of 16 bits, ROTATED of the layer; HEADS_EACH, the heads per CTA; ROW_TILES
// and TEAM (latent-tiles.h); SPLITS, the CTAs among which a sequence's tokens are divided.
// Grid: (1, HEADS / HEADS_EACH, tokens * SPLITS) CTAs of ROW_TILES * TEAM warps, with dynamic shared memory for
// attend_tiles.
#include "latent-tiles.h"
  typedef LatentRows<T, LATENT, ROTARY, ROW_TILES, TEAM> Rows;
  const int token = cta_z / SPLITS, split = cta_z % SPLITS;
  const int* table = tables + 2 + token * (tables[0] + 1);
  const int length = table[-1], position = length - 1;
  // Splits consist of whole KV blocks; the last splits may be empty.
  const int share = (position / TILE_TOKENS / SPLITS + 1) * TILE_TOKENS;
  const TokenRange range = {split * share, min((split + 1) * share, length)};
  const bool has_newest = range.begin <= position && position < range.end;
  const bool is_newest_first = has_newest && position < range.begin + TILE_TOKENS;
  const unsigned memory = dynamic_shared_memory();
  const unsigned first_tile = memory + range.begin / TILE_TOKENS % 2 * TILE_TOKENS * Rows::STRIDE;
  auto fetch_first = [&] {
    const int block = table[range.begin / TILE_TOKENS];
    fetch_tile<Rows>(first_tile, pool, block, range.end - range.begin, thread_index);
  };
  if (range.begin < range.end && !is_newest_first) fetch_first();
  const Rotation* rotations = ROTATED ? compute_rotations<Rows>(memory, layer, position, 1, thread_index) : nullptr;
  if (has_newest) {
    // Writes an input, which MLX assumes to be constant. CTAs with other heads of this token write identical values,
    // each CTA reads only its own writes, and nothing else reads this slot before the next launch.
    T* slot = const_cast<T*>(pool) + (long(table[position / 32]) * 32 + position % 32) * Rows::D;
    SHARED float squares[Rows::THREADS / 32];
    write_latent<Rows::THREADS, LATENT, ROTARY, ROTATED>(
        latents + long(token) * LATENT_COLUMNS + LATENT_FIRST, layer, position, squares, lane, warp, thread_index,
        slot);
  }
  BARRIER;
  if (is_newest_first) fetch_first();
  const int part = warp % TEAM;
  const int row = warp / TEAM * 16 + lane / 4;
  LatentQuery<T> queries[2] = {};
  long index[2];
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    const int own = row + i * 8, head = cta_y * HEADS_EACH + own;
    index[i] = own < HEADS_EACH && head < HEADS ? long(token) * HEADS + head : -1;
    if (index[i] < 0) continue;
    const T* own_placed = placed + long(token) * PLACED_COLUMNS + PLACED_FIRST + head * PLACED_STRIDE;
    queries[i] = {absorbed + index[i] * LATENT, own_placed, rotations};
  }
  Rows rows;
  begin_rows<ROTATED>(rows, queries, part, lane);
  attend_tiles(
      rows, pool, table, range, {range.end - 1, range.end - 1}, layer, memory, lane, warp, thread_index);
  #pragma unroll
  for (int i = 0; i < 2; i++)
    if (index[i] >= 0) store_row<SPLITS>(rows, i, index[i], split, layer, part, lane, attended);
