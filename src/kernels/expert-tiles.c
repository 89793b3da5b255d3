// Sorts rows by their expert and cuts them into tiles of one expert each, for product-many.c; CUDA only.
//
// Inputs: experts (ROWS).
// Output: plan: the rows in the order of their experts (ROWS), then of each of TILES tiles its expert, the first of its
// rows in that order, and how many it has, at most TILE; the last ones may have none.
// Constants: ROWS, EXPERTS, TILE, TILES; THREADS of the group.
// Groups: one. A thread has the experts that are THREADS apart.
  SHARED unsigned short chosen[ROWS];
  SHARED int counts[EXPERTS];
  for (int i = thread_index; i < ROWS; i += THREADS) chosen[i] = (unsigned short)(experts[i]);
  BARRIER;
  for (int expert = thread_index; expert < EXPERTS; expert += THREADS) {
    int count = 0;
    for (int i = 0; i < ROWS; i++) count += chosen[i] == expert;
    counts[expert] = count;
  }
  BARRIER;
  for (int expert = thread_index; expert < EXPERTS; expert += THREADS) {
    int place = 0, tile = 0;
    for (int other = 0; other < expert; other++) {
      place += counts[other];
      tile += (counts[other] + TILE - 1) / TILE;
    }
    for (int first = 0; first < counts[expert]; first += TILE) {
      int* own = plan + ROWS + 3 * tile++;
      own[0] = expert;
      own[1] = place + first;
      own[2] = counts[expert] - first < TILE ? counts[expert] - first : TILE;
    }
    for (int i = 0; i < ROWS; i++)
      if (chosen[i] == expert) plan[place++] = i;
    if (expert == EXPERTS - 1)
      for (; tile < TILES; tile++)
        for (int i = 0; i < 3; i++) plan[ROWS + 3 * tile + i] = 0;
  }
