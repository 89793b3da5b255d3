// Sorts rows by their expert and cuts them into tiles of one expert each, for product-many.c; CUDA only.
//
// Inputs: experts (rows), sizes (rows, tiles).
// Output: plan: the rows in the order of their experts (rows), then of each of the tiles its expert, the first of its
// rows in that order, and how many it has, at most TILE; the last ones may have none.
// Constants: EXPERTS, TILE, WARPS.
// Groups: one. A warp has the experts that are WARPS apart.
#include "cuda-instructions.h"
  const int rows = sizes[0], tiles = sizes[1];
  SHARED int counts[EXPERTS];
  for (int expert = warp; expert < EXPERTS; expert += WARPS) {
    int count = 0;
    for (int i = lane; i - lane < rows; i += 32)
      count += count_bits(ballot(i < rows && int(experts[i < rows ? i : 0]) == expert));
    if (lane == 0) counts[expert] = count;
  }
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
    int place = int(rows_before);
    const int count = counts[expert], first = int(tiles_before), end = first + (count + TILE - 1) / TILE;
    for (int tile = first + lane; tile < end; tile += 32) {
      const int done = (tile - first) * TILE;
      int* own = plan + rows + 3 * tile;
      own[0] = expert;
      own[1] = place + done;
      own[2] = count - done < TILE ? count - done : TILE;
    }
    for (int i = lane; i - lane < rows; i += 32) {
      const bool is_own = i < rows && int(experts[i < rows ? i : 0]) == expert;
      const unsigned owners = ballot(is_own);
      if (is_own) plan[place + count_bits(owners & ((1u << lane) - 1))] = i;
      place += count_bits(owners);
    }
    if (expert == EXPERTS - 1)
      for (int i = 3 * end + lane; i < 3 * tiles; i += 32) plan[rows + i] = 0;
  }
