// Multiplies one token with a quantized matrix, or with those of its experts; CUDA only. Optionally fuses the RMS norm
// before, the gate, and the residual behind. As vector.c: a warp reads whole rows of the matrix, or a share of them,
// LINES at once, with all loads on their way before the token is there, and then those GROUPS further. A lane has every
// 32nd pack of 16 bytes, which are EACH_PACK weights; the group prepares the token for all its warps, in the order in
// which lanes read it.
//
// Inputs: x (1 or rows, K) of T, weight (N, K) quantized to BITS a number with scales and biases (N, K / SPAN) of T,
// norm (K), numbers: the norm's epsilon at 0, residual (columns); those that are not used may be any array.
// With EXPERTS: weight (experts, N, K), chosen (rows): those of the token.
// Output: made (rows, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is
// the matrix's first half.
// Constants: T of 16 bits, K, N, BITS of 4 or 8, SPAN, NORMED, GATED, RESIDUAL, EXPERTS, EACH: rows for a row of x; PACKS:
// those of a lane in a row, rounded up; LINES; WARPS, of which SHARES have the same lines; GROUPS that share a matrix.
// Groups: (GROUPS, rows).
#include "quantized.h"
  constexpr int EACH_PACK = 128 / BITS, PACK_UNITS = EACH_PACK / 8, THREADS = WARPS * 32;
  constexpr int ALL_PACKS = PACKS * SHARES * 32, UNITS = (ALL_PACKS * PACK_UNITS + THREADS - 1) / THREADS;
  constexpr int COLUMNS = GATED ? N / 2 : N, ALL = GATED ? 2 * LINES : LINES, ROW_PACKS = K / EACH_PACK;
  constexpr int STEP = WARPS / SHARES * LINES, MORE = GROUPS * STEP;
  constexpr int TURNS = (COLUMNS + MORE - 1) / MORE;
  static_assert(!RESIDUAL || TURNS * STEP <= THREADS, "a thread loads one number of the residual");
  const int share = warp % SHARES;
  int first = group_x * STEP + warp / SHARES * LINES;
  const T* row = x + long(group_y / EACH) * K;
  if (EXPERTS) AWAIT_INPUTS;
  const long matrix = EXPERTS ? long(chosen[group_y]) * N : 0;
  uint4 w[ALL][PACKS];
  T scale[ALL][PACKS], bias[ALL][PACKS];
  const auto load = [&](int i, int lines) {
    // Lanes behind the end multiply a pack of the row by zeros.
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
  const int added_to = group_x * STEP + thread_index / STEP * MORE + thread_index % STEP;
  const T addend = residual[RESIDUAL && added_to < COLUMNS ? long(group_y) * COLUMNS + added_to : 0];
  #pragma unroll
  for (int i = 0; i < UNITS; i++) {
    const int unit = i * THREADS + thread_index;
    eight[i] = load_made(row + (unit * 8 < K ? unit * 8 : 0));
  }
  // Four numbers of a pack are 32 packs apart from its next four. With 4 bits a weight q is read as 2048 + q or 128 + q:
  // `offsets` has what that adds to a pack's product, `totals` the sum of its numbers.
  SHARED float4 staged[ALL_PACKS * PACK_UNITS * 2];
  SHARED float offsets[ALL_PACKS], totals[ALL_PACKS], squares[WARPS];
  SHARED T added[RESIDUAL ? TURNS * STEP : 1];
  if (RESIDUAL && thread_index < TURNS * STEP) added[thread_index] = addend;
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
  for (int turn = 0;; turn++) {
    const int next = first + MORE;
    const bool goes_on = TURNS > 1 && next < COLUMNS;
    float sum[ALL] = {};
    #pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int bundle = i * SHARES + share;
      float made_of[ALL] = {};
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
            made_of[j] += number[2 * k] * two[0];
            made_of[j] += number[2 * k + 1] * two[1];
          }
        }
      }
      const float offset = offsets[bundle * 32 + lane], total = totals[bundle * 32 + lane];
      #pragma unroll
      for (int j = 0; j < ALL; j++) sum[j] += (made_of[j] - offset) * float(scale[j][i]) + total * float(bias[j][i]);
      if (goes_on) load(i, next);
    }
    #pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
      for (int j = 0; j < ALL; j++) sum[j] += SHUFFLE_XOR(sum[j], mask);
    if (SHARES > 1) {
      // Those of the turn before are still being read.
      SHARED float others[2 * WARPS * ALL];
      float* kept = others + (turn % 2 * WARPS + warp) * ALL;
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
        if (RESIDUAL) result += float(added[turn * STEP + warp / SHARES * LINES + j]);
        made[long(group_y) * COLUMNS + first + j] = T(result);
      }
    }
    if (!goes_on) break;
    first = next;
  }
