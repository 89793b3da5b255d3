// Argmax, first launch: the maximum of each of PARTS parts of a row. A thread loads AHEAD packs at once, of 16 bytes
// if rows are a multiple of 16 bytes, otherwise of one number.
//
// Inputs: x (rows, COLUMNS).
// Outputs: orders and places (rows, PARTS): the maximum as an integer (best.h), and its column.
// Template arguments: T, COLUMNS, PARTS; THREADS per CTA.
// Grid: (PARTS, rows) CTAs of THREADS threads.
#include "best.h"
  constexpr int AHEAD = 2, WARPS = THREADS / 32, PACK = COLUMNS * sizeof(T) % 16 == 0 ? 16 / sizeof(T) : 1;
  constexpr int PACKS = COLUMNS / PACK, EACH = (PACKS + PARTS - 1) / PARTS;
  struct alignas(PACK * sizeof(T)) Pack {
    T numbers[PACK];
  };
  const int begin = cta_x * EACH, end = begin + EACH < PACKS ? begin + EACH : PACKS;
  const DEVICE Pack* row = reinterpret_cast<const DEVICE Pack*>(x) + long(cta_y) * PACKS;
  // Offset of a thread's i-th pack. Past the end it is the first pack again, which does not change the maximum.
  auto at_of = [&](int first, int i) { return first + i * THREADS < end ? first + i * THREADS : first; };
  Entry best = {0, 0xffffffffu};
  for (int first = begin + thread_index; first < end; first += THREADS * AHEAD) {
    Pack packs[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; i++) packs[i] = row[at_of(first, i)];
    #pragma unroll
    for (int i = 0; i < AHEAD * PACK; i++) {
      const int place = at_of(first, i / PACK) * PACK + i % PACK;
      const Entry entry = {order_of(float(packs[i / PACK].numbers[i % PACK])), unsigned(place)};
      if (is_better(entry, best)) best = entry;
    }
  }
  best = best_of_lanes(best);
  SHARED Entry entries[WARPS];
  if (lane == 0) entries[warp] = best;
  BARRIER;
  if (warp > 0) return;
  best = best_of_lanes(entries[lane % WARPS]);
  if (lane > 0) return;
  orders[cta_y * PARTS + cta_x] = best.order;
  places[cta_y * PARTS + cta_x] = best.place;
