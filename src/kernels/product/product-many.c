// Multiplies many rows by a matrix, or each row by its expert's matrix, with tensor cores; CUDA only. Like product.c,
// but the matrix is loaded and dequantized once for all MT * 16 rows of a CTA. The rows of x are double-buffered in
// shared memory with cp.async. A warp has NT tiles of 8 columns; KS warps share the same columns and split K, and
// their accumulators are added at the end.
//
// Per step a lane loads 16 bytes of a matrix row, which are SUB * 8 numbers, and the matching 8 * SUB numbers of x. A
// pack is 8 numbers of x in shared memory. Packs are swizzled by their row and the half of the row that they are in,
// which avoids bank conflicts.
//
// Inputs: x (rows, K); weight (N, K) of T, or quantized to BITS with scales and biases (N, K / SPAN) of T; norm:
// unused; residual (rows, columns), any array if unused. With EXPERTS: weight (experts, N, K); norm is the plan of
// expert-tiles.c; a row of x serves EACH consecutive output rows.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, BITS (16: not quantized), SPAN, GATED, RESIDUAL, EXPERTS, EACH; MT, NT, KS,
// WARPS.
// Grid: (rows / (MT * 16), N / (WARPS / KS * NT * 8)) CTAs of WARPS warps, or with EXPERTS (tiles, ...), with dynamic
// shared memory for two STAGEs.
#include "quantized.h"
  constexpr int SUB = 16 / BITS, STEP = 32 * SUB, PACKS = STEP / 8, ROWS = MT * 16;
  constexpr int OWN = GATED ? NT / 2 : NT, STAGE = KS * ROWS * PACKS * 16;
  const int K = x_shape[1], N = weight_shape[EXPERTS ? 1 : 0];
  const int* order = reinterpret_cast<const int*>(norm);
  const int* tile = order + x_shape[0] * EACH + 3 * cta_x;
  const int rows = EXPERTS ? tile[2] : x_shape[0] - cta_x * ROWS;
  if (rows <= 0) return;
  const int first_row = EXPERTS ? tile[1] : cta_x * ROWS;
  const int expert = EXPERTS ? tile[0] : 0;
  const char* matrix = reinterpret_cast<const char*>(weight) + long(expert) * N * (K / SUB) * 2;
  const T* matrix_scales = scales + (BITS < 16 ? long(expert) * N * (K / SPAN) : 0);
  const T* matrix_biases = biases + (BITS < 16 ? long(expert) * N * (K / SPAN) : 0);
  // Returns the output row of this CTA's row `at`. An output row divided by EACH is its row of x.
  auto row_at = [&](int at) { return EXPERTS ? order[first_row + at] : first_row + at; };
  const int columns = GATED ? N / 2 : N;
  const int share = warp % KS, group = lane / 4, quad = lane % 4;
  const int first = (cta_y * (WARPS / KS) + warp / KS) * OWN * 8;
  const int steps = (K / STEP + KS - 1) / KS;
  unsigned from[NT];
  for (int j = 0; j < NT; j++) {
    const int n = (j < OWN ? first + j * 8 : columns + first + (j - OWN) * 8) + group;
    from[j] = (n * (K / SUB) + share * 32 + quad * 8) * 2;
  }
  const unsigned stages = dynamic_shared_memory();
  auto swizzled = [](int row, int pack) { return (row * PACKS + (pack ^ pack / 8 * 2 ^ row % 2)) * 16; };
  // A thread copies pack `pack` of every APART-th row, in each step for each of the KS warps that split K.
  constexpr int APART = WARPS * 32 / PACKS;
  const int row = thread_index / PACKS, pack = thread_index % PACKS;
  constexpr int COPIES = (ROWS + APART - 1) / APART;
  const T* sources[COPIES];
  for (int c = 0; c < COPIES; c++) {
    const int own = row + c * APART, at = own < rows ? row_at(own) / EACH : 0;
    sources[c] = x + long(at) * K + pack * 8;
  }
  auto fetch = [&](int step) {
    const unsigned to = stages + step % 2 * STAGE + swizzled(row, pack);
    for (int part = 0; part < KS; part++)
      for (int c = 0; c < COPIES; c++) {
        const int own = row + c * APART, k = (step * KS + part) * STEP;
        const int bytes = own < rows && k < K ? 16 : 0;
        if (own < ROWS)
          cp_async(to + (part * ROWS + c * APART) * PACKS * 16, sources[c] + k, bytes);
      }
    cp_async_commit();
  };
  uint4 w[2][NT];
  T scale[2][NT], bias[2][NT];
#define LOAD_MATRIX(slot, step) \
  if (((step) * KS + share) * STEP < K) \
    for (int j = 0; j < NT; j++) { \
      const unsigned at = from[j] + (step) * KS * 64; \
      w[slot][j] = *reinterpret_cast<const uint4*>(matrix + at); \
      if (BITS < 16) scale[slot][j] = matrix_scales[at / (SPAN * BITS / 8)]; \
      if (BITS < 16) bias[slot][j] = matrix_biases[at / (SPAN * BITS / 8)]; \
    }
#define READ_ROWS(slot, sub) \
  for (int i = 0; i < MT * 2; i++) \
    p[slot][i / 2][i % 2] = load_shared(stage + swizzled(i * 8 + group, quad * SUB + sub));
  float sum[MT][NT][4] = {};
  fetch(0);
  LOAD_MATRIX(0, 0)
  LOAD_MATRIX(1, 1)
  for (int s = 0; s < steps; s += 2) {
    #pragma unroll
    for (int u = 0; u < 2; u++) {
      if (s + u >= steps) break;
      cp_async_wait();
      BARRIER;
      if (s + u + 1 < steps) fetch(s + u + 1);
      if (((s + u) * KS + share) * STEP >= K) break;
      const unsigned stage = stages + u * STAGE + share * ROWS * PACKS * 16;
      uint4 p[2][MT][2];
      READ_ROWS(0, 0)
      #pragma unroll
      for (int sub = 0; sub < SUB; sub++) {
        if (sub + 1 < SUB) READ_ROWS((sub + 1) % 2, sub + 1)
        uint4 m[NT];
        for (int j = 0; j < NT; j++)
          m[j] = dequantize<BITS>(w[u][j], sub, scale[u][j], bias[u][j]);
        uint4 (*now)[2] = p[sub % 2];
        for (int i = 0; i < MT * 2; i++) now[i / 2][i % 2] = interleave<BITS>(now[i / 2][i % 2]);
        // Consecutive MMAs use different accumulators, so that none waits for the one before.
        for (int i = 0; i < MT; i++)
          for (int j = 0; j < NT; j++)
            mma_m16n8k16(sum[i][j], now[i][0].x, now[i][1].x, now[i][0].y, now[i][1].y, m[j].x, m[j].y, x);
        for (int i = 0; i < MT; i++)
          for (int j = 0; j < NT; j++)
            mma_m16n8k16(sum[i][j], now[i][0].z, now[i][1].z, now[i][0].w, now[i][1].w, m[j].z, m[j].w, x);
      }
      LOAD_MATRIX(u, s + u + 2)
    }
  }
#undef LOAD_MATRIX
#undef READ_ROWS
  // Each of the KS warps finishes some of the tiles. `slot`: shared memory, taken over from the stages, in which a
  // warp stores its accumulators of tile (i, j) if another warp finishes it.
  auto slot = [&](int warp, int i, int j) { return stages + ((warp * MT + i) * NT + j) * 512 + lane * 16; };
  if (KS > 1) {
    BARRIER;
    for (int i = 0; i < MT; i++)
      for (int j = 0; j < NT; j++)
        if ((i * OWN + j % OWN) % KS != share) store_shared(slot(warp, i, j), sum[i][j]);
    BARRIER;
  }
  for (int i = 0; i < MT; i++)
    for (int j = 0; j < OWN; j++) {
      if ((i * OWN + j) % KS != share) continue;
      for (int other = 1; other < KS; other++)
        for (int part = j; part < NT; part += OWN)
          add_shared(sum[i][part], slot(warp ^ other, i, part));
      for (int r = 0; r < 2; r++) {
        const int at = i * 16 + r * 8 + group;
        if (at >= rows) continue;
        const long to = long(row_at(at)) * columns + first + j * 8 + quad * 2;
        float two[2];
        for (int c = 0; c < 2; c++) {
          two[c] = sum[i][j][r * 2 + c];
          if (GATED) {
            const float gate = float(T(two[c])), up = float(T(sum[i][NT - OWN + j][r * 2 + c]));
            two[c] = __fdividef(gate, 1 + EXP(-gate)) * up;
          }
          if (RESIDUAL) two[c] += float(residual[to + c]);
        }
        *reinterpret_cast<unsigned*>(made + to) = pack_pair(two[0], two[1], x);
      }
    }
