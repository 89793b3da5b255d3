// SwiGLU: silu(gate) * up, of rows whose first half is the gate; CUDA only. A thread has 8 adjacent columns.
//
// Input: halves (rows, 2 N) of T.
// Output: gated (rows, N).
// Template arguments: T of 16 bits, N, THREADS per CTA.
// Grid: rows * ceil(N / 8 / THREADS) CTAs of THREADS threads.
#include "cuda-instructions.h"
  constexpr int PACKS = N / 8;
  constexpr int ROW_CTAS = (PACKS + THREADS - 1) / THREADS;
  const long row = cta_x / ROW_CTAS;
  const int pack = cta_x % ROW_CTAS * THREADS + thread_index;
  if (pack >= PACKS) return;
  const uint4* from = reinterpret_cast<const uint4*>(halves) + row * 2 * PACKS + pack;
  const uint4 both[2] = {from[0], from[PACKS]};
  const T* gate = reinterpret_cast<const T*>(&both[0]);
  const T* up = reinterpret_cast<const T*>(&both[1]);
  uint4 result;
  unsigned* pairs = &result.x;
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    float two[2];
    for (int c = 0; c < 2; c++) {
      const float x = float(gate[2 * i + c]);
      two[c] = DIVIDE(x, 1 + EXP(-x)) * float(up[2 * i + c]);
    }
    pairs[i] = pack_pair(two[0], two[1], halves);
  }
  reinterpret_cast<uint4*>(gated)[row * PACKS + pack] = result;
