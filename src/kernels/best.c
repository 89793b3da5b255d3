// The best number of each row, of the best ones of its parts.
//
// Inputs: orders and places (rows, PARTS), as best-parts.c makes them, sizes (rows).
// Outputs: indices (rows), highest (rows) float32: NaN where a number is NaN.
// Constants: PARTS; THREADS of a group.
// Groups: (rows / THREADS).
#include "best.h"
  const int row = group_x * THREADS + thread_index;
  if (row >= sizes[0]) return;
  Entry best = {0, 0xffffffffu};
  for (int i = 0; i < PARTS; i++) {
    const Entry entry = {orders[row * PARTS + i], places[row * PARTS + i]};
    if (is_better(entry, best)) best = entry;
  }
  indices[row] = best.place;
  highest[row] = number_of(best.order);
