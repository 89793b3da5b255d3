// Argmax, second launch: the maximum of each row from those of its parts.
//
// Inputs: orders and places (rows, PARTS), written by best-parts.c.
// Outputs: indices (rows); highest (rows) float32, NaN if any number of the row is NaN.
// Template arguments: PARTS, which is the warp size.
// Grid: (rows) CTAs of one warp.
#include "best.h"
  const int part = cta_x * PARTS + lane;
  const Entry own = {orders[part], places[part]}, best = best_of_lanes(own);
  if (lane > 0) return;
  indices[cta_x] = best.place;
  highest[cta_x] = number_of(best.order);
