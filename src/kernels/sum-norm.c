// Adds what was made to a residual, what a token's experts have made by their shares, and makes the RMS norm of the
// sum, rounded to T as it is kept. A group has a row; a thread has pairs of features.
//
// Inputs: made (rows, EACH, DIMS), shares (rows, EACH), any array without SHARES; residual (rows, DIMS), weight (DIMS),
// numbers: the norm's epsilon at 0.
// Outputs: sums (rows, DIMS), and normed of the same shape.
// Constants: T of 16 bits, EACH, DIMS, SHARES; THREADS of a group.
// Groups: one a row.
  struct alignas(2 * sizeof(T)) Pair {
    T x[2];
  };
  constexpr int PAIRS = DIMS / 2, OWN = (PAIRS + THREADS - 1) / THREADS, WARPS = THREADS / 32;
  const long row = group_x;
  const DEVICE Pair* from = reinterpret_cast<const DEVICE Pair*>(made) + row * EACH * PAIRS;
  const DEVICE Pair* before = reinterpret_cast<const DEVICE Pair*>(residual) + row * PAIRS;
  const DEVICE Pair* factors = reinterpret_cast<const DEVICE Pair*>(weight);
  DEVICE Pair* after = reinterpret_cast<DEVICE Pair*>(sums) + row * PAIRS;
  DEVICE Pair* to = reinterpret_cast<DEVICE Pair*>(normed) + row * PAIRS;
  Pair kept[OWN], factor[OWN];
  float square = 0.0f;
  for (int i = 0; i < OWN; i++) {
    const int at = i * THREADS + thread_index;
    if (at < PAIRS) {
      factor[i] = factors[at];
      const Pair base = before[at];
      float sum[2] = {0.0f, 0.0f};
      for (int k = 0; k < EACH; k++) {
        const Pair part = from[k * PAIRS + at];
        const float share = SHARES ? float(shares[row * EACH + k]) : 1.0f;
        for (int j = 0; j < 2; j++) sum[j] += share * float(part.x[j]);
      }
      for (int j = 0; j < 2; j++) {
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
  const float scale = RSQRT(square / DIMS + numbers[0]);
  for (int i = 0; i < OWN; i++) {
    const int at = i * THREADS + thread_index;
    if (at < PAIRS) {
      for (int j = 0; j < 2; j++)
        kept[i].x[j] = T(float(factor[i].x[j]) * float(T(float(kept[i].x[j]) * scale)));
      to[at] = kept[i];
    }
  }
