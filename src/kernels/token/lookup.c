// Embedding lookup: copies the matrix rows of tokens; CUDA only. A CTA copies EACH rows; a thread copies one pack of
// 16 bytes of each row at a time.
//
// Inputs: matrix (ROWS, DIMS) of T; tokens (count) uint32; ids beyond the matrix get its last row.
// Output: found (count, DIMS).
// Template arguments: T, ROWS, DIMS, such that a row is a whole number of packs; EACH tokens per CTA; THREADS per
// CTA.
// Grid: count / EACH CTAs of THREADS threads.
  constexpr int PACKS = DIMS * sizeof(T) / sizeof(uint4);
  const long first = long(cta_x) * EACH;
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
