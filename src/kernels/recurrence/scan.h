// Names shared by scan.c, scan-chunks.c and scan-tokens.c.

/** Four floats, loaded and stored as one 16-byte access. */
struct alignas(16) Four {
  float x[4];
};

/** Indices into the kernels' input `numbers`. */
enum { NORM_EPS, QUERY_SCALE, KEY_SCALE, STEP_FACTOR, LEAST_STEP, MOST_STEP, OUTPUT_EPS, BETA_FACTOR };

/** Returns softplus(step) = log(1 + e^step), clamped to the limits, in a form in which e^step cannot overflow. */
FUNCTION float step_size(float step, const DEVICE float* numbers) {
  const float softplus = (step > 0 ? step : 0) + LOG1P(EXP(step > 0 ? -step : step));
  const float least = numbers[LEAST_STEP], most = numbers[MOST_STEP];
  return softplus < least ? least : softplus > most ? most : softplus;
}
