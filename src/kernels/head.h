// One head of a token on its way into attention.
#include "layer.h"

/**
 * Normalizes and rotates the head `from` (D) into `head`, D floats of shared memory, by one warp. The barriers
 * are for the whole group: every warp must call this together, each with a `head` of its own.
 */
template <typename T, int D, int ROTARY_DIMS>
FUNCTION void prepare_head(
    const DEVICE T* from, IN_SHARED float* head, const DEVICE float* layer, bool is_normed,
    const DEVICE float* norm, bool is_rotated, int position, int lane) {
  constexpr int ANGLES = (ROTARY_DIMS / 2 + 31) / 32;
  float sines[ANGLES + 1], cosines[ANGLES + 1];
  float squares = 0;
  for (int d = lane; d < D; d += 32) {
    const float x = float(from[d]);
    head[d] = x;
    squares += x * x;
  }
  // While the head is being loaded.
  if (is_rotated) {
    for (int i = 0; i < ANGLES; i++) {
      const int d = i * 32 + lane < ROTARY_DIMS / 2 ? i * 32 + lane : 0;
      SINCOS(float(position) / layer_wavelengths<D>(layer)[d], sines[i], cosines[i]);
    }
  }
  if (is_normed) {
    for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
    const float scale = RSQRT(squares / D + layer[LAYER_NORM_EPS]);
    // Rounded to T, as the unfused operations do.
    for (int d = lane; d < D; d += 32) head[d] = float(T(head[d] * scale * norm[d]));
  }
  BARRIER;
  if (is_rotated) {
    const float magnitude = layer[LAYER_ROPE_MAGNITUDE];
    for (int i = 0; i < ANGLES; i++) {
      const int d = i * 32 + lane;
      if (d >= ROTARY_DIMS / 2) break;
      const float sine = sines[i], cosine = cosines[i];
      const float a = head[d] * magnitude, b = head[d + ROTARY_DIMS / 2] * magnitude;
      head[d] = a * cosine - b * sine;
      head[d + ROTARY_DIMS / 2] = a * sine + b * cosine;
    }
  }
  BARRIER;
}
