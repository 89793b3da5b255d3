// Heads in the sums of a product by warpgroups: of two rows a thread has two neighbours of every eight features, and so both of
// what is rotated with each other. CUDA with compute capability 9.0 only.
#include "cuda-instructions.h"
#include "layer.h"

/** Two neighbours rounded to T, as if they had been stored. The last argument only names the type. */
template <typename T>
FUNCTION void round_pair(float* x, const T* type) {
  const unsigned pair[1] = {pack_pair(x[0], x[1], type)};
  #pragma unroll
  for (int e = 0; e < 2; e++) x[e] = reinterpret_cast<const T*>(pair)[e];
}

/** Of position / wavelength; `inverse` is 1 / wavelength, nearly. */
FUNCTION void find_angle(float position, float wavelength, float inverse, float& sine, float& cosine) {
  const float nearly = position * inverse, angle = fmaf(fmaf(-nearly, wavelength, position), inverse, nearly);
  // Within half a turn; a turn is the sum of two numbers, of which products with the first are exact.
  const float turns = rintf(angle * 0.159154943f);
  const float within = fmaf(turns, -0.00193530718f, fmaf(turns, -6.28125f, angle));
  sine = sin_approx(within);
  cosine = cos_approx(within);
}

/** Rotates the heads `first` and the one behind it, of tokens at these positions, as prepare.c does. */
template <int D, int HEADS, int KV_HEADS, int ROTARY_DIMS, typename T>
FUNCTION void rotate_heads(
    float (&sum)[D], const float* layer, int first, const int (&positions)[2], int lane, const T* type) {
  if (ROTARY_DIMS == 0 || first >= HEADS + KV_HEADS) return;
  #pragma unroll
  for (int i = 0; i < D; i += 2) round_pair(sum + i, type);
  const float magnitude = layer[LAYER_ROPE_MAGNITUDE];
  #pragma unroll
  for (int j = 0; j < D / 16; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) {
      const float wavelength = layer_wavelengths<D>(layer)[j * 8 + lane % 4 * 2 + e], inverse = rcp_approx(wavelength);
      #pragma unroll
      for (int r = 0; r < 2; r++) {
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
