// Multiplies many rows by a quantized matrix with Hopper's wgmma; compute capability 9.0 only. Like product-many.c,
// but a CTA has more columns (TILES * 128) and up to ROWS rows, because loading operands takes most of the time. If
// that leaves too few CTAs, the CTAs of a cluster split K.
//
// It computes the transpose: the columns are the rows of wgmma's first operand, TILES * 64 per warpgroup. They are
// dequantized into registers while the previous part is multiplied; a lane has two adjacent weights (a byte or two)
// of each pack of 8. The rows of x are the second operand, unchanged, in shared memory (wgmma-operand.h).
//
// Rows, weights, scales and biases come to shared memory in steps of STEP elements along K, in a ring of STAGES: two
// steps are being multiplied, the others copied by cp.async. At the end the accumulators replace the stages, one line
// of columns per row, and each CTA of the cluster adds up and finishes some packs of columns.
//
// Inputs: x (rows, K); weight (N, K) quantized to BITS with scales and biases (N, K / SPAN) of T; residual (rows,
// columns), any array if unused.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, BITS, SPAN, GATED, RESIDUAL; ROWS, TILES, STEP, STAGES; SHARES: CTAs that split K.
// Grid: (SHARES, rows / ROWS, N / COLUMNS) CTAs of 256 threads, in clusters of SHARES. CTAs with the same columns run
// together, so that the columns hit the L2 cache. Dynamic shared memory for the stages or the accumulators, and 1,024
// bytes for alignment.
#include "cluster.h"
#include "quantized.h"
#include "warpgroup-sums.h"
#include "wgmma.h"
#include "wgmma-operand.h"
  constexpr int THREADS = 256, COLUMNS = TILES * 128, OWN = GATED ? COLUMNS / 2 : COLUMNS;
  constexpr int COLUMN_BYTES = STEP * BITS / 8, CHUNKS = COLUMN_BYTES / 16, PACKS = STEP / 8;
  constexpr int WORD_SPANS = 2, SPANS = SPAN < STEP ? STEP / SPAN : 1;
  constexpr int FACTOR_BYTES = SPANS < WORD_SPANS ? 4 : SPANS * 2;
  constexpr int MATRIX = ROWS * STEP * 2, FACTORS = MATRIX + COLUMNS * COLUMN_BYTES;
  constexpr int STAGE = FACTORS + COLUMNS * 2 * FACTOR_BYTES;
  const int K = x_shape[1], N = weight_shape[0], columns = GATED ? N / 2 : N;
  const int share = cta_x, first = cta_z * OWN, first_row = cta_y * ROWS;
  const int rows = min(ROWS, x_shape[0] - first_row);
  const int begin = K / STEP * share / SHARES, steps = K / STEP * (share + 1) / SHARES - begin;
  const unsigned stages = (dynamic_shared_memory() + 1023) / 1024 * 1024;
  // `line_of`: the matrix row of one of this CTA's columns; row 0 for columns past the end.
  auto is_column = [&](int column) { return first + column % OWN < columns; };
  auto line_of = [&](int column) { return is_column(column) ? column / OWN * columns + first + column % OWN : 0; };
  // A column's 16-byte chunks are swizzled, so that the same chunk of 8 columns can be read without bank conflicts.
  auto chunk_at = [](int column, int chunk) {
    return MATRIX + column * COLUMN_BYTES + (chunk ^ column / (8 / CHUNKS) % CHUNKS) * 16;
  };
  // A thread copies one chunk of every COLUMNS_APART-th column, and one pack of every ROWS_APART-th row.
  constexpr int COLUMNS_APART = THREADS / CHUNKS, ROWS_APART = THREADS / PACKS;
  const int own_column = thread_index / CHUNKS, own_chunk = thread_index % CHUNKS;
  const int own_row = thread_index / PACKS, own_pack = thread_index % PACKS;
  unsigned lines[COLUMNS / COLUMNS_APART];
  for (int i = 0; i < COLUMNS / COLUMNS_APART; i++)
    lines[i] = (unsigned(line_of(own_column + i * COLUMNS_APART)) * (K / STEP) + begin) * COLUMN_BYTES + own_chunk * 16;
  auto fetch_matrix = [&](int step) {
    const unsigned to = stages + step % STAGES * STAGE;
    #pragma unroll
    for (int i = 0; i < COLUMNS / COLUMNS_APART; i++) {
      const int column = own_column + i * COLUMNS_APART;
      cp_async_ahead(
          to + chunk_at(column, own_chunk), reinterpret_cast<const char*>(weight) + (lines[i] + step * COLUMN_BYTES),
          is_column(column) ? 16 : 0);
    }
  };
  const T* rows_from = x + long(first_row + own_row) * K + begin * STEP + own_pack * 8;
  auto fetch_rows = [&](int step) {
    const unsigned to = stages + step % STAGES * STAGE + swizzled_pack<ROWS>(own_row, own_pack);
    #pragma unroll
    for (int i = 0; i < ROWS; i += ROWS_APART)
      cp_async(to + i * LINE_BYTES, rows_from + (long(i) * K + step * STEP), own_row + i < rows ? 16 : 0);
  };
  // First span of a step. Scales and biases of a step's spans are copied as whole 32-bit words, so if a step has a
  // single span, the word's other half belongs to a neighbouring span.
  auto first_span = [&](int line, int step) { return unsigned(line) * (K / SPAN) + (begin + step) * STEP / SPAN; };
  const unsigned factor_line = line_of(thread_index % COLUMNS);
  auto fetch_factors = [&](int step) {
    const unsigned at = first_span(factor_line, step) / WORD_SPANS * WORD_SPANS;
    #pragma unroll
    for (int i = 0; i < COLUMNS * 2 / THREADS; i++) {
      const int own = i * THREADS + thread_index;
      cp_async_ahead<FACTOR_BYTES>(
          stages + step % STAGES * STAGE + FACTORS + own * FACTOR_BYTES, (own < COLUMNS ? scales : biases) + at);
    }
  };
  // Scales or biases of a column in a step. A lane dequantizes two columns per tile.
  struct Words {
    unsigned of[FACTOR_BYTES / 4];
  };
  const int quad = lane % 4;
  auto column_of = [&](int i) { return sums_column<TILES>(warp, lane, i); };
  Words scale[TILES * 2], bias[TILES * 2];
  auto load_factors = [&](int step) {
    #pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      const unsigned at = stages + step % STAGES * STAGE + FACTORS + column_of(i) * FACTOR_BYTES;
      load_shared(scale[i].of, at);
      load_shared(bias[i].of, at + COLUMNS * FACTOR_BYTES);
      if (SPANS == 1 && first_span(line_of(column_of(i)), step) % 2 == 1) {
        scale[i].of[0] >>= 16;
        bias[i].of[0] >>= 16;
      }
    }
  };
  // Returns a span's scale or bias as a pair of equal numbers.
  auto factor_pair = [](const Words& words, int span) {
    return __byte_perm(words.of[span / 2], 0, span % 2 == 0 ? 0x1010 : 0x3232);
  };
  // Parts of a step. A part is 32 elements along K, two wgmmas of 16.
  constexpr int PARTS = STEP / 32;
  constexpr int LOADS = BITS / 4;
  uint4 loaded[TILES * 2][LOADS];
  auto load_part = [&](unsigned stage, int part) {
    #pragma unroll
    for (int i = 0; i < TILES * 2 * LOADS; i++)
      loaded[i / LOADS][i % LOADS] = load_shared(stage + chunk_at(column_of(i / LOADS), part * LOADS + i % LOADS));
  };
  auto dequantize_part = [&](unsigned (&operand)[TILES][2][4], int part) {
    #pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
      const uint4 &begin = loaded[i][0], &end = loaded[i][LOADS - 1];
      const unsigned words[8] = {begin.x, begin.y, begin.z, begin.w, end.x, end.y, end.z, end.w};
      const int span = part * 32 / SPAN;
      const unsigned scale_pair = factor_pair(scale[i], span), bias_pair = factor_pair(bias[i], span);
      #pragma unroll
      for (int pack = 0; pack < 4; pack++)
        operand[i / 2][pack / 2][pack % 2 * 2 + i % 2] =
            dequantize_pair<BITS>(words + pack * (BITS / 4), quad, scale_pair, bias_pair, x);
    }
  };
  float sum[TILES][ROWS / 2] = {};
  unsigned operands[2][TILES][2][4];
  auto multiply_part = [&](const unsigned (&operand)[TILES][2][4], unsigned stage, int part) {
    wgmma_fence();
    #pragma unroll
    for (int k = 0; k < 2; k++)
      #pragma unroll
      for (int t = 0; t < TILES; t++)
        wgmma_m64k16(
            sum[t], operand[t][k],
            wgmma_operand(stage + part / 2 * ROWS * LINE_BYTES + (part % 2 * 2 + k) * 32), x);
    wgmma_commit();
  };
  for (int s = 0; s < STAGES - 2; s++)
    if (s < steps) {
      fetch_matrix(s);
      fetch_factors(s);
    }
  AWAIT_INPUTS;
  for (int s = 0; s < STAGES - 2; s++) {
    if (s < steps) fetch_rows(s);
    cp_async_commit();
  }
  // Waits for a step's copies, and dequantizes its first part.
  auto begin_step = [&](int s) {
    cp_async_wait<STAGES - 3>();
    // Makes the copied data visible to all threads' wgmmas.
    fence_proxy_async();
    BARRIER;
    load_factors(s);
    load_part(stages + s % STAGES * STAGE, 0);
    dequantize_part(operands[0], 0);
  };
  if (steps > 0) begin_step(0);
  for (int s = 0; s < steps; s++) {
    const unsigned stage = stages + s % STAGES * STAGE;
    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
      multiply_part(operands[part % 2], stage, part);
      // Refills the stage of two steps ago, which both warpgroups had finished at this step's barrier.
      if (part == 0 && s + STAGES - 2 < steps) {
        fetch_matrix(s + STAGES - 2);
        fetch_factors(s + STAGES - 2);
        fetch_rows(s + STAGES - 2);
      }
      if (part == 0) cp_async_commit();
      if (part + 1 < PARTS) load_part(stage, part + 1);
      // Waits until the previous part's operand registers are free.
      wgmma_wait<1>();
      if (part + 1 < PARTS) dequantize_part(operands[(part + 1) % 2], part + 1);
      else if (s + 1 < steps) begin_step(s + 1);
    }
    // Waits for all wgmmas: if any were in flight across iterations, the compiler would serialize them all.
    #pragma unroll
    for (int t = 0; t < TILES; t++) wgmma_wait<0>(sum[t]);
  }
  BARRIER;
  store_sums<COLUMNS>(stages, sum, warp, lane);
  if (SHARES > 1) cluster_barrier();
  else BARRIER;
  // Adds up the CTAs' sums. Loads from other CTAs have a high latency, so all are issued before the first is added.
  auto total = [&](float (&made)[8], int row, int column) {
    float four[SHARES][2][4] = {};
    #pragma unroll
    for (int i = 0; i < SHARES * 2; i++) {
      const unsigned at = stages + (row * sums_line(COLUMNS) + column + i % 2 * 4) * 4;
      if (SHARES == 1) add_shared(four[0][i % 2], at);
      else load_shared_of(i / 2, four[i / 2][i % 2], at);
    }
    #pragma unroll
    for (int i = 0; i < SHARES * 8; i++) made[i % 8] = (i < 8 ? 0 : made[i % 8]) + four[i / 8][i / 4 % 2][i % 4];
  };
  constexpr int OWN_PACKS = OWN / 8;
  for (int i = share * THREADS + thread_index; i < rows * OWN_PACKS; i += SHARES * THREADS) {
    const int row = i / OWN_PACKS, column = i % OWN_PACKS * 8;
    if (first + column >= columns) continue;
    const long to = long(first_row + row) * columns + first + column;
    uint4 before = {};
    if (RESIDUAL) before = *reinterpret_cast<const uint4*>(residual + to);
    float sums[8], ups[8];
    total(sums, row, column);
    if (GATED) total(ups, row, OWN + column);
    *reinterpret_cast<uint4*>(made + to) = finished_pack<GATED, RESIDUAL>(sums, ups, before, x);
  }
  // Waits, because other CTAs may still read this CTA's sums.
  if (SHARES > 1) cluster_barrier();
