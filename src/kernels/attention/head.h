// Prepares one head of a token for attention (RMSNorm, then RoPE), one warp per head. Angles and norm weights are the
// same for all heads, so separate functions load them once for several heads.
#include "layer.h"

/** RoPE sines and cosines of a position. Lane i holds them for feature pairs i, i + 32, ... */
template <int ROTARY_DIMS>
struct HeadAngles {
  enum { COUNT = (ROTARY_DIMS / 2 + 31) / 32 };
  float sines[COUNT + 1], cosines[COUNT + 1], magnitude;
};

template <int ROTARY_DIMS>
FUNCTION HeadAngles<ROTARY_DIMS> load_angles(const PRIVATE LayerRope& rope, int position, int lane) {
  HeadAngles<ROTARY_DIMS> angles;
  angles.magnitude = rope.magnitude;
  for (int i = 0; i < HeadAngles<ROTARY_DIMS>::COUNT; i++) {
    const int d = i * 32 + lane < ROTARY_DIMS / 2 ? i * 32 + lane : 0;
    SINCOS(float(position) / rope.wavelengths[d], angles.sines[i], angles.cosines[i]);
  }
  return angles;
}

/** RMSNorm weights of a head. Lane i holds them for features i, i + 32, ... */
template <int D>
struct HeadNorm {
  enum { COUNT = (D + 31) / 32 };
  float weights[COUNT], epsilon;
};

template <int D>
FUNCTION HeadNorm<D> load_norm(const DEVICE float* layer, const DEVICE float* weights, int lane) {
  HeadNorm<D> norm;
  norm.epsilon = layer[LAYER_NORM_EPS];
  for (int i = 0; i < HeadNorm<D>::COUNT; i++) norm.weights[i] = weights[i * 32 + lane < D ? i * 32 + lane : 0];
  return norm;
}

/** Applies RMSNorm and RoPE to the head `from` (D) and writes it to `head`, D floats of this warp's shared memory. */
template <typename T, int D, int ROTARY_DIMS>
FUNCTION void prepare_head(
    const DEVICE T* from, IN_SHARED float* head, bool is_normed, const PRIVATE HeadNorm<D>& norm, bool is_rotated,
    const PRIVATE HeadAngles<ROTARY_DIMS>& angles, int lane) {
  constexpr int COUNT = HeadNorm<D>::COUNT;
  float x[COUNT], squares = 0;
  for (int i = 0; i < COUNT; i++) {
    x[i] = i * 32 + lane < D ? float(from[i * 32 + lane]) : 0;
    squares += x[i] * x[i];
  }
  if (is_normed) {
    for (int mask = 16; mask > 0; mask /= 2) squares += SHUFFLE_XOR(squares, mask);
    const float scale = RSQRT(squares / D + norm.epsilon);
    // Rounds the normed features to T, as unfused operations would.
    for (int i = 0; i < COUNT; i++) x[i] = float(T(x[i] * scale * norm.weights[i]));
  }
  for (int i = 0; i < COUNT; i++)
    if (i * 32 + lane < D) head[i * 32 + lane] = x[i];
  WARP_BARRIER;
  if (is_rotated) {
    for (int i = 0; i < HeadAngles<ROTARY_DIMS>::COUNT; i++) {
      const int d = i * 32 + lane;
      if (d >= ROTARY_DIMS / 2) break;
      const float sine = angles.sines[i], cosine = angles.cosines[i];
      const float a = head[d] * angles.magnitude, b = head[d + ROTARY_DIMS / 2] * angles.magnitude;
      head[d] = a * cosine - b * sine;
      head[d + ROTARY_DIMS / 2] = a * sine + b * cosine;
    }
  }
  WARP_BARRIER;
}
