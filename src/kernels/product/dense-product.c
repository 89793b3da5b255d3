// Multiplies up to 128 rows by a dense matrix with Hopper's wgmma; compute capability 9.0 only. Optionally fuses
// SwiGLU and the residual add. It suits small matrices, for which the latency between dependent launches dominates:
// most of the matrix is already being copied to shared memory before the rows are available.
//
// It computes the transpose: a warpgroup has 64 columns, which are the rows of wgmma's first operand. Both operands
// are in shared memory (wgmma-operand.h), in a ring of STAGES steps of STEP elements along K: either the whole share
// of K fits, or two steps are being multiplied while the others are copied. At the end the accumulators replace the
// stages, one line of columns per row. The CTAs of a cluster split K; each finishes some of the rows, and the other
// CTAs copy their partial sums of these rows to it.
//
// Inputs: x (rows, K); weight (N, K) of T; residual (rows, columns), any array if unused.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, K, N, GATED, RESIDUAL; ROWS, WARPGROUPS, STAGES; SHARES: CTAs that split K.
// Grid: (SHARES, rows / ROWS, N / COLUMNS) CTAs of WARPGROUPS * 128 threads, in clusters of SHARES. Dynamic shared
// memory for an mbarrier, the stages or the accumulators, other CTAs' accumulators if SHARES > 1, and alignment.
#include "bulk.h"
#include "cluster.h"
#include "warpgroup-sums.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int THREADS = WARPGROUPS * 128, COLUMNS = WARPGROUPS * 64, OWN = GATED ? COLUMNS / 2 : COLUMNS;
  constexpr int STEP = LINE_BYTES / 2, STEPS = K / STEP / SHARES, AHEAD = STEPS <= STAGES ? STEPS : STAGES - 2;
  constexpr int MATRIX = ROWS * LINE_BYTES, STAGE = MATRIX + COLUMNS * LINE_BYTES;
  constexpr int OWN_ROWS = ROWS / SHARES, PART = OWN_ROWS * sums_line(COLUMNS) * 4, SUMS = SHARES * PART;
  constexpr long MADE_COLUMNS = GATED ? N / 2 : N;
  const int share = cta_x, first_row = cta_y * ROWS, first = cta_z * OWN, rows = min(ROWS, x_shape[0] - first_row);
  const unsigned barrier = dynamic_shared_memory(), stages = (barrier + 8 + 1023) / 1024 * 1024;
  const unsigned received = stages + (STAGES * STAGE > SUMS ? STAGES * STAGE : SUMS);
  if (SHARES > 1) {
    if (thread_index == 0) {
      barrier_init(barrier, 1);
      barrier_expect(barrier, SUMS - PART);
    }
    cluster_arrive();
  }
  // A thread copies 16-byte pack `pack` of every APART-th line.
  constexpr int APART = THREADS / 8;
  const int line = thread_index / 8, pack = thread_index % 8;
  const T* columns_from = weight + long(first + line) * K + share * STEPS * STEP + pack * 8;
  const T* rows_from = x + long(first_row + line) * K + share * STEPS * STEP + pack * 8;
  const auto fetch_matrix = [&](int step) {
    const unsigned to = stages + step % STAGES * STAGE + MATRIX + swizzled_pack<COLUMNS>(line, pack);
    #pragma unroll
    for (int i = 0; i < COLUMNS; i += APART) {
      const long line_offset = GATED && i >= OWN ? MADE_COLUMNS - OWN + i : i;
      cp_async_ahead(to + i * LINE_BYTES, columns_from + line_offset * K + step * STEP, 16);
    }
  };
  const auto fetch_rows = [&](int step) {
    const unsigned to = stages + step % STAGES * STAGE + swizzled_pack<ROWS>(line, pack);
    #pragma unroll
    for (int i = 0; i < ROWS; i += APART)
      cp_async(to + i * LINE_BYTES, rows_from + long(i) * K + step * STEP, line + i < rows ? 16 : 0);
  };
  #pragma unroll
  for (int s = 0; s < AHEAD; s++) fetch_matrix(s);
  AWAIT_INPUTS;
  #pragma unroll
  for (int s = 0; s < AHEAD; s++) {
    fetch_rows(s);
    cp_async_commit();
  }
  // A row has OWN_PACKS packs of 8 columns in this CTA. The threads finish one pack each per round.
  constexpr int OWN_PACKS = OWN / 8, ROUNDS = (OWN_ROWS * OWN_PACKS + THREADS - 1) / THREADS;
  const auto row_of = [&](int i) { return (i * THREADS + thread_index) / OWN_PACKS; };
  const auto is_own = [&](int i) { return row_of(i) < min(OWN_ROWS, rows - share * OWN_ROWS); };
  const int column = thread_index % OWN_PACKS * 8;
  const auto place = [&](int i) { return (first_row + share * OWN_ROWS + row_of(i)) * MADE_COLUMNS + first + column; };
  uint4 before[ROUNDS];
  #pragma unroll
  for (int i = 0; RESIDUAL && i < ROUNDS; i++)
    if (is_own(i)) before[i] = load_global(residual + place(i));
  float sum[1][ROWS / 2] = {};
  #pragma unroll (STEPS <= 16 ? STEPS : STAGES)
  for (int s = 0; s < STEPS; s++) {
    cp_async_wait<AHEAD - 1>();
    // Makes the copied data visible to all threads' wgmmas.
    fence_proxy_async();
    BARRIER;
    const unsigned stage = stages + s % STAGES * STAGE;
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < STEP / 16; k++)
      wgmma_m64k16(
          sum[0], wgmma_operand(stage + MATRIX + warp / 4 * 64 * LINE_BYTES + k * 32), wgmma_operand(stage + k * 32), true, x);
    wgmma_commit();
    // Refills the stage of two steps ago, which all warps had finished multiplying at the barrier.
    if (s + AHEAD < STEPS) {
      fetch_matrix(s + AHEAD);
      fetch_rows(s + AHEAD);
    }
    cp_async_commit();
    if (STEPS > STAGES) wgmma_wait<1>(sum[0]);
  }
  wgmma_wait<0>(sum[0]);
  BARRIER;
  store_sums<COLUMNS>(stages, sum, warp, lane);
  if (SHARES > 1) {
    fence_proxy_async();
    // Waits until the other CTAs have initialized their mbarriers.
    cluster_wait();
  }
  BARRIER;
  if (SHARES > 1) {
    if (thread_index < SHARES && thread_index != share)
      bulk_copy_to(thread_index, received + share * PART, stages + thread_index * PART, PART, barrier);
    WARP_BARRIER;
    barrier_wait(barrier, 0);
    cluster_arrive();
  }
  #pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    if (!is_own(i)) continue;
    // Sums of 4 columns each: the two halves of a pack of 8 columns; with GATED two of gate, then two of up.
    float four[4][4] = {};
    #pragma unroll
    for (int s = 0; s < SHARES; s++) {
      const unsigned from = (s == share ? stages : received) + s * PART + (row_of(i) * sums_line(COLUMNS) + column) * 4;
      #pragma unroll
      for (int h = 0; h < (GATED ? 4 : 2); h++) add_shared(four[h], from + h / 2 * OWN * 4 + h % 2 * 16);
    }
    float sums[8], ups[8];
    for (int c = 0; c < 8; c++) {
      sums[c] = four[c / 4][c % 4];
      ups[c] = four[2 + c / 4][c % 4];
    }
    *reinterpret_cast<uint4*>(made + place(i)) = finished_pack<GATED, RESIDUAL>(sums, ups, before[i], x);
  }
  // Waits until the other CTAs have received all copies of this CTA's sums, so that it may exit.
  if (SHARES > 1) cluster_wait();
