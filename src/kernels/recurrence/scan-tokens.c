// Passes a token of each of many sequences through their states; CUDA only. It computes what scan.c does with the delta
// rule, a decay per head and the norm of its outputs, and takes as long as it takes to read the states and write them
// back: a group goes from head to head, and what it needs for the next two is on its way to shared memory while it
// has one in registers.
//
// A row of the state has a value feature, and KEY_DIM key features that four lanes share, every fourth group of four.
// In shared memory, rows with odd numbers have halves of 128 bytes in turned order: so the two that are read at once
// are in banks of their own.
//
// Inputs, output and constants: those of scan.c with RAW and NORM_OUTPUT, but SKIP, BY_FEATURE, ERASES and CHUNK; T of
// 16 bits, all columns and widths multiples of 8, KEY_DIM of 32. WARPS: VALUE_DIM / 8; GROUPS.
// Groups: (GROUPS, 1, 1), with dynamic shared memory for STAGES states and as many times the vectors of a token.
#include "cuda-instructions.h"
#include "moves.h"
#include "scan.h"
  constexpr int LANES = 4, FOURS = KEY_DIM / 4, OWN = FOURS / LANES, THREADS = 32 * WARPS;
  constexpr int STATE_BYTES = VALUE_DIM * KEY_DIM * 4, KEY_BYTES = KEY_DIM * 2, VALUE_BYTES = VALUE_DIM * 2;
  constexpr int VECTOR_BYTES = 2 * (KEY_BYTES + VALUE_BYTES), KEY_PACKS = KEY_DIM / 8, VALUE_PACKS = VALUE_DIM / 8;
  struct alignas(8) FourOfT {
    T x[4];
  };
  /** A head of a sequence. */
  struct Item {
    int head, token, from, to;
    float step, beta;
  };
  const int part = lane % LANES, row = warp * 8 + lane / LANES, items = moves[0] * HEADS;
  const long size = long(HEADS) * VALUE_DIM * FOURS;
  // MLX takes inputs for constant; this row is nobody else's before the next launch.
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
  /** Starts to bring what an item needs. One behind the last needs nothing. */
  auto bring = [&](Item& item, bool is_there, int stage) {
    if (is_there && item.from >= 0) {
      const Four* from = states + item.from * size + long(item.head) * VALUE_DIM * FOURS;
      #pragma unroll
      for (int i = thread_index; i < VALUE_DIM * FOURS; i += THREADS)
        cp_async(state_at(stage) + place(i / FOURS, i % FOURS), from + i, 16);
    }
    if (is_there) {
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
  const int begin = group_x;
  Item item = item_of(begin), next = item_of(begin + GROUPS), after = item_of(begin + 2 * GROUPS);
  bring(item, begin < items, 0);
  bring(next, begin + GROUPS < items, 1);
  #pragma unroll 1
  for (int index = begin, round = 0; index < items; index += GROUPS, round++) {
    const int stage = round % STAGES;
    cp_async_wait<1>();
    // What all threads have brought is there, and what the item before was in may be written to.
    BARRIER;
    bring(after, index + 2 * GROUPS < items, (round + 2) % STAGES);
    const Item behind = item_of(index + 3 * GROUPS);
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
    // One warp norms the outputs. The others go on, to the next barrier.
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
    next = after;
    after = behind;
  }
  cp_async_wait<0>();
