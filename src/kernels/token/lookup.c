// The rows of a matrix that tokens have; CUDA only. A thread copies packs of 16 bytes, one of each of its group's rows at once.
//
// Inputs: matrix (ROWS, DIMS) of T, tokens (count) uint32, which have the last row where there is none for them.
// Output: found (count, DIMS).
// Constants: T, ROWS, DIMS: a row is whole packs; EACH tokens of a group, THREADS of it.
// Groups: count / EACH.
  constexpr int PACKS = DIMS * sizeof(T) / sizeof(uint4);
  const long first = long(group_x) * EACH;
  const uint4* from = reinterpret_cast<const uint4*>(matrix);
  uint4* to = reinterpret_cast<uint4*>(found) + first * PACKS;
  AWAIT_INPUTS;
  long rows[EACH];
  #pragma unroll
  for (int i = 0; i < EACH; i++) {
    const unsigned token = tokens[first + i];
    rows[i] = token < ROWS ? token : ROWS - 1;
  }
  for (int at = thread_index; at < PACKS; at += THREADS) {
    uint4 packs[EACH];
    #pragma unroll
    for (int i = 0; i < EACH; i++) packs[i] = from[rows[i] * PACKS + at];
    #pragma unroll
    for (int i = 0; i < EACH; i++) to[i * PACKS + at] = packs[i];
  }
