// The compiler's vector extension: LANES floats each, and functions on them. Part of kernels.cpp.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE inline __attribute__((always_inline))

namespace mlx_serve {
namespace VARIANT {

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int Ints __attribute__((vector_size(LANES * 4)));

static INLINE Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

static INLINE void store(float* to, Floats x) {
  __builtin_memcpy(to, &x, sizeof x);
}

/** Loads the first `count` lanes; the others get `rest`. */
static INLINE Floats load_some(const float* from, int count, float rest) {
  float some[LANES];
  for (int i = 0; i < LANES; i++) some[i] = i < count ? from[i] : rest;
  return load(some);
}

static INLINE void store_some(float* to, Floats x, int count) {
  float some[LANES];
  store(some, x);
  for (int i = 0; i < count; i++) to[i] = some[i];
}

static INLINE Floats all(float x) {
  return x - Floats{};
}

static INLINE Floats select(Ints condition, Floats yes, Floats no) {
  return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

static INLINE Floats max(Floats a, Floats b) {
  return select(a > b, a, b);
}

/** Reduces the lanes to one number by a binary tree of `join`. */
template <class Join>
static INLINE float reduce(Floats x, Join join) {
#if LANES == 16
  typedef float Half __attribute__((vector_size(32)));
  const Half eight = join(
      __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
      __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
#elif LANES == 8
  const Floats eight = x;
#endif
#if LANES >= 8
  typedef float Quarter __attribute__((vector_size(16)));
  const Quarter four = join(
      __builtin_shufflevector(eight, eight, 0, 1, 2, 3),
      __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const Floats four = x;
#endif
  const auto two = join(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return join(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

struct Plus {
  template <class V>
  INLINE V operator()(V a, V b) const {
    return a + b;
  }
};

struct Max {
  template <class V>
  INLINE V operator()(V a, V b) const {
    const auto first = a > b;
    typedef decltype(first) Bits;
    return (V)((first & (Bits)a) | (~first & (Bits)b));
  }
};

static INLINE float sum(Floats x) {
  return reduce(x, Plus{});
}

static INLINE float highest(Floats x) {
  return reduce(x, Max{});
}

/** Computes e^x as 2^n e^r with |r| < ln(2) / 2, within 2 ulp. Returns 0 below -87, because denormals are slow. */
static INLINE Floats exponential(Floats x) {
  const Ints underflows = x < -87.0f;
  x = select(underflows, Floats{}, select(x > 88.0f, all(88.0f), x));
  const Floats shifted = x * 1.44269504f + 12582912.0f; // adding 1.5 * 2^23 rounds to an integer
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints power = ((Ints)shifted - 0x4b400000 + 127) << 23;
  return select(underflows, Floats{}, p * (Floats)power);
}

static INLINE Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exponential(-x));
}

static INLINE Floats tanh(Floats x) {
  const Floats s = x * x;
  Floats p = s * (-1382.0f / 155925.0f) + 62.0f / 2835.0f;
  p = p * s - 17.0f / 315.0f;
  p = p * s + 2.0f / 15.0f;
  p = p * s - 1.0f / 3.0f;
  const Floats near = x + x * s * p;
  const Floats far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return select(s < 0.09f, near, far);
}

} // namespace VARIANT
} // namespace mlx_serve
