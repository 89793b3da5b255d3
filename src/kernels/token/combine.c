// Adds up what a token's experts have made, each by its share. A thread has two features of a token.
//
// Inputs: made (tokens, EACH, DIMS), shares (tokens, EACH), residual (tokens, DIMS), any array without RESIDUAL.
// Output: sums (tokens, DIMS).
// Constants: T, EACH, DIMS, RESIDUAL.
// Groups: (DIMS / 512, tokens) of 256 threads.
  const int feature = (group_x * 256 + thread_index) * 2;
  if (feature < DIMS) {
    float sum[2] = {0.0f, 0.0f};
    for (int k = 0; k < EACH; k++) {
      const long row = long(group_y) * EACH + k;
      const float share = shares[row];
      const DEVICE T* from = made + row * DIMS + feature;
      sum[0] += share * float(from[0]);
      sum[1] += share * float(from[1]);
    }
    const long to = long(group_y) * DIMS + feature;
    for (int i = 0; i < 2; i++) sums[to + i] = T(RESIDUAL ? float(residual[to + i]) + sum[i] : sum[i]);
  }
