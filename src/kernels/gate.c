// silu(gate) * up of rows whose first half is the gate; CUDA only. A thread has 8 neighbours.
//
// Inputs: halves (rows, 2 N) of T, sizes (rows, N).
// Output: gated (rows, N).
// Constants: T of 16 bits, THREADS of a group.
// Groups: rows * N / 8 / THREADS.
#include "cuda-instructions.h"
  const int packs = sizes[1] / 8;
  const long own = long(group_x) * THREADS + thread_index, row = own / packs, pack = own % packs;
  if (row >= sizes[0]) return;
  const uint4* from = reinterpret_cast<const uint4*>(halves) + row * 2 * packs + pack;
  const uint4 both[2] = {from[0], from[packs]};
  const T* gate = reinterpret_cast<const T*>(&both[0]);
  const T* up = reinterpret_cast<const T*>(&both[1]);
  uint4 made;
  unsigned* pairs = &made.x;
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    float two[2];
    for (int c = 0; c < 2; c++) {
      const float x = float(gate[2 * i + c]);
      two[c] = DIVIDE(x, 1 + EXP(-x)) * float(up[2 * i + c]);
    }
    pairs[i] = pack_pair(two[0], two[1], halves);
  }
  reinterpret_cast<uint4*>(gated)[own] = made;
