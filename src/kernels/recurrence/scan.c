// Linear recurrence (gated delta rule, Mamba 2, RWKV 7; see `Scan` in recurrence.ts): passes the tokens of each
// sequence through its state, one by one. A state row is one value feature with its KEY_DIM key features, distributed
// over four lanes, which keep it in registers from the first token to the last. A warp has eight rows. Queries, keys
// and decays, which all rows of a head share, are staged in shared memory, CHUNK tokens at a time.
//
// Inputs: x (tokens, WIDTH), with queries, keys and values at the columns QUERIES, KEYS, VALUES; pool (slots, HEADS,
// VALUE_DIM, KEY_DIM), written in place; moves (packMoves); numbers, indexed as in scan.h; skip (HEADS) with SKIP.
// With RAW: raw (tokens, RAW_WIDTH), with step sizes and betas at the columns STEPS and BETAS; rate (HEADS, or HEADS
// * KEY_DIM with BY_FEATURE); bias (HEADS); with NORM_OUTPUT also gates at column GATES of raw, and weight
// (VALUE_DIM). Without RAW: decays (tokens, HEADS, or HEADS * KEY_DIM with BY_FEATURE) and betas (tokens, HEADS).
// Unused inputs may be any array.
// Output: read (tokens, HEADS * VALUE_DIM).
// Template arguments: T, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM, WIDTH, QUERIES, KEYS, VALUES, NORMED, DELTA_RULE,
// SKIP, BY_FEATURE, ERASES (RWKV 7: vectors at the columns FINDS and PUTS), RAW, RAW_WIDTH, STEPS, HAS_BETAS, BETAS,
// NORM_OUTPUT, GATES; WARPS per CTA, which must have all rows of a head with NORM_OUTPUT; CHUNK.
// Grid: (VALUE_DIM / (8 WARPS), HEADS, sequences) CTAs of WARPS warps.
#include "moves.h"
#include "scan.h"
  constexpr int LANES = 4, ROWS = 8 * WARPS, FOURS = KEY_DIM / 4, OWN = FOURS / LANES;
  const int head = cta_y, key_head = head / (HEADS / KEY_HEADS);
  const int part = lane % LANES, row = warp * 8 + lane / LANES, value = cta_x * ROWS + row;
  const bool is_own = VALUE_DIM % ROWS == 0 || value < VALUE_DIM;
  const DEVICE int* move = move_of(moves, cta_z);
  const int first = move[MOVE_FIRST], count = move[MOVE_COUNT], from = move[MOVE_FROM];
  const long size = long(HEADS) * VALUE_DIM * FOURS;
  // A lane has every fourth group of four features, so that the four lanes of a row access neighbouring addresses.
  // MLX assumes that inputs are constant, but no other warp touches this row in this launch.
  DEVICE Four* states = reinterpret_cast<DEVICE Four*>(const_cast<DEVICE float*>(pool));
  const int own_state = (head * VALUE_DIM + value) * FOURS + part;
  const bool has_state = is_own && from >= 0;
  Four state[OWN];
  for (int i = 0; i < OWN; i++) {
    if (has_state) state[i] = states[from * size + own_state + i * LANES];
    for (int j = 0; !has_state && j < 4; j++) state[i].x[j] = 0;
  }
  SHARED Four queries[CHUNK * FOURS], keys[CHUNK * FOURS], feature_decays[BY_FEATURE ? CHUNK * FOURS : 1];
  SHARED Four finds[ERASES ? CHUNK * FOURS : 1], puts[ERASES ? CHUNK * FOURS : 1];
  SHARED float head_decays[CHUNK], head_betas[CHUNK], values[CHUNK * ROWS];
  SHARED T gates[NORM_OUTPUT ? CHUNK * ROWS : 1];
  for (int start = 0; start < count; start += CHUNK) {
    const int tokens = count - start < CHUNK ? count - start : CHUNK;
    BARRIER;
    // Each warp stages one query or key at a time. The loops are not unrolled, because the state needs the registers.
    #pragma unroll 1
    for (int i = warp; i < 2 * tokens; i += WARPS) {
      const bool is_key = i >= tokens;
      const int t = is_key ? i - tokens : i;
      const DEVICE T* head_from =
          x + long(first + start + t) * WIDTH + (is_key ? KEYS : QUERIES) + key_head * KEY_DIM;
      IN_SHARED float* head_to = reinterpret_cast<IN_SHARED float*>((is_key ? keys : queries) + t * FOURS);
      float squares = 0;
      for (int d = lane; d < KEY_DIM; d += 32) {
        const float each = float(head_from[d]);
        squares += each * each;
        head_to[d] = each;
      }
      if (NORMED) {
        for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
        const float scale = RSQRT(squares / KEY_DIM + numbers[NORM_EPS]) * numbers[is_key ? KEY_SCALE : QUERY_SCALE];
        for (int d = lane; d < KEY_DIM; d += 32) head_to[d] *= scale;
      }
    }
    #pragma unroll 1
    for (int i = warp; ERASES && i < 2 * tokens; i += WARPS) {
      const bool is_put = i >= tokens;
      const int t = is_put ? i - tokens : i;
      const DEVICE T* head_from =
          x + long(first + start + t) * WIDTH + (is_put ? PUTS : FINDS) + key_head * KEY_DIM;
      IN_SHARED float* head_to = reinterpret_cast<IN_SHARED float*>((is_put ? puts : finds) + t * FOURS);
      for (int d = lane; d < KEY_DIM; d += 32) head_to[d] = float(head_from[d]);
    }
    #pragma unroll 1
    for (int i = thread_index; i < tokens * ROWS; i += 32 * WARPS) {
      const int own = cta_x * ROWS + i % ROWS, column = head * VALUE_DIM + own;
      const long token = first + start + i / ROWS;
      values[i] = own < VALUE_DIM ? float(x[token * WIDTH + VALUES + column]) : 0.0f;
      if (NORM_OUTPUT && own < VALUE_DIM) gates[i] = T(raw[token * RAW_WIDTH + GATES + column]);
    }
    #pragma unroll 1
    for (int i = thread_index; i < tokens; i += 32 * WARPS) {
      const long token = first + start + i;
      if (RAW) {
        const float step = float(raw[token * RAW_WIDTH + STEPS + head]) * numbers[STEP_FACTOR] + float(bias[head]);
        const float taken = step_size(step, numbers);
        head_decays[i] = BY_FEATURE ? taken : EXP(float(rate[head]) * taken);
        const float open = 1.0f / (1.0f + EXP(-float(raw[token * RAW_WIDTH + BETAS + head])));
        head_betas[i] = HAS_BETAS ? open * numbers[BETA_FACTOR] : taken;
      } else {
        head_betas[i] = float(betas[token * HEADS + head]);
        if (!BY_FEATURE) head_decays[i] = float(decays[token * HEADS + head]);
      }
    }
    // Waits for the step sizes that other threads wrote to head_decays, from which decays per feature follow.
    if (RAW && BY_FEATURE) BARRIER;
    for (int i = thread_index; BY_FEATURE && i < tokens * KEY_DIM; i += 32 * WARPS) {
      const long token = first + start + i / KEY_DIM;
      const int feature = head * KEY_DIM + i % KEY_DIM;
      feature_decays[i / 4].x[i % 4] =
          RAW ? EXP(float(rate[feature]) * head_decays[i / KEY_DIM]) : float(decays[token * HEADS * KEY_DIM + feature]);
    }
    BARRIER;
    #pragma unroll 1
    for (int t = 0; t < tokens; t++) {
      const int at = t * FOURS + part;
      float found = 0;
      for (int i = 0; i < OWN; i++) {
        const Four key = keys[at + i * LANES];
        for (int j = 0; j < 4; j++) {
          if (BY_FEATURE) state[i].x[j] *= feature_decays[at + i * LANES].x[j];
          if (DELTA_RULE) found += state[i].x[j] * key.x[j];
          if (ERASES) found += state[i].x[j] * finds[at + i * LANES].x[j];
        }
      }
      if (DELTA_RULE || ERASES) {
        found += SHUFFLE_XOR(found, 1);
        found += SHUFFLE_XOR(found, 2);
      }
      const float own = values[t * ROWS + row];
      const float decay = BY_FEATURE ? 1.0f : head_decays[t];
      const float added = (ERASES ? own : own - found * decay) * head_betas[t];
      float sum = 0;
      // Lets all lanes read this row's value before it is overwritten, and makes the compiler
      // reload the keys, which do not fit in registers.
      WARP_BARRIER;
      for (int i = 0; i < OWN; i++) {
        const Four key = keys[at + i * LANES], query = queries[at + i * LANES];
        for (int j = 0; j < 4; j++) {
          state[i].x[j] = state[i].x[j] * decay + added * key.x[j];
          if (ERASES) state[i].x[j] -= found * puts[at + i * LANES].x[j];
          sum += state[i].x[j] * query.x[j];
        }
      }
      sum += SHUFFLE_XOR(sum, 1);
      sum += SHUFFLE_XOR(sum, 2);
      if (SKIP) sum += float(skip[head]) * own;
      if (part == 0) {
        if (NORM_OUTPUT) values[t * ROWS + row] = sum;
        else if (is_own) read[(long(first + start + t) * HEADS + head) * VALUE_DIM + value] = T(sum);
      }
    }
    if (NORM_OUTPUT) {
      BARRIER;
      #pragma unroll 1
      for (int t = warp; t < tokens; t += WARPS) {
        float squares = 0;
        for (int d = lane; d < VALUE_DIM; d += 32) squares += values[t * ROWS + d] * values[t * ROWS + d];
        for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
        const float scale = RSQRT(squares / VALUE_DIM + numbers[OUTPUT_EPS]);
        for (int d = lane; d < VALUE_DIM; d += 32) {
          const float gate = float(gates[t * ROWS + d]);
          const float normed = values[t * ROWS + d] * scale * float(weight[d]);
          read[(long(first + start + t) * HEADS + head) * VALUE_DIM + d] = T(normed * gate / (1.0f + EXP(-gate)));
        }
      }
    }
  }
  const int to = move_of(moves, cta_z)[MOVE_TO];
  for (int i = 0; is_own && i < OWN; i++) states[to * size + own_state + i * LANES] = state[i];
