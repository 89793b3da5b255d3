// Decode step of the gated delta rule for many sequences, one token each; CUDA only. It computes the same as scan.c
// with the delta rule, one decay per head and normed outputs. It is bound by the memory bandwidth of reading and
// writing the states: a persistent CTA walks over (sequence, head) items, with one item's state in registers while
// the next two are copied to shared memory by cp.async.
//
// A state row is one value feature with its KEY_DIM key features, distributed over four lanes, every fourth group of
// four. In shared memory odd rows have the two 64-byte halves of each 128 bytes swapped, so that the two rows that
// are read together use different banks.
//
// Inputs, output and template arguments: those of scan.c with RAW and NORM_OUTPUT, without SKIP, BY_FEATURE, ERASES
// and CHUNK; T of 16 bits; all columns and widths multiples of 8, KEY_DIM of 32. WARPS: VALUE_DIM / 8. STAGES of the
// ring buffer. GROUPS: CTAs.
// Grid: (GROUPS, 1, 1) CTAs of WARPS warps, with dynamic shared memory for STAGES states and one token's vectors for
// each.
#include "cuda-instructions.h"
#include "moves.h"
#include "scan.h"
  constexpr int LANES = 4, FOURS = KEY_DIM / 4, OWN = FOURS / LANES, THREADS = 32 * WARPS;
  constexpr int STATE_BYTES = VALUE_DIM * KEY_DIM * 4, KEY_BYTES = KEY_DIM * 2, VALUE_BYTES = VALUE_DIM * 2;
  constexpr int VECTOR_BYTES = 2 * (KEY_BYTES + VALUE_BYTES), KEY_PACKS = KEY_DIM / 8, VALUE_PACKS = VALUE_DIM / 8;
  struct alignas(8) FourOfT {
    T x[4];
  };
  /** A work item: one head of one sequence. */
  struct Item {
    int head, token, from, to;
    float step, beta;
  };
  const int part = lane % LANES, row = warp * 8 + lane / LANES, items = moves[0] * HEADS;
  const long size = long(HEADS) * VALUE_DIM * FOURS;
  // States, written in place. MLX assumes inputs constant, but no other CTA touches this item's state.
  Four* states = reinterpret_cast<Four*>(const_cast<float*>(pool));
  const unsigned memory = dynamic_shared_memory();
  auto state_at = [&](int stage) { return memory + stage * STATE_BYTES; };
  auto vectors_at = [&](int stage) { return memory + STAGES * STATE_BYTES + stage * VECTOR_BYTES; };
  auto place = [&](int value, int four) { return (value * FOURS + (four ^ (value % 2 * 4))) * 16; };
  auto item_of = [&](int index) {
    Item item = {};
    if (index >= items) return item;
    const int* move = move_of(moves, index / HEADS);
    item.head = index % HEADS;
    item.token = move[MOVE_FIRST];
    item.from = move[MOVE_FROM];
    item.to = move[MOVE_TO];
    return item;
  };
  /** Starts to copy an item's state and vectors to shared memory, unless the item is past the end. */
  auto fetch = [&](Item& item, bool is_inside, int stage) {
    if (is_inside && item.from >= 0) {
      const Four* from = states + item.from * size + long(item.head) * VALUE_DIM * FOURS;
      #pragma unroll
      for (int i = thread_index; i < VALUE_DIM * FOURS; i += THREADS)
        cp_async(state_at(stage) + place(i / FOURS, i % FOURS), from + i, 16);
    }
    if (is_inside) {
      const T* of_token = x + long(item.token) * WIDTH;
      const T* of_gates = raw + long(item.token) * RAW_WIDTH;
      const int key_head = item.head / (HEADS / KEY_HEADS);
      for (int i = thread_index; i < 2 * (KEY_PACKS + VALUE_PACKS); i += THREADS) {
        const T* from = i < KEY_PACKS           ? of_token + QUERIES + key_head * KEY_DIM + i * 8
            : i < 2 * KEY_PACKS                 ? of_token + KEYS + key_head * KEY_DIM + (i - KEY_PACKS) * 8
            : i < 2 * KEY_PACKS + VALUE_PACKS   ? of_token + VALUES + item.head * VALUE_DIM + (i - 2 * KEY_PACKS) * 8
            : of_gates + GATES + item.head * VALUE_DIM + (i - 2 * KEY_PACKS - VALUE_PACKS) * 8;
        cp_async(vectors_at(stage) + i * 16, from, 16);
      }
      item.step = float(of_gates[STEPS + item.head]);
      if (HAS_BETAS) item.beta = float(of_gates[BETAS + item.head]);
    }
    cp_async_commit();
  };
  SHARED float sums[VALUE_DIM];
  const int begin = cta_x;
  Item item = item_of(begin), next = item_of(begin + GROUPS), second = item_of(begin + 2 * GROUPS);
  fetch(item, begin < items, 0);
  fetch(next, begin + GROUPS < items, 1);
  #pragma unroll 1
  for (int index = begin, round = 0; index < items; index += GROUPS, round++) {
    const int stage = round % STAGES;
    // Waits until all threads' copies of this item are visible; the previous item's stage may then be overwritten.
    cp_async_wait<1>();
    BARRIER;
    fetch(second, index + 2 * GROUPS < items, (round + 2) % STAGES);
    const Item third = item_of(index + 3 * GROUPS);
    Four state[OWN];
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
      const unsigned at = state_at(stage) + place(row, part + i * LANES);
      state[i] = item.from >= 0 ? *static_cast<const Four*>(shared_pointer(at)) : Four{};
    }
    const float step = item.step * numbers[STEP_FACTOR] + float(bias[item.head]);
    const float taken = step_size(step, numbers), decay = EXP(float(rate[item.head]) * taken);
    const float beta = HAS_BETAS ? numbers[BETA_FACTOR] / (1.0f + EXP(-item.beta)) : taken;
    const FourOfT* queries = static_cast<const FourOfT*>(shared_pointer(vectors_at(stage)));
    const FourOfT* keys = queries + FOURS;
    const T* values = reinterpret_cast<const T*>(keys + FOURS);
    float found = 0, query_squares = 0, key_squares = 0;
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
      const FourOfT key = keys[part + i * LANES], query = queries[part + i * LANES];
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        const float k = float(key.x[j]), q = float(query.x[j]);
        found += state[i].x[j] * k;
        key_squares += k * k;
        query_squares += q * q;
      }
    }
    #pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) {
      found += SHUFFLE_XOR(found, mask);
      key_squares += SHUFFLE_XOR(key_squares, mask);
      query_squares += SHUFFLE_XOR(query_squares, mask);
    }
    const float eps = numbers[NORM_EPS];
    const float key_scale = NORMED ? RSQRT(key_squares / KEY_DIM + eps) * numbers[KEY_SCALE] : 1;
    const float query_scale = NORMED ? RSQRT(query_squares / KEY_DIM + eps) * numbers[QUERY_SCALE] : 1;
    const float added = (float(values[row]) - found * key_scale * decay) * beta * key_scale;
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < OWN; i++) {
      const FourOfT key = keys[part + i * LANES], query = queries[part + i * LANES];
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        state[i].x[j] = state[i].x[j] * decay + added * float(key.x[j]);
        sum += state[i].x[j] * float(query.x[j]);
      }
    }
    sum += SHUFFLE_XOR(sum, 1);
    sum += SHUFFLE_XOR(sum, 2);
    if (part == 0) sums[row] = sum * query_scale;
    Four* to = states + item.to * size + (long(item.head) * VALUE_DIM + row) * FOURS + part;
    #pragma unroll
    for (int i = 0; i < OWN; i++) to[i * LANES] = state[i];
    BARRIER;
    // One warp norms and writes the outputs while the others continue to the next barrier.
    if (warp == round % WARPS) {
      const T* gates = static_cast<const T*>(shared_pointer(vectors_at(stage) + 2 * KEY_BYTES + VALUE_BYTES));
      float squares = 0;
      for (int d = lane; d < VALUE_DIM; d += 32) squares += sums[d] * sums[d];
      for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
      const float scale = RSQRT(squares / VALUE_DIM + numbers[OUTPUT_EPS]);
      for (int d = lane; d < VALUE_DIM; d += 32) {
        const float gate = float(gates[d]), normed = sums[d] * scale * float(weight[d]);
        read[(long(item.token) * HEADS + item.head) * VALUE_DIM + d] = T(normed * gate / (1.0f + EXP(-gate)));
      }
    }
    item = next;
    next = second;
    second = third;
  }
  cp_async_wait<0>();
