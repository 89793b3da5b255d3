// Metal for the emulator: what the kernels use of its language and library. A kernel that uses something new has it
// added here, as Apple's specification of the language defines it. Of address spaces nothing is left, which
// `npm run check:metal` checks.
#include "kernel.h"

#define kernel static
#define device
#define constant
#define thread
#define threadgroup

using ushort = unsigned short;
using uint = unsigned;
using float16_t = Float16;
using bfloat16_t = Bfloat16;

namespace metal {
enum class mem_flags { mem_none = ORDERS_NOTHING, mem_device = ORDERS_DEVICE, mem_threadgroup = ORDERS_SHARED };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(int(a) | int(b));
}
inline void threadgroup_barrier(mem_flags flags) {
  group_barrier(int(flags));
}
inline void simdgroup_barrier(mem_flags flags) {
  warp_barrier(int(flags));
}
template <typename T>
T simd_shuffle_xor(T x, ushort mask) {
  return __builtin_bit_cast(T, from_lane_xor("simd_shuffle_xor", __builtin_bit_cast(float, x), mask));
}
namespace fast {
inline float divide(float x, float y) {
  return x / y;
}
inline float exp(float x) {
  return expf(x);
}
}
namespace precise {
inline float cos(float x) {
  return cosf(x);
}
inline float rsqrt(float x) {
  return 1 / sqrtf(x);
}
inline float sin(float x) {
  return sinf(x);
}
inline float tanh(float x) {
  return tanhf(x);
}
}
}

// As MLX's own headers do, which stand before every kernel.
using namespace metal;
inline float log1p(float x) {
  return log1pf(x);
}

/** The arguments that MLX adds to a kernel whose source has their names. */
namespace attributes {
inline uint thread_index_in_simdgroup() {
  return thread_in_group() % 32;
}
inline uint simdgroup_index_in_threadgroup() {
  return thread_in_group() / 32;
}
inline uint3 thread_position_in_threadgroup() {
  return {uint(thread_in_group()), 0, 0};
}
inline uint3 threadgroup_position_in_grid() {
  return group_in_grid();
}
}

/** An array, whatever it is of. */
struct Any {
  void* memory;
  template <typename T>
  operator T*() const {
    return static_cast<T*>(memory);
  }
};
