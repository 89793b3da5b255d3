// Passes the tokens of each sequence through its state, as recurrence.ts says. A row of the state has a value feature,
// and KEY_DIM key features that four lanes share, in registers from the first token to the last. A warp has eight
// rows; what all rows of a head read of a token is brought to shared memory, for some tokens at a time.
//
// Inputs: x (tokens, WIDTH) with queries, keys and values at these columns, decays (tokens, HEADS, or HEADS * KEY_DIM
// with BY_FEATURE), betas (tokens, HEADS), pool (slots, HEADS, VALUE_DIM, KEY_DIM), which is written to, moves
// (packMoves), and norm: eps, and the scales of queries and keys.
// Output: read (tokens, HEADS * VALUE_DIM).
// Constants: T, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM, WIDTH, QUERIES, KEYS, VALUES, NORMED, DELTA_RULE, BY_FEATURE;
// WARPS of a group; CHUNK, the tokens in shared memory.
// Groups: (VALUE_DIM / (8 WARPS), HEADS, moves).
#include "moves.h"
  constexpr int LANES = 4, ROWS = 8 * WARPS, OWN = KEY_DIM / LANES;
  const int head = group_y, key_head = head / (HEADS / KEY_HEADS);
  const int part = lane % LANES, value = group_x * ROWS + warp * 8 + lane / LANES;
  const bool is_own = value < VALUE_DIM;
  const DEVICE int* move = move_of(moves, group_z);
  const int first = move[MOVE_FIRST], count = move[MOVE_COUNT], from = move[MOVE_FROM];
  const long row = (long(head) * VALUE_DIM + (is_own ? value : 0)) * KEY_DIM;
  const long size = long(HEADS) * VALUE_DIM * KEY_DIM;
  // Every fourth group of four, so that lanes side by side read side by side.
  float state[OWN];
  for (int i = 0; i < OWN; i++) {
    const int feature = (i / 4 * LANES + part) * 4 + i % 4;
    state[i] = from >= 0 ? pool[from * size + row + feature] : 0.0f;
  }
  SHARED float queries[CHUNK * KEY_DIM], keys[CHUNK * KEY_DIM];
  SHARED float all_decays[CHUNK * (BY_FEATURE ? KEY_DIM : 1)], all_betas[CHUNK];
  SHARED float values[CHUNK * ROWS];
  for (int start = 0; start < count; start += CHUNK) {
    const int tokens = count - start < CHUNK ? count - start : CHUNK;
    BARRIER;
    // A warp brings a query or a key at a time.
    for (int i = warp; i < 2 * tokens; i += WARPS) {
      const bool is_key = i >= tokens;
      const int t = is_key ? i - tokens : i;
      const DEVICE T* head_from =
          x + long(first + start + t) * WIDTH + (is_key ? KEYS : QUERIES) + key_head * KEY_DIM;
      IN_SHARED float* head_to = (is_key ? keys : queries) + t * KEY_DIM;
      float squares = 0;
      for (int d = lane; d < KEY_DIM; d += 32) {
        const float each = float(head_from[d]);
        squares += each * each;
        head_to[d] = each;
      }
      if (NORMED) {
        for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
        const float scale = RSQRT(squares / KEY_DIM + norm[0]) * norm[is_key ? 2 : 1];
        for (int d = lane; d < KEY_DIM; d += 32) head_to[d] *= scale;
      }
    }
    for (int i = thread_index; i < tokens * ROWS; i += 32 * WARPS) {
      const int own = group_x * ROWS + i % ROWS;
      const DEVICE T* token_from = x + long(first + start + i / ROWS) * WIDTH + VALUES;
      values[i] = own < VALUE_DIM ? float(token_from[head * VALUE_DIM + own]) : 0.0f;
    }
    for (int i = thread_index; i < tokens; i += 32 * WARPS) {
      all_betas[i] = betas[long(first + start + i) * HEADS + head];
      if (!BY_FEATURE) all_decays[i] = decays[long(first + start + i) * HEADS + head];
    }
    for (int i = thread_index; BY_FEATURE && i < tokens * KEY_DIM; i += 32 * WARPS) {
      const long token = first + start + i / KEY_DIM;
      all_decays[i] = decays[(token * HEADS + head) * KEY_DIM + i % KEY_DIM];
    }
    BARRIER;
    for (int t = 0; t < tokens; t++) {
      const IN_SHARED float* key = keys + t * KEY_DIM + 4 * part;
      const IN_SHARED float* query = queries + t * KEY_DIM + 4 * part;
      const IN_SHARED float* decay = all_decays + (BY_FEATURE ? t * KEY_DIM + 4 * part : t);
      float found = 0;
      for (int i = 0; i < OWN; i++) {
        const int feature = i / 4 * 4 * LANES + i % 4;
        state[i] *= decay[BY_FEATURE ? feature : 0];
        if (DELTA_RULE) found += state[i] * key[feature];
      }
      if (DELTA_RULE) {
        found += SHUFFLE_XOR(found, 1);
        found += SHUFFLE_XOR(found, 2);
      }
      const float added = (values[t * ROWS + warp * 8 + lane / LANES] - found) * all_betas[t];
      float sum = 0;
      for (int i = 0; i < OWN; i++) {
        const int feature = i / 4 * 4 * LANES + i % 4;
        state[i] += added * key[feature];
        sum += state[i] * query[feature];
      }
      sum += SHUFFLE_XOR(sum, 1);
      sum += SHUFFLE_XOR(sum, 2);
      if (is_own && part == 0) read[(long(first + start + t) * HEADS + head) * VALUE_DIM + value] = T(sum);
    }
  }
  if (is_own) {
    // MLX takes inputs for constant; this row is nobody else's before the next launch.
    DEVICE float* to = const_cast<DEVICE float*>(pool) + move[MOVE_TO] * size + row;
    for (int i = 0; i < OWN; i++) to[(i / 4 * LANES + part) * 4 + i % 4] = state[i];
  }
