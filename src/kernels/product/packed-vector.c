// Multiplies one token by a quantized matrix (GEMV), or by its experts' matrices; CUDA only. Optionally fuses the
// RMSNorm before, SwiGLU, and the residual add after. Like vector.c: a warp reads LINES rows, or a share of each,
// with all loads issued before the token is available; in each round a CTA advances by the rows of the whole grid. A
// lane has every 32nd pack of 16 bytes, which are EACH_PACK weights. The CTA stages the token (normed) in shared
// memory for all its warps, in the order in which lanes read it.
//
// Inputs: x (1 or rows, K) of T; weight (N, K) quantized to BITS with scales and biases (N, K / SPAN) of T; norm (K);
// numbers: the norm's epsilon at 0; residual (columns). Unused inputs may be any array. With EXPERTS: weight
// (experts, N, K); chosen (rows): the token's experts.
// Output: made (rows, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of
// the matrix's rows and up the second.
// Template arguments: T of 16 bits, K, N, BITS of 4 or 8, SPAN, NORMED, GATED, RESIDUAL, EXPERTS, EACH: output rows
// per row of x; PACKS per lane and row, rounded up; LINES; WARPS, of which SHARES split each row; GROUPS: CTAs per
// matrix.
// Grid: (GROUPS, rows) CTAs of WARPS warps.
#include "quantized.h"
  constexpr int EACH_PACK = 128 / BITS, PACK_UNITS = EACH_PACK / 8, THREADS = WARPS * 32;
  constexpr int ALL_PACKS = PACKS * SHARES * 32, UNITS = (ALL_PACKS * PACK_UNITS + THREADS - 1) / THREADS;
  constexpr int COLUMNS = GATED ? N / 2 : N, ALL = GATED ? 2 * LINES : LINES, ROW_PACKS = K / EACH_PACK;
  constexpr int STEP = WARPS / SHARES * LINES, GRID_ROWS = GROUPS * STEP;
  constexpr int ROUNDS = (COLUMNS + GRID_ROWS - 1) / GRID_ROWS;
  static_assert(!RESIDUAL || ROUNDS * STEP <= THREADS, "a thread loads one number of the residual");
  const int share = warp % SHARES;
  int first = cta_x * STEP + warp / SHARES * LINES;
  const T* row = x + long(cta_y / EACH) * K;
  if (EXPERTS) AWAIT_INPUTS;
  const long matrix = EXPERTS ? long(chosen[cta_y]) * N : 0;
  uint4 w[ALL][PACKS];
  T scale[ALL][PACKS], bias[ALL][PACKS];
  const auto load = [&](int i, int lines) {
    // Lanes past the end of K load any valid pack of the row and multiply it by zeros.
    const int own = (i * SHARES + share) * 32 + lane, at = ROW_PACKS == ALL_PACKS || own < ROW_PACKS ? own : 0;
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const long line = matrix + lines + j % LINES + (j < LINES ? 0 : COLUMNS);
      w[j][i] = load_constant(reinterpret_cast<const uint4*>(weight) + line * ROW_PACKS + at);
      scale[j][i] = scales[line * (K / SPAN) + at * EACH_PACK / SPAN];
      bias[j][i] = biases[line * (K / SPAN) + at * EACH_PACK / SPAN];
    }
  };
  #pragma unroll
  for (int i = 0; i < PACKS; i++) load(i, first);
  uint4 factors[NORMED ? UNITS : 1], eight[UNITS];
  #pragma unroll
  for (int i = 0; NORMED && i < UNITS; i++) {
    const int unit = i * THREADS + thread_index;
    factors[i] = load_constant(norm + (unit * 8 < K ? unit * 8 : 0));
  }
  const float epsilon = NORMED ? numbers[0] : 0;
  if (!EXPERTS) AWAIT_INPUTS;
  const int added_to = cta_x * STEP + thread_index / STEP * GRID_ROWS + thread_index % STEP;
  const T addend = residual[RESIDUAL && added_to < COLUMNS ? long(cta_y) * COLUMNS + added_to : 0];
  #pragma unroll
  for (int i = 0; i < UNITS; i++) {
    const int unit = i * THREADS + thread_index;
    eight[i] = load_global(row + (unit * 8 < K ? unit * 8 : 0));
  }
  // `staged`: the token's elements as float4, lane-interleaved, so that consecutive lanes read consecutive float4s.
  // Bit tricks convert a 4-bit weight q to 2048 + q or 128 + q; `offsets`: the sum that the 2048 or 128 adds to a
  // pack's dot product. `totals`: the sum of a pack's elements, for the quantization bias.
  SHARED float4 staged[ALL_PACKS * PACK_UNITS * 2];
  SHARED float offsets[ALL_PACKS], totals[ALL_PACKS], squares[WARPS];
  SHARED T added[RESIDUAL ? ROUNDS * STEP : 1];
  if (RESIDUAL && thread_index < ROUNDS * STEP) added[thread_index] = addend;
  float square = 0;
  #pragma unroll
  for (int i = 0; i < UNITS; i++) {
    const int unit = i * THREADS + thread_index, pack = unit / PACK_UNITS, part = unit % PACK_UNITS;
    if (unit * 8 >= K) eight[i] = uint4{0, 0, 0, 0};
    const T* inputs = reinterpret_cast<const T*>(&eight[i]);
    const T* by = reinterpret_cast<const T*>(&factors[NORMED ? i : 0]);
    float number[8], even = 0, odd = 0;
    #pragma unroll
    for (int k = 0; k < 8; k++) {
      number[k] = float(inputs[k]);
      square += NORMED ? number[k] * number[k] : 0;
      if (NORMED) number[k] *= float(by[k]);
      (k % 2 ? odd : even) += number[k];
    }
    float total = even + odd, offset = BITS == 4 ? 2048 * even + 128 * odd : 0;
    #pragma unroll
    for (int mask = 1; mask < PACK_UNITS; mask *= 2) {
      total += SHUFFLE_XOR(total, mask);
      offset += SHUFFLE_XOR(offset, mask);
    }
    if (pack >= ALL_PACKS) continue;
    float4* to = staged + (pack / 32 * PACK_UNITS + part) * 64 + pack % 32;
    to[0] = float4{number[0], number[1], number[2], number[3]};
    to[32] = float4{number[4], number[5], number[6], number[7]};
    if (part == 0) {
      offsets[pack] = offset;
      totals[pack] = total;
    }
  }
  if (NORMED) {
    for (int mask = 16; mask > 0; mask /= 2) square += SHUFFLE_XOR(square, mask);
    if (lane == 0) squares[warp] = square;
  }
  BARRIER;
  float all = 0;
  for (int i = 0; NORMED && i < WARPS; i++) all += squares[i];
  const float factor = NORMED ? RSQRT(all / K + epsilon) : 1.0f;
  for (int round = 0;; round++) {
    const int next = first + GRID_ROWS;
    const bool has_next = ROUNDS > 1 && next < COLUMNS;
    float sum[ALL] = {};
    #pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int bundle = i * SHARES + share;
      float dot[ALL] = {};
      #pragma unroll
      for (int unit = 0; unit < PACK_UNITS; unit++) {
        const float4 low = staged[(bundle * PACK_UNITS + unit) * 64 + lane];
        const float4 high = staged[(bundle * PACK_UNITS + unit) * 64 + 32 + lane];
        const float number[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        #pragma unroll
        for (int j = 0; j < ALL; j++) {
          const unsigned* words = &w[j][i].x;
          #pragma unroll
          for (int k = 0; k < 4; k++) {
            float two[2];
            if (BITS == 4) {
              const unsigned word = words[unit], moved = k < 2 ? word << (12 - 8 * k) : word >> (8 * k - 12);
              two[0] = __uint_as_float((moved & 0xf000) | 0x45000000);
              two[1] = __uint_as_float((moved & 0xf0000) | 0x43000000);
            } else {
              const unsigned word = words[unit * 2 + k / 2];
              for (int c = 0; c < 2; c++)
                two[c] = __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 + k % 2 * 2 + c)) - 8388608.0f;
            }
            dot[j] += number[2 * k] * two[0];
            dot[j] += number[2 * k + 1] * two[1];
          }
        }
      }
      const float offset = offsets[bundle * 32 + lane], total = totals[bundle * 32 + lane];
      #pragma unroll
      for (int j = 0; j < ALL; j++) sum[j] += (dot[j] - offset) * float(scale[j][i]) + total * float(bias[j][i]);
      if (has_next) load(i, next);
    }
    #pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
      for (int j = 0; j < ALL; j++) sum[j] += SHUFFLE_XOR(sum[j], mask);
    if (SHARES > 1) {
      // Double-buffered, because warps may still read the previous round's sums.
      SHARED float others[2 * WARPS * ALL];
      float* kept = others + (round % 2 * WARPS + warp) * ALL;
      if (lane == 0)
        for (int j = 0; j < ALL; j++) kept[j] = sum[j];
      BARRIER;
      for (int s = 1; share == 0 && s < SHARES; s++)
        for (int j = 0; j < ALL; j++) sum[j] += kept[s * ALL + j];
    }
    if (lane == 0 && share == 0) {
      #pragma unroll
      for (int j = 0; j < LINES; j++) {
        float result = sum[j] * factor;
        if (GATED) {
          const float gate = float(T(result)), up = float(T(sum[ALL - LINES + j] * factor));
          result = gate / (1 + EXP(-gate)) * up;
        }
        if (RESIDUAL) result += float(added[round * STEP + warp / SHARES * LINES + j]);
        made[long(cta_y) * COLUMNS + first + j] = T(result);
      }
    }
    if (!has_next) break;
    first = next;
  }
