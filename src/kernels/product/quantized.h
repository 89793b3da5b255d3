// Dequantizes weights in registers, to operands of tensor cores (pairs of 16-bit numbers); CUDA only.
#include "cuda-instructions.h"

/**
 * Three constants, each as a pair, that convert integers without a conversion instruction: 128 (bfloat16) or 1024
 * (float16), whose low mantissa bits a weight replaces; the factor 1; and the summand -128 or -1024.
 */
FUNCTION uint3 integer_pairs(const __nv_bfloat16*) {
  return {0x43004300, 0x3f803f80, 0xc300c300};
}
FUNCTION uint3 integer_pairs(const __half*) {
  return {0x64006400, 0x3c003c00, 0xe400e400};
}

/** Dequantizes byte `i` of a word. Taking it as the low mantissa bits of 2^23 saves a conversion instruction. */
template <typename T>
FUNCTION float dequantize_byte(unsigned word, int i, T scale, T bias) {
  const unsigned bits = __byte_perm(word, 0x4b000000, 0x7650 + i);
  return (__uint_as_float(bits) - 8388608.0f) * float(scale) + float(bias);
}

/** Dequantizes the low nibble of each 16-bit half of `two` to a pair. `scales` and `biases` are pairs too. */
template <typename T>
FUNCTION unsigned dequantize_halves(unsigned two, unsigned scales, unsigned biases, const T* type) {
  const uint3 integers = integer_pairs(type);
  const unsigned numbers = and_or(two, 0x000f000f, integers.x);
  return fma_pair(fma_pair(numbers, integers.y, integers.z, type), scales, biases, type);
}

/**
 * Dequantizes the `sub`-th group of 8 weights in the 16 bytes that a lane has loaded: scale * q + bias. 4-bit weights
 * come in the order 0, 4, 1, 5, 2, 6, 3, 7, because both halves of a word are processed at once.
 */
template <int BITS, typename T>
FUNCTION uint4 dequantize(const uint4& loaded, int sub, T scale, T bias) {
  const T* type = nullptr;
  const unsigned* words = &loaded.x;
  unsigned pairs[4];
  if (BITS == 16) return loaded;
  if (BITS == 8) {
    const auto number = [&](int i) { return dequantize_byte(words[sub * 2 + i / 4], i % 4, scale, bias); };
    for (int i = 0; i < 4; i++) pairs[i] = pack_pair(number(2 * i), number(2 * i + 1), type);
  } else {
    const unsigned scales = pack_pair(float(scale), float(scale), type);
    const unsigned biases = pack_pair(float(bias), float(bias), type);
    for (int i = 0; i < 4; i++) pairs[i] = dequantize_halves(words[sub] >> (4 * i), scales, biases, type);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

/**
 * Dequantizes weights 2 * quad and 2 * quad + 1 of the 8 weights in `words` to a pair. `scales` and `biases` are
 * pairs of equal numbers.
 */
template <int BITS, typename T>
FUNCTION unsigned dequantize_pair(const unsigned* words, int quad, unsigned scales, unsigned biases, const T* type) {
  if (BITS == 8) {
    const unsigned two = __byte_perm(words[0], words[1], 0x10 + 0x22 * quad);
    const T scale = *reinterpret_cast<const T*>(&scales), bias = *reinterpret_cast<const T*>(&biases);
    return pack_pair(dequantize_byte(two, 0, scale, bias), dequantize_byte(two, 1, scale, bias), type);
  }
  const unsigned byte = __byte_perm(words[0], 0, 0x4440 + quad);
  // Moves the byte's high nibble to the low nibble of the register's upper half.
  return dequantize_halves(byte * 0x1001, scales, biases, type);
}

/** Permutes 8 adjacent elements of x to the order in which `dequantize` returns weights. */
template <int BITS>
FUNCTION uint4 interleave(const uint4& x) {
  if (BITS != 4) return x;
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
          __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
}

template <typename T>
FUNCTION uint4 multiply_pairs(const uint4& x, const uint4& y, const T* type) {
  constexpr unsigned ZEROS = 0x80008000;  // a pair of -0, whose addition changes no product, not even -0
  return {fma_pair(x.x, y.x, ZEROS, type), fma_pair(x.y, y.y, ZEROS, type),
          fma_pair(x.z, y.z, ZEROS, type), fma_pair(x.w, y.w, ZEROS, type)};
}
