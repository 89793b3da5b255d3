// The best number of each part of a row.
//
// Inputs: x (rows, columns), sizes (columns).
// Outputs: orders and places (rows, PARTS), as best.h has them.
// Constants: T, PARTS; THREADS of a group.
// Groups: (PARTS, rows).
#include "best.h"
  const int columns = sizes[0], each = (columns + PARTS - 1) / PARTS;
  const int begin = group_x * each, end = begin + each < columns ? begin + each : columns;
  const DEVICE T* row = x + long(group_y) * columns;
  Entry best = {0, 0xffffffffu};
  for (int i = begin + thread_index; i < end; i += THREADS) {
    const Entry entry = {order_of(float(row[i])), unsigned(i)};
    if (is_better(entry, best)) best = entry;
  }
  SHARED Entry entries[THREADS];
  entries[thread_index] = best;
  BARRIER;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (thread_index < half && is_better(entries[thread_index + half], entries[thread_index]))
      entries[thread_index] = entries[thread_index + half];
    BARRIER;
  }
  if (thread_index > 0) return;
  orders[group_y * PARTS + group_x] = entries[0].order;
  places[group_y * PARTS + group_x] = entries[0].place;
