// Epilogue of wgmma products: stores a warpgroup's accumulators to shared memory as one line of columns per row, and
// finishes packs of 8 columns (SwiGLU, residual add). CUDA with compute capability 9.0 only.
#include "cuda-instructions.h"

/** Returns the floats per line, padded so that a quad's rows do not conflict in shared-memory banks. */
FUNCTION constexpr int sums_line(int columns) { return columns + 4; }

/** Returns the column of a thread's i-th accumulators: two per tile of 64, with TILES tiles per warpgroup. */
template <int TILES>
FUNCTION int sums_column(int warp, int lane, int i) {
  return (warp / 4 * TILES + i / 2) * 64 + warp % 4 * 16 + i % 2 * 8 + lane / 4;
}

template <int COLUMNS, int TILES, int SUMS>
FUNCTION void store_sums(unsigned to, const float (&sum)[TILES][SUMS], int warp, int lane) {
  #pragma unroll
  for (int i = 0; i < TILES * 2; i++)
    #pragma unroll
    for (int j = 0; j < SUMS / 2; j++) {
      const int row = j / 2 * 8 + lane % 4 * 2 + j % 2;
      store_shared(
          to + (row * sums_line(COLUMNS) + sums_column<TILES>(warp, lane, i)) * 4, sum[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2]);
    }
}

/**
 * Computes silu(gates) * ups of two adjacent columns, in place. Both are rounded to T first, as separate operations
 * would do. The last argument only selects the type.
 */
template <typename T>
FUNCTION void gate_pair(float* gates, const float* ups, const T* type) {
  // Rounded as a pair: single conversions use the special function unit, which the exponentials need.
  const unsigned pairs[2] = {pack_pair(gates[0], gates[1], type), pack_pair(ups[0], ups[1], type)};
  const float log2e = 1.44269504f;
  #pragma unroll
  for (int c = 0; c < 2; c++) {
    const float gate = reinterpret_cast<const T*>(pairs)[c], up = reinterpret_cast<const T*>(pairs + 1)[c];
    gates[c] = gate * rcp_approx(1 + ex2_approx(-log2e * gate)) * up;
  }
}

/**
 * Finishes 8 columns: optionally applies SwiGLU with `up`, and adds the residual `before`. The last argument only
 * selects the type.
 */
template <bool GATED, bool RESIDUAL, typename T>
FUNCTION uint4 finished_pack(const float (&sum)[8], const float (&up)[8], const uint4& before, const T* type) {
  const T* added = reinterpret_cast<const T*>(&before);
  float made[8];
  #pragma unroll
  for (int c = 0; c < 8; c++) made[c] = sum[c];
  if (GATED)
    #pragma unroll
    for (int c = 0; c < 8; c += 2) gate_pair(made + c, up + c, type);
  if (RESIDUAL)
    #pragma unroll
    for (int c = 0; c < 8; c++) made[c] += float(added[c]);
  return {pack_pair(made[0], made[1], type), pack_pair(made[2], made[3], type), pack_pair(made[4], made[5], type),
          pack_pair(made[6], made[7], type)};
}
