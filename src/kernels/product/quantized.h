// Quantized weights as operands of tensor cores, pairs of 16-bit numbers; CUDA only.
#include "cuda-instructions.h"

/** The integers 128 or 1024 as a pair, whose last bits a weight is put into, and 1 and -128 or -1024. */
FUNCTION uint3 integer_pairs(const __nv_bfloat16*) {
  return {0x43004300, 0x3f803f80, 0xc300c300};
}
FUNCTION uint3 integer_pairs(const __half*) {
  return {0x64006400, 0x3c003c00, 0xe400e400};
}

/** Byte `i` of a word as a weight: as the last bits of 2^23 it becomes a float faster than by a conversion. */
template <typename T>
FUNCTION float dequantize_byte(unsigned word, int i, T scale, T bias) {
  const unsigned bits = __byte_perm(word, 0x4b000000, 0x7650 + i);
  return (__uint_as_float(bits) - 8388608.0f) * float(scale) + float(bias);
}

/** The first 4 bits of each half of `two` as a pair of weights; `scales` and `biases` are pairs. */
template <typename T>
FUNCTION unsigned dequantize_halves(unsigned two, unsigned scales, unsigned biases, const T* type) {
  const uint3 integers = integer_pairs(type);
  const unsigned numbers = and_or(two, 0x000f000f, integers.x);
  return fma_pair(fma_pair(numbers, integers.y, integers.z, type), scales, biases, type);
}

/**
 * 8 weights, scale * q + bias, of the 16 bytes that a lane has loaded: number `sub` of their eights. With 4 bits
 * they come in the order 0, 4, 1, 5, 2, 6, 3, 7, because the halves of a word are taken at once.
 */
template <int BITS, typename T>
FUNCTION uint4 dequantize(const uint4& loaded, int sub, T scale, T bias) {
  const T* type = nullptr;
  const unsigned* words = &loaded.x;
  unsigned made[4];
  if (BITS == 16) return loaded;
  if (BITS == 8) {
    const auto number = [&](int i) { return dequantize_byte(words[sub * 2 + i / 4], i % 4, scale, bias); };
    for (int i = 0; i < 4; i++) made[i] = pack_pair(number(2 * i), number(2 * i + 1), type);
  } else {
    const unsigned scales = pack_pair(float(scale), float(scale), type);
    const unsigned biases = pack_pair(float(bias), float(bias), type);
    for (int i = 0; i < 4; i++) made[i] = dequantize_halves(words[sub] >> (4 * i), scales, biases, type);
  }
  return {made[0], made[1], made[2], made[3]};
}

/** Weights 2 * quad and 2 * quad + 1 of 8 neighbours, whose words these are, as a pair; `scales` and `biases` are pairs
 *  of the same. */
template <int BITS, typename T>
FUNCTION unsigned dequantize_pair(const unsigned* words, int quad, unsigned scales, unsigned biases, const T* type) {
  if (BITS == 8) {
    const unsigned two = __byte_perm(words[0], words[1], 0x10 + 0x22 * quad);
    const T scale = *reinterpret_cast<const T*>(&scales), bias = *reinterpret_cast<const T*>(&biases);
    return pack_pair(dequantize_byte(two, 0, scale, bias), dequantize_byte(two, 1, scale, bias), type);
  }
  const unsigned byte = __byte_perm(words[0], 0, 0x4440 + quad);
  // Its second half at the beginning of the second half of a register.
  return dequantize_halves(byte * 0x1001, scales, biases, type);
}

/** 8 neighbours of x in the order of `dequantize`. */
template <int BITS>
FUNCTION uint4 interleave(const uint4& x) {
  if (BITS != 4) return x;
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
          __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
}

template <typename T>
FUNCTION uint4 multiply_pairs(const uint4& x, const uint4& y, const T* type) {
  constexpr unsigned ZEROS = 0x80008000;  // -0, which leaves every product as it is
  return {fma_pair(x.x, y.x, ZEROS, type), fma_pair(x.y, y.y, ZEROS, type),
          fma_pair(x.z, y.z, ZEROS, type), fma_pair(x.w, y.w, ZEROS, type)};
}
