// The best number of each row, of the best ones of its parts.
//
// Inputs: orders and places (rows, PARTS), as best-parts.c makes them.
// Outputs: indices (rows), highest (rows) float32: NaN where a number is NaN.
// Constants: PARTS, as many as a warp has lanes.
// Groups: (rows), of a warp.
#include "best.h"
  const int part = group_x * PARTS + lane;
  const Entry own = {orders[part], places[part]}, best = best_of_lanes(own);
  if (lane > 0) return;
  indices[group_x] = best.place;
  highest[group_x] = number_of(best.order);
