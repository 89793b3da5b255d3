// RoPE on heads in wgmma accumulators. A thread has two rows, and of each row two adjacent features of every eight,
// therefore both features of every pair that RoPE rotates. CUDA with compute capability 9.0 only.
#include "cuda-instructions.h"
#include "layer.h"

/** Rounds two adjacent features to T, as separate operations would. `type` only selects T. */
template <typename T>
FUNCTION void round_pair(float* x, const T* type) {
  const unsigned pair[1] = {pack_pair(x[0], x[1], type)};
  #pragma unroll
  for (int e = 0; e < 2; e++) x[e] = reinterpret_cast<const T*>(pair)[e];
}

/** Computes sine and cosine of position / wavelength. `inverse` is approximately 1 / wavelength. */
FUNCTION void find_angle(float position, float wavelength, float inverse, float& sine, float& cosine) {
  const float nearly = position * inverse, angle = fmaf(fmaf(-nearly, wavelength, position), inverse, nearly);
  // Reduces the angle to [-pi, pi]. 2 pi is the sum of two constants; products of the first with `turns` are exact.
  const float turns = rintf(angle * 0.159154943f);
  const float within = fmaf(turns, -0.00193530718f, fmaf(turns, -6.28125f, angle));
  sine = sin_approx(within);
  cosine = cos_approx(within);
}

/** Applies RoPE to heads `first` and `first` + 1 of tokens at these positions, like prepare.c. */
template <int D, int HEADS, int KV_HEADS, int ROTARY_DIMS, int LONG_BEYOND, typename T>
FUNCTION void rotate_heads(
    float (&sum)[D], const LayerRope (&ropes)[2], int first, const int (&positions)[2], int lane, const T* type) {
  if (ROTARY_DIMS == 0 || first >= HEADS + KV_HEADS) return;
  #pragma unroll
  for (int i = 0; i < D; i += 2) round_pair(sum + i, type);
  #pragma unroll
  for (int j = 0; j < D / 16; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) {
      const int pair = j * 8 + lane % 4 * 2 + e;
      float wavelength = ropes[0].wavelengths[pair], inverse = rcp_approx(wavelength), magnitude = ropes[0].magnitude;
      #pragma unroll
      for (int r = 0; r < 2; r++) {
        if (LONG_BEYOND > 0 && r == 1) {
          wavelength = ropes[1].wavelengths[pair];
          inverse = rcp_approx(wavelength);
          magnitude = ropes[1].magnitude;
        }
        float sine, cosine;
        find_angle(float(positions[r]), wavelength, inverse, sine, cosine);
        #pragma unroll
        for (int half = 0; half < 2; half++) {
          float* x = sum + half * D / 2 + j * 4 + r * 2 + e;
          const float a = x[0] * magnitude, b = x[D / 4] * magnitude;
          const bool is_rotated = first + half < HEADS + KV_HEADS;
          x[0] = is_rotated ? a * cosine - b * sine : x[0];
          x[D / 4] = is_rotated ? a * sine + b * cosine : x[D / 4];
        }
      }
    }
}
