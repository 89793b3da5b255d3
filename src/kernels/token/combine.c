// Weighted sum of a token's expert outputs, plus the residual. A thread has two features of a token.
//
// Inputs: made (tokens, EACH, DIMS), the expert outputs; shares (tokens, EACH), their routing weights; residual
// (tokens, DIMS), any array without RESIDUAL.
// Output: sums (tokens, DIMS).
// Template arguments: T, EACH, DIMS, RESIDUAL.
// Grid: (DIMS / 512, tokens) CTAs of 256 threads.
  const int feature = (cta_x * 256 + thread_index) * 2;
  if (feature < DIMS) {
    float sum[2] = {0.0f, 0.0f};
    for (int k = 0; k < EACH; k++) {
      const long row = long(cta_y) * EACH + k;
      const float share = shares[row];
      const DEVICE T* from = made + row * DIMS + feature;
      sum[0] += share * float(from[0]);
      sum[1] += share * float(from[1]);
    }
    const long to = long(cta_y) * DIMS + feature;
    for (int i = 0; i < 2; i++) sums[to + i] = T(RESIDUAL ? float(residual[to + i]) + sum[i] : sum[i]);
  }
