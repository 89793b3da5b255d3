// What the scans of prompts and of single tokens have in common.

/** Loaded and stored at once. */
struct alignas(16) Four {
  float x[4];
};

/** Where in `numbers` each is. */
enum { NORM_EPS, QUERY_SCALE, KEY_SCALE, STEP_FACTOR, LEAST_STEP, MOST_STEP, OUTPUT_EPS, BETA_FACTOR };

/** log(1 + e^step) within the limits; e^step may be too large for a float. */
FUNCTION float step_size(float step, const DEVICE float* numbers) {
  const float softplus = (step > 0 ? step : 0) + LOG1P(EXP(step > 0 ? -step : step));
  const float least = numbers[LEAST_STEP], most = numbers[MOST_STEP];
  return softplus < least ? least : softplus > most ? most : softplus;
}
