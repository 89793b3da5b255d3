// Multiplies one token with a dense matrix, or with those of its experts; CUDA only. Optionally fuses the RMS norm
// before, the gate, and the residual behind. It takes as long as it takes to read the matrix, so a warp reads whole rows
// of it, or a share of them, LINES at once, with all loads on their way before the first is used, and before the
// token is there. A lane has every 32nd pack of 8 numbers. With a norm, which every group makes for itself, groups take
// turns: each goes on with the rows that are GROUPS further, of which a pack is loaded where the one before was multiplied.
//
// Inputs: x (1 or rows, K) of T, weight (N, K) of T, norm (K), numbers: the norm's epsilon at 0, residual (columns);
// those that are not used may be any array. With EXPERTS: weight (experts, N, K), chosen (rows): those of the token.
// Output: made (rows, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is
// the matrix's first half.
// Constants: T of 16 bits, K, N, NORMED, GATED, RESIDUAL, EXPERTS, EACH: rows for a row of x; PACKS: K / (256 SHARES),
// rounded up; LINES; WARPS, of which SHARES have the same lines; GROUPS that share a matrix.
// Groups: (GROUPS, rows).
#include "quantized.h"
  constexpr int COLUMNS = GATED ? N / 2 : N, ALL = GATED ? 2 * LINES : LINES, STEP = WARPS / SHARES * LINES;
  constexpr int MORE = GROUPS * STEP;
  const int share = warp % SHARES;
  int first = group_x * STEP + warp / SHARES * LINES;
  const T* row = x + long(group_y / EACH) * K;
  const T* matrix = weight;
  if (EXPERTS) {
    AWAIT_INPUTS;
    matrix += long(chosen[group_y]) * N * K;
  }
  // Lanes behind the end multiply a pack of the row by zeros.
  constexpr bool IS_WHOLE = PACKS * SHARES * 256 == K;
  const auto place = [&](int i) { return ((i * SHARES + share) * 32 + lane) * 8; };
  const auto is_there = [&](int i) { return IS_WHOLE || place(i) < K; };
  uint4 w[ALL][PACKS], factors[NORMED ? PACKS : 1];
  const auto load = [&](int i, int lines) {
    const T* from = matrix + long(lines) * K + (IS_WHOLE ? place(0) : is_there(i) ? place(i) : 0);
    #pragma unroll
    for (int j = 0; j < ALL; j++) {
      const long line = j % LINES + (j < LINES ? 0 : COLUMNS);
      w[j][i] = load_constant(from + line * K + (IS_WHOLE ? i * SHARES * 256 : 0));
    }
  };
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    load(i, first);
    if (NORMED) factors[i] = load_constant(norm + (is_there(i) ? place(i) : 0));
  }
  const float epsilon = NORMED ? numbers[0] : 0;
  if (!EXPERTS) AWAIT_INPUTS;
  uint4 own[PACKS];
  #pragma unroll
  for (int i = 0; i < PACKS; i++) {
    own[i] = load_made(row + (is_there(i) ? place(i) : 0));
    if (!is_there(i)) own[i] = uint4{0, 0, 0, 0};
  }
  // A lane has a line in the end. What is added to it is loaded now: behind the next launch's weights it would take long.
  static_assert(!RESIDUAL || MORE >= COLUMNS, "no turns");
  const T added = residual[RESIDUAL ? long(group_y) * COLUMNS + first + lane % LINES : 0];
  const auto number = [&](int i, int k) { return float(reinterpret_cast<const T*>(&own[i])[k]); };
  // Those of a norm are kept as floats, which takes no more registers than their factors.
  float normed[NORMED ? PACKS : 1][8], square = 0;
  #pragma unroll
  for (int i = 0; NORMED && i < PACKS; i++) {
    const T* by = reinterpret_cast<const T*>(&factors[i]);
    #pragma unroll
    for (int k = 0; k < 8; k++) {
      square += number(i, k) * number(i, k);
      normed[i][k] = number(i, k) * float(by[k]);
    }
  }
  for (int turn = 0;; turn++) {
    const int next = first + MORE;
    const bool goes_on = MORE < COLUMNS && next < COLUMNS;
    float sum[ALL] = {};
    #pragma unroll
    for (int i = 0; i < PACKS; i++) {
      #pragma unroll
      for (int j = 0; j < ALL; j++) {
        const T* weights = reinterpret_cast<const T*>(&w[j][i]);
        #pragma unroll
        for (int k = 0; k < 8; k++)
          sum[j] += (NORMED ? normed[NORMED ? i : 0][k] : number(i, k)) * float(weights[k]);
      }
      if (goes_on) load(i, next);
    }
    float all = square;
    #pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      for (int j = 0; j < ALL; j++) sum[j] += SHUFFLE_XOR(sum[j], mask);
      if (NORMED) all += SHUFFLE_XOR(all, mask);
    }
    if (SHARES > 1) {
      // Those of the turn before are still being read.
      constexpr int KEPT = ALL + 1;
      SHARED float others[2 * WARPS * KEPT];
      float* kept = others + (turn % 2 * WARPS + warp) * KEPT;
      if (lane == 0) {
        for (int j = 0; j < ALL; j++) kept[j] = sum[j];
        kept[ALL] = all;
      }
      BARRIER;
      for (int s = 1; share == 0 && s < SHARES; s++) {
        for (int j = 0; j < ALL; j++) sum[j] += kept[s * KEPT + j];
        all += kept[s * KEPT + ALL];
      }
    }
    const float scale = NORMED ? RSQRT(all / K + epsilon) : 1.0f;
    #pragma unroll
    for (int j = 0; j < LINES; j++) {
      if (lane != j || share > 0) continue;
      float result = sum[j] * scale;
      if (GATED) {
        const float gate = float(T(result)), up = float(T(sum[ALL - LINES + j] * scale));
        result = gate / (1 + EXP(-gate)) * up;
      }
      if (RESIDUAL) result += float(added);
      made[long(group_y) * COLUMNS + first + j] = T(result);
    }
    if (!goes_on) break;
    first = next;
  }
