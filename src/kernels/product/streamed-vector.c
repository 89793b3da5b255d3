// Multiplies one token by a quantized matrix (GEMV) with tensor cores; CUDA with compute capability 9.0 only.
// Optionally fuses the RMSNorm before, SwiGLU, and the residual add after. A tile is 8 rows of the matrix, or with
// GATED 8 gate rows and the 8 matching up rows. In each round a CTA processes LINES adjacent tiles; the grid is
// persistent, and the next round is GROUPS * LINES tiles further. A producer warp streams the matrix through a ring
// buffer of SLOTS rounds in shared memory with bulk copies. It issues EARLY rounds before the token is available; it
// issues the other rounds after the token's loads, which would otherwise queue after those rounds. Memory serves some
// SMs faster than others, so with CLAIMED the rounds after the first SLOTS are work-stealing: an atomic counter
// assigns them to the CTA that asks first. The other WARPS warps split K: each has PAIRS pairs of steps. A step is 64
// bytes of each row, 16 bytes per lane.
//
// Weights become float16 without a conversion, as low mantissa bits of 1024: 1024 + q, exactly; with 4 bits every
// second nibble stays 4 bits higher, as 1024 + 16 q. The token's numbers are scaled by a power of two per pair of
// steps, so that float16 is exact for them too; with NORMED a number (token times norm weight) needs more bits and is
// split into two float16 digits. Operand layout: of the first operand's 16 rows, 8 are the tile's rows in one step,
// and 8 the same rows in the next step. A column of the second operand has one digit of the numbers of one
// quantization span in one step, and zeros elsewhere; its products with the other step's rows are ignored.
//
// Inputs: x (1, K) of T; weight (N, K) quantized to BITS with scales and biases (N, K / SPAN) of T; norm (K);
// numbers: the norm's epsilon at 0; residual (columns); claims: with CLAIMED the atomic counter, zero before and
// after the launch. Unused inputs may be any array.
// Output: made (1, columns): N columns; with GATED N / 2, silu(x gate) * (x up), where gate is the first half of the
// matrix's rows and up the second.
// Template arguments: T of 16 bits, K, N, BITS of 4 or 8, SPAN, NORMED, GATED, RESIDUAL; WARPS that compute; PAIRS
// per warp, rounded up; LINES; SLOTS; EARLY; CLAIMED; KEPT: tiles whose partial sums fit in shared memory; GROUPS:
// CTAs.
// Grid: GROUPS CTAs of WARPS + 1 warps. Dynamic shared memory: zeros, each warp's digits (both DIGIT_BYTES long), the
// ring buffer, and mbarriers.
#include "quantized.h"
#include "bulk.h"
  constexpr int STEP = 512 / BITS, NUMBERS = 32 / BITS; // numbers per step, and per unit (a 32-bit word)
  constexpr int SPANS = SPAN < STEP ? STEP / SPAN : 1, SPAN_UNITS = 16 / SPANS; // spans per step, units per span
  // With 4 spans per step all 8 columns of the operand are used, so digits need separate passes.
  constexpr int DIGITS = NORMED ? 2 : 1, PASSES = SPANS == 4 ? DIGITS : 1, VALUES = SPANS == 4 ? 2 : 1;
  constexpr int HALVES = GATED ? 2 : 1, COLUMNS = N / HALVES, ROW_STEPS = K / STEP, ROW_SPANS = K / SPAN;
  constexpr int PARTS = LINES * HALVES, ROWS = LINES * 8, ALL = COLUMNS / ROWS, MOST_ROUNDS = (ALL + GROUPS - 1) / GROUPS;
  static_assert(!CLAIMED || (!RESIDUAL && SLOTS * GROUPS <= ALL), "a claimed matrix has no residual, and tiles for all slots");
  // Rounds whose partial sums are buffered before they are reduced over the warps.
  constexpr int BLOCK = MOST_ROUNDS * LINES < KEPT ? MOST_ROUNDS : KEPT / LINES;
  constexpr int ROW_BYTES = ROW_STEPS * 64, FACTOR_BYTES = ROW_SPANS * 2, HALF_BYTES = ROWS * (ROW_BYTES + 2 * FACTOR_BYTES);
  constexpr int DIGIT_BYTES = PAIRS * 512 * DIGITS;
  const T* type = nullptr;
  const __half* half = nullptr;
  const int quad = lane % 4, line = lane / 4, first_step = warp * PAIRS * 2;
  const unsigned zeros = dynamic_shared_memory(), digits = zeros + (1 + warp) * DIGIT_BYTES;
  const unsigned slots = zeros + (1 + WARPS) * DIGIT_BYTES, barriers = slots + SLOTS * HALVES * HALF_BYTES;
  const unsigned finished = barriers + SLOTS * 16;
  const int rounds = (ALL - cta_x + GROUPS - 1) / GROUPS;
  // A slot of the ring has two mbarriers: full (data has arrived), and 8 bytes later empty (all warps have read the
  // slot).
  const auto arrived = [&](int round) { return barriers + round % SLOTS * 16; };
  const auto slot_at = [&](int round) { return slots + round % SLOTS * (HALVES * HALF_BYTES); };
  // `places`: for each slot, the index of its group of LINES tiles in the matrix.
  SHARED int places[SLOTS];
  const auto load = [&](int round, int place) {
    const unsigned barrier = arrived(round);
    places[round % SLOTS] = place;
    barrier_expect(barrier, HALVES * HALF_BYTES);
    #pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const long from = h * COLUMNS + place * ROWS;
      const unsigned to = slot_at(round) + h * HALF_BYTES;
      bulk_copy(to, reinterpret_cast<const char*>(weight) + from * ROW_BYTES, ROWS * ROW_BYTES, barrier);
      bulk_copy(to + ROWS * ROW_BYTES, scales + from * ROW_SPANS, ROWS * FACTOR_BYTES, barrier);
      bulk_copy(to + ROWS * (ROW_BYTES + FACTOR_BYTES), biases + from * ROW_SPANS, ROWS * FACTOR_BYTES, barrier);
    }
  };
  if (thread_index == 0) {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(arrived(i), 1);
      barrier_init(arrived(i) + 8, WARPS);
    }
    barrier_init(finished, WARPS);
  }
  for (int i = thread_index; i < DIGIT_BYTES / 16; i += (WARPS + 1) * 32) store_shared(zeros + i * 16, uint4{0, 0, 0, 0});
  BARRIER;
  if (warp == WARPS) {
    for (int round = 0; lane == 0 && (CLAIMED || round < rounds); round++) {
      if (round == EARLY) {
        AWAIT_INPUTS;
        pause_shortly();
      }
      if (round >= SLOTS) barrier_wait(arrived(round) + 8, (round / SLOTS - 1) % 2);
      int place = cta_x + round * GROUPS;
      if (CLAIMED && round >= SLOTS) {
        // Every CTA's last claim finds no tile. The very last claim resets the counter for the next launch.
        int* next = const_cast<int*>(claims);
        place = SLOTS * GROUPS + atomic_add(next, 1);
        if (place == ALL + GROUPS - 1) *next = 0;
        if (place >= ALL) {
          places[round % SLOTS] = place;
          barrier_arrive(arrived(round));
          return;
        }
      }
      load(round, place);
    }
    return;
  }
  struct alignas(NUMBERS * sizeof(T)) Unit {
    T x[NUMBERS];
  };
  // A unit: the token's elements for one 32-bit word of weights. A pair of steps has 32, one per lane; zeros after K.
  const auto is_inside = [&](int s) { return ROW_STEPS == WARPS * PAIRS * 2 || first_step + s < ROW_STEPS; };
  const auto numbers_at = [&](int pair) {
    return min(first_step + pair * 2 + lane / 16, ROW_STEPS - 1) * STEP + lane % 16 * NUMBERS;
  };
  Unit normed_by[NORMED ? PAIRS : 1], own[PAIRS];
  #pragma unroll
  for (int i = 0; NORMED && i < PAIRS; i++) normed_by[i] = *reinterpret_cast<const Unit*>(norm + numbers_at(i));
  const float epsilon = NORMED ? numbers[0] : 0;
  AWAIT_INPUTS;
  #pragma unroll
  for (int i = 0; i < PAIRS; i++) own[i] = *reinterpret_cast<const Unit*>(x + numbers_at(i));
  static_assert(!RESIDUAL || (MOST_ROUNDS <= BLOCK && MOST_ROUNDS * LINES <= WARPS * 4), "a thread has one number of the residual");
  const int added_to = (cta_x + thread_index / ROWS * GROUPS) * ROWS + thread_index % ROWS;
  const T added = residual[RESIDUAL && added_to < COLUMNS ? added_to : 0];
  // Per quantization span: `totals`, the sum of the token's elements, for the quantization bias; `offsets`, the
  // amount that the 1024 in each weight (64 for nibbles stored as 16 q) adds to the dot product.
  SHARED float totals[WARPS][PAIRS * 2 * SPANS], offsets[WARPS][PAIRS * 2 * SPANS], squares[WARPS];
  float square = 0, descale[PAIRS];
  #pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int of_pair = lane / 16, word = lane % 4, of_quad = lane / 4 % 4;
    float rest[NUMBERS], total = 0, offset = 0, largest = 0;
    for (int j = 0; j < NUMBERS; j++) {
      rest[j] = is_inside(i * 2 + of_pair) ? float(own[i].x[j]) : 0;
      square += NORMED ? rest[j] * rest[j] : 0;
      if (NORMED) rest[j] *= float(normed_by[i].x[j]);
      largest = fmaxf(largest, fabsf(rest[j]));
    }
    #pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) largest = fmaxf(largest, SHUFFLE_XOR(largest, mask));
    // Scales the largest element to between 2^12 and 2^13; float16 rounds smaller elements by less than 2^-24.
    const int exponent = min(max(int(__float_as_uint(largest) >> 23), 13), 253);
    const float upscale = __uint_as_float(unsigned(266 - exponent) << 23);
    descale[i] = __uint_as_float(unsigned(exponent - 12) << 23);
    for (int j = 0; j < NUMBERS; j++) {
      rest[j] *= upscale;
      total += rest[j];
      // 4-bit weights 1, 3, 5 and 7 of a word are multiplied as 16 q.
      offset += rest[j] * (BITS == 4 && j % 2 ? 64 : 1024);
      if (BITS == 4 && j % 2) rest[j] *= 1.0f / 16;
    }
    #pragma unroll
    for (int mask = 1; mask < SPAN_UNITS; mask *= 2) {
      total += SHUFFLE_XOR(total, mask);
      offset += SHUFFLE_XOR(offset, mask);
    }
    if (lane % SPAN_UNITS == 0) {
      totals[warp][(i * 32 + lane) / SPAN_UNITS] = total;
      offsets[warp][(i * 32 + lane) / SPAN_UNITS] = offset;
    }
    for (int digit = 0; digit < DIGITS; digit++) {
      float part[NUMBERS];
      for (int j = 0; j < NUMBERS; j++) {
        part[j] = float(__half(rest[j]));
        rest[j] -= part[j];
      }
      // Packs the digits in the order of the weights in a word: 0 4, 1 5, 2 6, 3 7 with 4 bits; 0 2, 1 3 with 8 bits.
      unsigned pairs[4] = {};
      for (int j = 0; j < NUMBERS / 2; j++) pairs[j] = pack_pair(part[j], part[j + NUMBERS / 2], half);
      const int at = (((i * 4 + word) * DIGITS + digit) * 2 + of_pair) * 4 + of_quad;
      store_shared(digits + at * 16, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    }
  }
  #pragma unroll
  for (int mask = 16; NORMED && mask > 0; mask /= 2) square += SHUFFLE_XOR(square, mask);
  if (lane == 0) squares[warp] = square;
  WARP_BARRIER;
  // A lane supplies column `line` of the second operand: its digits if the quad's numbers belong to that column's
  // span, otherwise zeros. A lane has two columns of the result: two digits of one span, or two spans.
  const int column = SPANS == 4 ? line : line / 2, digit = SPANS == 4 ? 0 : line % 2;
  const bool is_own = column < 2 * SPANS && digit < DIGITS && column % SPANS == quad * SPANS / 4;
  const unsigned digits_at = is_own ? digits + (digit * 8 + column / SPANS * 4 + quad) * 16 : zeros;
  const int out_column = quad * VALUES, of_pair = out_column / SPANS % 2;
  const bool is_used = out_column < 2 * SPANS;
  // Odd rows load their two steps in swapped order, which avoids shared-memory bank conflicts.
  const int swapped = line % 2, is_second = of_pair ^ swapped;
  const auto step_of = [&](int s) { return min(first_step + (s ^ swapped), ROW_STEPS - 1); };
  float total[PAIRS][VALUES], offset[PAIRS][VALUES];
  int span[PAIRS][VALUES];
  #pragma unroll
  for (int i = 0; i < PAIRS; i++)
    for (int v = 0; v < VALUES; v++) {
      const int at = is_used ? i * 2 * SPANS + out_column + v : 0;
      total[i][v] = is_used ? totals[warp][at] : 0;
      offset[i][v] = is_used ? offsets[warp][at] : 0;
      span[i][v] = min((first_step * SPANS + at) * (STEP / SPANS) / SPAN, ROW_SPANS - 1);
    }
  int completed = 0;
  const auto sync_warps = [&] {
    WARP_BARRIER;
    if (lane == 0) barrier_arrive(finished);
    barrier_wait(finished, completed++ % 2);
  };
  // `others`: the warps' partial sums of the buffered rounds. `kept_places`: these rounds' positions in the output.
  SHARED float others[BLOCK * PARTS][WARPS][8];
  SHARED int kept_places[BLOCK];
  int kept = 0;
  const auto finish = [&] {
    sync_warps();
    float all = 0;
    for (int i = 0; NORMED && i < WARPS; i++) all += squares[i];
    const float scale = NORMED ? RSQRT(all / K + epsilon) : 1.0f;
    for (int i = thread_index; i < kept * ROWS; i += WARPS * 32) {
      float result = 0, up = 0;
      #pragma unroll
      for (int j = 0; j < WARPS; j++) {
        result += others[i / 8 * HALVES][j][i % 8];
        if (GATED) up += others[i / 8 * HALVES + HALVES - 1][j][i % 8];
      }
      result *= scale;
      if (GATED) {
        const float gate = float(T(result));
        result = gate / (1 + EXP(-gate)) * float(T(up * scale));
      }
      if (RESIDUAL) result += float(added);
      made[kept_places[i / ROWS] * ROWS + i % ROWS] = T(result);
    }
  };
  for (int round = 0; CLAIMED || round < rounds; round++) {
    barrier_wait(arrived(round), round / SLOTS % 2);
    const int place = places[round % SLOTS];
    if (place >= ALL) break;
    const auto part_at = [&](int p) { return slot_at(round) + p % HALVES * HALF_BYTES; };
    float sum[PARTS] = {};
    #pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      float product[PARTS][4] = {};
      uint4 w[PARTS][2];
      for (int p = 0; p < PARTS; p++)
        for (int s = 0; s < 2; s++)
          w[p][s] = load_shared(part_at(p) + (p / HALVES * 8 + line) * ROW_BYTES + step_of(i * 2 + s) * 64 + quad * 16);
      #pragma unroll
      for (int word = 0; word < 4; word++)
        #pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
          const uint4 own_digit = load_shared(digits_at + ((i * 4 + word) * DIGITS + pass) * 128);
          constexpr unsigned PAIR_OF_1024 = 0x64006400;
          unsigned a[PARTS][NUMBERS];
          #pragma unroll
          for (int p = 0; p < PARTS; p++) {
            for (int j = 0; j < NUMBERS; j++) {
              const unsigned loaded = (&w[p][j % 2].x)[word], moved = j < NUMBERS / 2 ? loaded : loaded >> 8;
              a[p][j] = and_or(moved, BITS == 8 ? 0x00ff00ff : j / 2 % 2 ? 0x00f000f0 : 0x000f000f, PAIR_OF_1024);
            }
            mma_m16n8k16(product[p], a[p][0], a[p][1], a[p][2], a[p][3], own_digit.x, own_digit.y, half);
          }
          #pragma unroll
          for (int p = 0; BITS == 4 && p < PARTS; p++)
            mma_m16n8k16(
                product[p], a[p][NUMBERS - 4], a[p][NUMBERS - 3], a[p][NUMBERS - 2], a[p][NUMBERS - 1], own_digit.z,
                own_digit.w, half);
        }
      #pragma unroll
      for (int p = 0; p < PARTS; p++)
        for (int v = 0; v < VALUES; v++) {
          const unsigned at = part_at(p) + ROWS * ROW_BYTES + ((p / HALVES * 8 + line) * ROW_SPANS + span[i][v]) * 2;
          const float scale = float(load_shared_number(at, type));
          const float bias = float(load_shared_number(at + ROWS * FACTOR_BYTES, type));
          const float low = is_second ? product[p][2] : product[p][0], high = is_second ? product[p][3] : product[p][1];
          const float dot = VALUES == 1 ? low + high : v ? high : low;
          sum[p] += descale[i] * (scale * (dot - offset[i][v]) + bias * total[i][v]);
        }
    }
    if (CLAIMED || round + SLOTS < rounds) {
      WARP_BARRIER;
      if (lane == 0) barrier_arrive(arrived(round) + 8);
    }
    #pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
      for (int p = 0; p < PARTS; p++) sum[p] += SHUFFLE_XOR(sum[p], mask);
    if (kept == BLOCK) {
      finish();
      sync_warps();
      kept = 0;
    }
    for (int p = 0; quad == 0 && p < PARTS; p++) others[kept * PARTS + p][warp][line] = sum[p];
    if (thread_index == 0) kept_places[kept] = place;
    kept += 1;
  }
  if (kept > 0) finish();
