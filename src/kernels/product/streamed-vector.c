// Multiplies one token with a quantized matrix by tensor cores; CUDA only, on Hopper GPUs. Optionally fuses the RMS norm
// before, the gate, and the residual behind. A tile is 8 rows of the matrix, or with GATED 8 of each half. In a turn a group has
// LINES neighbouring tiles, in the next one those GROUPS times as many further. SLOTS turns are on their way to shared memory at
// any time, asked for by a warp of their own: EARLY of them before the token is there, the others behind what is asked of the token,
// which would come late otherwise. The memory serves some multiprocessors quicker than others: with CLAIMED what is behind the
// first SLOTS turns is had by the group that comes first. The other warps share K: each has PAIRS pairs of steps, which are
// 64 bytes of each row, 16 of them a lane's.
//
// A weight is the last bits of 1024 as a number of 16 bits, exact and without a conversion; or with 4 bits 16 times itself, four
// bits further. The numbers of the token are scaled by a power of two for each pair of steps, so that they are as well, and their
// products with a norm's as the sum of two, their digits. Of the first operand's 16 rows, 8 are those of a tile in one step, and 8
// the same in the next one. A column of the second is a digit of the numbers of one step's span, which have a scale of their own,
// and zeros elsewhere: what the rows of the other step make of it is not used.
//
// Inputs: x (1, K) of T, weight (N, K) quantized to BITS a number with scales and biases (N, K / SPAN) of T,
// norm (K), numbers: the norm's epsilon at 0, residual (columns), claims: with CLAIMED, 0 at 0, which is written to, and 0 again
// behind the launch; those that are not used may be any array.
// Output: made (1, columns): N columns, or with GATED half as many, silu(x gate) * (x up), where `gate` is
// the matrix's first half.
// Constants: T of 16 bits, K, N, BITS of 4 or 8, SPAN, NORMED, GATED, RESIDUAL, WARPS that compute;
// PAIRS of a warp, rounded up; LINES; SLOTS; EARLY; CLAIMED; KEPT: tiles whose results a group has room for; GROUPS.
// Groups: (GROUPS), of a warp more. Shared memory: zeros, then each warp's digits, as many bytes, then the slots, and barriers.
#include "quantized.h"
#include "bulk.h"
  constexpr int STEP = 512 / BITS, NUMBERS = 32 / BITS; // of a step, and of a unit: a word of the matrix
  constexpr int SPANS = SPAN < STEP ? STEP / SPAN : 1, SPAN_UNITS = 16 / SPANS; // of a step
  // With 4 spans there are no columns for digits: they are multiplied one after the other.
  constexpr int DIGITS = NORMED ? 2 : 1, PASSES = SPANS == 4 ? DIGITS : 1, VALUES = SPANS == 4 ? 2 : 1;
  constexpr int HALVES = GATED ? 2 : 1, COLUMNS = N / HALVES, ROW_STEPS = K / STEP, ROW_SPANS = K / SPAN;
  constexpr int PARTS = LINES * HALVES, ROWS = LINES * 8, ALL = COLUMNS / ROWS, MOST_TURNS = (ALL + GROUPS - 1) / GROUPS;
  static_assert(!CLAIMED || (!RESIDUAL && SLOTS * GROUPS <= ALL), "a group has the first turns, and residuals are of those");
  // Turns whose results are kept until all warps have theirs.
  constexpr int BLOCK = MOST_TURNS * LINES < KEPT ? MOST_TURNS : KEPT / LINES;
  constexpr int ROW_BYTES = ROW_STEPS * 64, FACTOR_BYTES = ROW_SPANS * 2, HALF_BYTES = ROWS * (ROW_BYTES + 2 * FACTOR_BYTES);
  constexpr int DIGIT_BYTES = PAIRS * 512 * DIGITS;
  const T* type = nullptr;
  const __half* half = nullptr;
  const int quad = lane % 4, line = lane / 4, first_step = warp * PAIRS * 2;
  const unsigned zeros = dynamic_shared_memory(), digits = zeros + (1 + warp) * DIGIT_BYTES;
  const unsigned slots = zeros + (1 + WARPS) * DIGIT_BYTES, barriers = slots + SLOTS * HALVES * HALF_BYTES;
  const unsigned finished = barriers + SLOTS * 16;
  const int turns = (ALL - group_x + GROUPS - 1) / GROUPS;
  // A slot has a barrier for what arrives, and one for the warps that are done with it.
  const auto arrived = [&](int turn) { return barriers + turn % SLOTS * 16; };
  const auto slot_at = [&](int turn) { return slots + turn % SLOTS * (HALVES * HALF_BYTES); };
  // Which tiles a slot has.
  SHARED int places[SLOTS];
  const auto load = [&](int turn, int place) {
    const unsigned barrier = arrived(turn);
    places[turn % SLOTS] = place;
    barrier_expect(barrier, HALVES * HALF_BYTES);
    #pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const long from = h * COLUMNS + place * ROWS;
      const unsigned to = slot_at(turn) + h * HALF_BYTES;
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
    for (int turn = 0; lane == 0 && (CLAIMED || turn < turns); turn++) {
      if (turn == EARLY) {
        AWAIT_INPUTS;
        pause_shortly();
      }
      if (turn >= SLOTS) barrier_wait(arrived(turn) + 8, (turn / SLOTS - 1) % 2);
      int place = group_x + turn * GROUPS;
      if (CLAIMED && turn >= SLOTS) {
        // Each group asks once in vain, and the last one to do so leaves it as it was.
        int* next = const_cast<int*>(claims);
        place = SLOTS * GROUPS + atomic_add(next, 1);
        if (place == ALL + GROUPS - 1) *next = 0;
        if (place >= ALL) {
          places[turn % SLOTS] = place;
          barrier_arrive(arrived(turn));
          return;
        }
      }
      load(turn, place);
    }
    return;
  }
  struct alignas(NUMBERS * sizeof(T)) Unit {
    T x[NUMBERS];
  };
  // Of a step behind the end the numbers are zeros. There are 32 units in two steps.
  const auto is_there = [&](int s) { return ROW_STEPS == WARPS * PAIRS * 2 || first_step + s < ROW_STEPS; };
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
  static_assert(!RESIDUAL || (MOST_TURNS <= BLOCK && MOST_TURNS * LINES <= WARPS * 4), "a thread has one number of the residual");
  const int added_to = (group_x + thread_index / ROWS * GROUPS) * ROWS + thread_index % ROWS;
  const T added = residual[RESIDUAL && added_to < COLUMNS ? added_to : 0];
  // Of a span the sum of its numbers, and what 1024 or 64 for each weight adds to a product.
  SHARED float totals[WARPS][PAIRS * 2 * SPANS], offsets[WARPS][PAIRS * 2 * SPANS], squares[WARPS];
  float square = 0, shrunk[PAIRS];
  #pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int of_pair = lane / 16, word = lane % 4, of_quad = lane / 4 % 4;
    float rest[NUMBERS], total = 0, offset = 0, largest = 0;
    for (int j = 0; j < NUMBERS; j++) {
      rest[j] = is_there(i * 2 + of_pair) ? float(own[i].x[j]) : 0;
      square += NORMED ? rest[j] * rest[j] : 0;
      if (NORMED) rest[j] *= float(normed_by[i].x[j]);
      largest = fmaxf(largest, fabsf(rest[j]));
    }
    #pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) largest = fmaxf(largest, SHUFFLE_XOR(largest, mask));
    // So that the largest is between 2^12 and 2^13: of small ones less than 2^-24 is lost.
    const int exponent = min(max(int(__float_as_uint(largest) >> 23), 13), 253);
    const float grown = __uint_as_float(unsigned(266 - exponent) << 23);
    shrunk[i] = __uint_as_float(unsigned(exponent - 12) << 23);
    for (int j = 0; j < NUMBERS; j++) {
      rest[j] *= grown;
      total += rest[j];
      // Of 4 bits the numbers 1, 3, 5 and 7 are 16 times what they say.
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
      // Pairs of a word's halves: with 4 bits 0 and 4, 1 and 5, 2 and 6, 3 and 7; with 8 bits 0 and 2, 1 and 3.
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
  // A lane has a column of the second operand, `line`, where its quad's numbers are of that span; and of a product two columns
  // that are of one span, or of two.
  const int column = SPANS == 4 ? line : line / 2, digit = SPANS == 4 ? 0 : line % 2;
  const bool is_own = column < 2 * SPANS && digit < DIGITS && column % SPANS == quad * SPANS / 4;
  const unsigned digits_at = is_own ? digits + (digit * 8 + column / SPANS * 4 + quad) * 16 : zeros;
  const int made_column = quad * VALUES, of_pair = made_column / SPANS % 2;
  const bool is_made = made_column < 2 * SPANS;
  // Odd rows have their two steps the other way round: banks of shared memory are read by one lane each.
  const int swapped = line % 2, is_second = of_pair ^ swapped;
  const auto step_of = [&](int s) { return min(first_step + (s ^ swapped), ROW_STEPS - 1); };
  float total[PAIRS][VALUES], offset[PAIRS][VALUES];
  int span[PAIRS][VALUES];
  #pragma unroll
  for (int i = 0; i < PAIRS; i++)
    for (int v = 0; v < VALUES; v++) {
      const int at = is_made ? i * 2 * SPANS + made_column + v : 0;
      total[i][v] = is_made ? totals[warp][at] : 0;
      offset[i][v] = is_made ? offsets[warp][at] : 0;
      span[i][v] = min((first_step * SPANS + at) * (STEP / SPANS) / SPAN, ROW_SPANS - 1);
    }
  int completed = 0;
  const auto meet = [&] {
    WARP_BARRIER;
    if (lane == 0) barrier_arrive(finished);
    barrier_wait(finished, completed++ % 2);
  };
  // Sums of the turns that are kept, and where these belong.
  SHARED float others[BLOCK * PARTS][WARPS][8];
  SHARED int kept_places[BLOCK];
  int kept = 0;
  const auto finish = [&] {
    meet();
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
  for (int turn = 0; CLAIMED || turn < turns; turn++) {
    barrier_wait(arrived(turn), turn / SLOTS % 2);
    const int place = places[turn % SLOTS];
    if (place >= ALL) break;
    const auto part_at = [&](int p) { return slot_at(turn) + p % HALVES * HALF_BYTES; };
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
          constexpr unsigned THOUSANDS = 0x64006400;
          unsigned a[PARTS][NUMBERS];
          #pragma unroll
          for (int p = 0; p < PARTS; p++) {
            for (int j = 0; j < NUMBERS; j++) {
              const unsigned loaded = (&w[p][j % 2].x)[word], moved = j < NUMBERS / 2 ? loaded : loaded >> 8;
              a[p][j] = and_or(moved, BITS == 8 ? 0x00ff00ff : j / 2 % 2 ? 0x00f000f0 : 0x000f000f, THOUSANDS);
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
          const float made_of = VALUES == 1 ? low + high : v ? high : low;
          sum[p] += shrunk[i] * (scale * (made_of - offset[i][v]) + bias * total[i][v]);
        }
    }
    if (CLAIMED || turn + SLOTS < turns) {
      WARP_BARRIER;
      if (lane == 0) barrier_arrive(arrived(turn) + 8);
    }
    #pragma unroll
    for (int mask = 1; mask < 4; mask *= 2)
      for (int p = 0; p < PARTS; p++) sum[p] += SHUFFLE_XOR(sum[p], mask);
    if (kept == BLOCK) {
      finish();
      meet();
      kept = 0;
    }
    for (int p = 0; quad == 0 && p < PARTS; p++) others[kept * PARTS + p][warp][line] = sum[p];
    if (thread_index == 0) kept_places[kept] = place;
    kept += 1;
  }
  if (kept > 0) finish();
