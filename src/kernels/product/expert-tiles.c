// Groups rows by expert (a counting sort) and cuts each expert's rows into tiles, for products with experts; CUDA
// only.
//
// Input: experts (rows).
// Output: plan: the row indices sorted by expert (rows), in any order within an expert; then per tile the expert, the
// tile's first position in that order, and its number of rows, at most TILE. Unused tiles at the end have 0 rows.
// Template arguments: EXPERTS, TILE, WARPS.
// Grid: one CTA of WARPS warps; a warp has every WARPS-th expert.
#include "cuda-instructions.h"
  constexpr int THREADS = WARPS * 32;
  const int rows = experts_shape[0], tiles = min(rows, (rows + TILE - 1) / TILE + EXPERTS);
  SHARED int counts[EXPERTS], places[EXPERTS];
  for (int expert = thread_index; expert < EXPERTS; expert += THREADS) counts[expert] = 0;
  BARRIER;
  #pragma unroll 4
  for (int i = thread_index; i < rows; i += THREADS) atomic_add(counts + experts[i], 1);
  BARRIER;
  for (int expert = warp; expert < EXPERTS; expert += WARPS) {
    float rows_before = 0, tiles_before = 0;
    for (int other = lane; other < expert; other += 32) {
      rows_before += counts[other];
      tiles_before += (counts[other] + TILE - 1) / TILE;
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      rows_before += SHUFFLE_XOR(rows_before, mask);
      tiles_before += SHUFFLE_XOR(tiles_before, mask);
    }
    const int place = int(rows_before), count = counts[expert];
    const int first = int(tiles_before), end = first + (count + TILE - 1) / TILE;
    if (lane == 0) places[expert] = place;
    for (int tile = first + lane; tile < end; tile += 32) {
      const int done = (tile - first) * TILE;
      int* own = plan + rows + 3 * tile;
      own[0] = expert;
      own[1] = place + done;
      own[2] = count - done < TILE ? count - done : TILE;
    }
    if (expert == EXPERTS - 1)
      for (int i = 3 * end + lane; i < 3 * tiles; i += 32) plan[rows + i] = 0;
  }
  BARRIER;
  #pragma unroll 4
  for (int i = thread_index; i < rows; i += THREADS) plan[atomic_add(places + experts[i], 1)] = i;
