// Grouped GEMM (MoE): multiplies rows by their experts' dense matrices with Hopper's wgmma; compute capability 9.0
// only. For experts with many rows: a CTA computes ROWS by COLUMNS, larger tiles than product-many.c (which keeps
// operands in registers), because loading operands takes most of the time.
//
// Both operands are in shared memory in wgmma's layout (wgmma-operand.h), in a ring of STAGES steps of 64 elements
// along K: two steps are being multiplied, the others copied by cp.async. Each of the two warpgroups has 64 rows.
//
// Inputs: x (tokens, K) of T; weight (experts, N, K) of T; plan (expert-tiles.c, with tiles of ROWS). A row of x
// serves EACH consecutive output rows.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, GATED, EACH, BAND, STAGES.
// Grid: (BAND, N / COLUMNS, tiles / BAND) CTAs of 256 threads. BAND adjacent tiles, often of one expert, run together
// with the same columns, then with the next ones, so that matrix and rows hit the L2 cache. Dynamic shared memory for
// the stages, and 1,024 bytes for alignment.
#include "cuda-instructions.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int ROWS = 128, COLUMNS = 256, LINE = LINE_BYTES, STAGE = (ROWS + COLUMNS) * LINE;
  constexpr int OWN = GATED ? COLUMNS / 2 : COLUMNS;
  const int K = x_shape[1], N = weight_shape[1], index = cta_z * BAND + cta_x;
  const int all_rows = x_shape[0] * EACH, tiles = (plan_shape[0] - all_rows) / 3;
  const int* tile = plan + all_rows + 3 * index;
  const int rows = index < tiles ? tile[2] : 0;
  if (rows <= 0) return;
  const int* order = plan + tile[1];
  const int columns = GATED ? N / 2 : N, first = cta_y * OWN, steps = K / 64;
  const unsigned stages = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  // A thread copies 16-byte pack `pack` of every APART-th line.
  constexpr int APART = 256 / 8, HALF = COLUMNS / 2;
  const int line = thread_index / 8, pack = thread_index % 8;
  const unsigned place = stages + swizzled_pack<ROWS>(line, pack);
  const T* matrix = weight + long(tile[0]) * N * K + long(first + line) * K + pack * 8;
  const T* halves[2] = {matrix, matrix + long(GATED ? columns : HALF) * K};
  const T* sources[ROWS / APART];
  for (int c = 0; c < ROWS / APART; c++) {
    const int own = line + c * APART;
    sources[c] = x + long(own < rows ? order[own] / EACH : 0) * K + pack * 8;
  }
  auto fetch = [&](int step) {
    if (step < steps) {
      const unsigned to = place + step % STAGES * STAGE;
      for (int c = 0; c < COLUMNS / APART; c++) {
        const int own = c * APART;
        cp_async(to + (ROWS + own) * LINE, halves[own / HALF] + own % HALF * K + step * 64, 16);
      }
      for (int c = 0; c < ROWS / APART; c++) {
        const int own = c * APART;
        cp_async(to + own * LINE, sources[c] + step * 64, line + own < rows ? 16 : 0);
      }
    }
    cp_async_commit();
  };
  const int warpgroup = warp / 4;
  float sum[COLUMNS / 2] = {};
  for (int s = 0; s < STAGES - 2; s++) fetch(s);
  for (int s = 0; s < steps; s++) {
    cp_async_wait<STAGES - 3>();
    // Makes the copied data visible to all threads' wgmmas.
    fence_proxy_async();
    BARRIER;
    // The second warpgroup has no rows if the tile has at most 64.
    if (warpgroup * 64 < rows) {
      const unsigned stage = stages + s % STAGES * STAGE;
      wgmma_fence();
      #pragma unroll
      for (int k = 0; k < 4; k++)
        wgmma_m64k16(
            sum, wgmma_operand(stage + warpgroup * 64 * LINE + k * 32), wgmma_operand(stage + ROWS * LINE + k * 32),
            true, x);
      wgmma_commit();
    }
    // Refills the stage of two steps ago, which both warpgroups had finished multiplying at the barrier.
    fetch(s + STAGES - 2);
    wgmma_wait<1>(sum);
  }
  // Transposes the accumulators through shared memory, so that each thread writes 16 contiguous bytes.
  const int group = lane / 4, quad = lane % 4;
  constexpr int PACKS = OWN / 8, WRITES = 16 * PACKS / 32;
  // Loads the output rows before the first write, because the compiler must assume that writes alias the plan.
  int places[WRITES];
  for (int w = 0; w < WRITES; w++) {
    const int at = warp * 16 + (w * 32 + lane) / PACKS;
    places[w] = at < rows ? order[at] : -1;
  }
  wgmma_wait<0>(sum);
  const unsigned lines = stages + warp * 16 * OWN * 2;
  auto swizzled = [&](int row, int pack) { return lines + row * OWN * 2 + (pack ^ row % 8) * 16; };
  auto gated = [&](unsigned gates, unsigned ups) {
    const T* gate = reinterpret_cast<const T*>(&gates);
    const T* up = reinterpret_cast<const T*>(&ups);
    float two[2];
    for (int c = 0; c < 2; c++) {
      const float own = float(gate[c]);
      two[c] = __fdividef(own, 1 + EXP(-own)) * float(up[c]);
    }
    return pack_pair(two[0], two[1], x);
  };
  BARRIER;
  for (int j = 0; j < PACKS; j++)
    for (int r = 0; r < 2; r++) {
      const int i = j * 4 + r * 2, up = i + (GATED ? COLUMNS / 4 : 0);
      const unsigned pair = pack_pair(sum[i], sum[i + 1], x);
      const unsigned result = GATED ? gated(pair, pack_pair(sum[up], sum[up + 1], x)) : pair;
      store_shared(swizzled(r * 8 + group, j) + quad * 4, result);
    }
  BARRIER;
  for (int w = 0; w < WRITES; w++) {
    const int i = w * 32 + lane, own = i % PACKS;
    T* to = made + long(places[w]) * columns + first + own * 8;
    if (places[w] >= 0) *reinterpret_cast<uint4*>(to) = load_shared(swizzled(i / PACKS, own));
  }
