// Decodes one token of each sequence as latent-decode.c does, by tensor cores; CUDA only.
//
// Inputs and output: those of latent-decode.c.
// Constants: T of 16 bits, HEADS, LATENT, ROTARY, ROTATED of the layer; HEADS_EACH, the heads of a group; ROW_TILES and
// TEAM (latent-tiles.h); SPLITS, the groups that share a sequence's tokens.
// Groups: (1, HEADS / HEADS_EACH, tokens * SPLITS) with dynamic shared memory for attend_tiles.
#include "latent-tiles.h"
  typedef LatentRows<T, LATENT, ROTARY, ROW_TILES, TEAM> Rows;
  const int token = group_z / SPLITS, split = group_z % SPLITS;
  const int* table = tables + 2 + token * (tables[0] + 1);
  const int length = table[-1], position = length - 1;
  // A split has whole blocks; the last ones may have none.
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
  if (has_newest) {
    // MLX takes inputs for constant. Groups with other heads of this token write the same, and all read what they have
    // written; nothing else reads this slot before the next launch.
    T* slot = const_cast<T*>(pool) + (long(table[position / 32]) * 32 + position % 32) * Rows::D;
    for (int d = thread_index; d < Rows::D; d += Rows::THREADS)
      slot[d] = T(latent_feature<LATENT, ROTATED>(latents + long(token) * Rows::D, layer, position, d));
    BARRIER;
  }
  if (is_newest_first) fetch_first();
  const int part = warp % TEAM;
  const int row = warp / TEAM * 16 + lane / 4;
  const T* from[2];
  long index[2];
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    const int own = row + i * 8, head = group_y * HEADS_EACH + own;
    index[i] = own < HEADS_EACH && head < HEADS ? long(token) * HEADS + head : -1;
    from[i] = index[i] < 0 ? nullptr : queries + index[i] * Rows::D;
  }
  Rows rows;
  begin_rows<ROTATED>(rows, from, {position, position}, layer, part, lane);
  attend_tiles(
      rows, pool, table, range, {range.end - 1, range.end - 1}, layer, memory, lane, warp, thread_index);
  #pragma unroll
  for (int i = 0; i < 2; i++)
    if (index[i] >= 0) store_row<SPLITS>(rows, i, index[i], split, layer, part, lane, attended);
