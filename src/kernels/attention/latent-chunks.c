// Latent attention (MLA) of prompt chunks with tensor cores; CUDA only. A CTA has a tile: HEADS_EACH heads of a few
// consecutive tokens of one sequence.
//
// Inputs: absorbed and placed, as in latent-decode-tiles.c; layer (layer.h, with D = LATENT); pool (blocks, 1, 32,
// LATENT + ROTARY); tables (block tables, packTables); places (positions, KV slots, packPlaces) as latent-write.c
// returns it; tiles (first token, count, packTiles).
// Output: attended (tokens, HEADS, LATENT).
// Template arguments: T of 16 bits, HEADS, LATENT, ROTARY, ROTATED of the layer; PLACED_COLUMNS, PLACED_FIRST,
// PLACED_STRIDE; HEADS_EACH, ROW_TILES and TEAM (latent-tiles.h).
// Grid: (1, HEADS / HEADS_EACH, tiles) CTAs of ROW_TILES * TEAM warps, with dynamic shared memory for attend_tiles.
#include "latent-tiles.h"
  typedef LatentRows<T, LATENT, ROTARY, ROW_TILES, TEAM> Rows;
  const int first = tiles[2 * cta_z], count = tiles[2 * cta_z + 1];
  if (count == 0) return;
  const int position = places[3 * first];
  const int* table = tables + 2 + places[3 * first + 2] * (tables[0] + 1);
  const TokenRange range = {0, position + count};
  const unsigned memory = dynamic_shared_memory();
  fetch_tile<Rows>(memory, pool, table[0], range.end, thread_index);
  const Rotation* rotations = ROTATED ? compute_rotations<Rows>(memory, layer, position, count, thread_index) : nullptr;
  BARRIER;
  const int part = warp % TEAM;
  const int row = warp / TEAM * 16 + lane / 4;
  LatentQuery<T> queries[2] = {};
  long index[2];
  int positions[2];
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    const int token = (row + i * 8) / HEADS_EACH, head = cta_y * HEADS_EACH + (row + i * 8) % HEADS_EACH;
    index[i] = token < count && head < HEADS ? long(first + token) * HEADS + head : -1;
    positions[i] = position + min(token, count - 1);
    if (index[i] < 0) continue;
    const T* own_placed = placed + long(first + token) * PLACED_COLUMNS + PLACED_FIRST + head * PLACED_STRIDE;
    queries[i] = {absorbed + index[i] * LATENT, own_placed, rotations + token * (ROTARY / 2)};
  }
  Rows rows;
  begin_rows<ROTATED>(rows, queries, part, lane);
  attend_tiles(rows, pool, table, range, positions, layer, memory, lane, warp, thread_index);
  #pragma unroll
  for (int i = 0; i < 2; i++)
    if (index[i] >= 0) store_row<1>(rows, i, index[i], 0, layer, part, lane, attended);
