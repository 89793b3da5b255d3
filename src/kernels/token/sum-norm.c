// Residual add and RMSNorm in one launch: adds an output (or a token's expert outputs, weighted) to the residual and
// computes the RMSNorm of the sum, which is rounded to T first. If ALONE is defined there is no add, only the norm.
// One CTA per row; a thread has packs of WIDE features.
//
// Inputs: made (rows, EACH, DIMS), the outputs to add; shares (rows, EACH), routing weights, any array without
// SHARES; residual (rows, DIMS); weight (DIMS); numbers: the norm's epsilon at 0. With ALONE only the last three.
// Outputs: sums (rows, DIMS) and normed (rows, DIMS). With ALONE only normed.
// Template arguments: T of 16 bits, DIMS; EACH and SHARES unless ALONE; WIDE, THREADS per CTA.
// Grid: rows CTAs of THREADS threads.
  struct alignas(WIDE * sizeof(T)) Pack {
    T x[WIDE];
  };
  constexpr int PACKS = DIMS / WIDE, OWN = (PACKS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
  const float epsilon = numbers[0];
  AWAIT_INPUTS;
  const long row = cta_x;
  const DEVICE Pack* before = reinterpret_cast<const DEVICE Pack*>(residual) + row * PACKS;
  const DEVICE Pack* factors = reinterpret_cast<const DEVICE Pack*>(weight);
  DEVICE Pack* to = reinterpret_cast<DEVICE Pack*>(normed) + row * PACKS;
#ifdef ALONE
  // Checks the alignment, because a single row may be a slice of a longer one, at any offset.
  const bool is_aligned = reinterpret_cast<unsigned long>(residual) % sizeof(Pack) == 0;
#else
  const DEVICE Pack* from = reinterpret_cast<const DEVICE Pack*>(made) + row * EACH * PACKS;
  DEVICE Pack* after = reinterpret_cast<DEVICE Pack*>(sums) + row * PACKS;
#endif
  Pack kept[OWN], factor[OWN];
  float square = 0.0f;
  for (int i = 0; i < OWN; i++) {
    const int at = i * THREADS + thread_index;
    if (at < PACKS) {
      factor[i] = factors[at];
#ifdef ALONE
      if (is_aligned) kept[i] = before[at];
      else for (int j = 0; j < WIDE; j++) kept[i].x[j] = residual[row * DIMS + at * WIDE + j];
#else
      const Pack base = before[at];
      float sum[WIDE] = {};
      for (int k = 0; k < EACH; k++) {
        const Pack part = from[k * PACKS + at];
        const float share = SHARES ? float(shares[row * EACH + k]) : 1.0f;
        for (int j = 0; j < WIDE; j++) sum[j] += share * float(part.x[j]);
      }
      for (int j = 0; j < WIDE; j++) kept[i].x[j] = T(float(base.x[j]) + sum[j]);
      after[at] = kept[i];
#endif
      for (int j = 0; j < WIDE; j++) square += float(kept[i].x[j]) * float(kept[i].x[j]);
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) square += SHUFFLE_XOR(square, mask);
  SHARED float squares[WARPS];
  if (lane == 0) squares[warp] = square;
  BARRIER;
  square = 0.0f;
  for (int i = 0; i < WARPS; i++) square += squares[i];
  const float scale = RSQRT(square / DIMS + epsilon);
  for (int i = 0; i < OWN; i++) {
    const int at = i * THREADS + thread_index;
    if (at < PACKS) {
      for (int j = 0; j < WIDE; j++)
        kept[i].x[j] = T(float(factor[i].x[j]) * float(T(float(kept[i].x[j]) * scale)));
      to[at] = kept[i];
    }
  }
