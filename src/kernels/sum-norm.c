// Adds what was made to a residual, what a token's experts have made by their shares, and makes the RMS norm of the
// sum, rounded to T as it is kept. A group has a row; a thread has packs of WIDE features.
//
// Inputs: made (rows, EACH, DIMS), shares (rows, EACH), any array without SHARES; residual (rows, DIMS), weight (DIMS),
// numbers: the norm's epsilon at 0.
// Outputs: sums (rows, DIMS), and normed of the same shape.
// Constants: T of 16 bits, EACH, DIMS, SHARES; WIDE, THREADS of a group.
// Groups: one a row.
  struct alignas(WIDE * sizeof(T)) Pack {
    T x[WIDE];
  };
  constexpr int PACKS = DIMS / WIDE, OWN = (PACKS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
  const float epsilon = numbers[0];
  AWAIT_INPUTS;
  const long row = group_x;
  const DEVICE Pack* from = reinterpret_cast<const DEVICE Pack*>(made) + row * EACH * PACKS;
  const DEVICE Pack* before = reinterpret_cast<const DEVICE Pack*>(residual) + row * PACKS;
  const DEVICE Pack* factors = reinterpret_cast<const DEVICE Pack*>(weight);
  DEVICE Pack* after = reinterpret_cast<DEVICE Pack*>(sums) + row * PACKS;
  DEVICE Pack* to = reinterpret_cast<DEVICE Pack*>(normed) + row * PACKS;
  Pack kept[OWN], factor[OWN];
  float square = 0.0f;
  for (int i = 0; i < OWN; i++) {
    const int at = i * THREADS + thread_index;
    if (at < PACKS) {
      factor[i] = factors[at];
      const Pack base = before[at];
      float sum[WIDE] = {};
      for (int k = 0; k < EACH; k++) {
        const Pack part = from[k * PACKS + at];
        const float share = SHARES ? float(shares[row * EACH + k]) : 1.0f;
        for (int j = 0; j < WIDE; j++) sum[j] += share * float(part.x[j]);
      }
      for (int j = 0; j < WIDE; j++) {
        kept[i].x[j] = T(float(base.x[j]) + sum[j]);
        square += float(kept[i].x[j]) * float(kept[i].x[j]);
      }
      after[at] = kept[i];
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
