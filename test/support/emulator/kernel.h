// What the kernels of src/kernels see of the emulator, whatever language they are written out in: 16-bit numbers, and
// what the lanes of a group do together (lanes.cpp). No header of the standard library: most of a kernel's time to
// compile would be theirs.
#pragma once

using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using uint64_t = unsigned long;

struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};

/** An array of the group's, with room behind it that is nobody's: what is past its end is found out (memory.cpp). */
#define SHARED_MEMORY static constinit __attribute__((aligned(1 << 16)))

#define ALWAYS_INLINE __attribute__((always_inline)) inline

/** Nothing becomes one by itself. */
struct Bfloat16 {
  uint16_t bits;
  Bfloat16() = default;
  ALWAYS_INLINE explicit Bfloat16(float value) {
    const uint32_t all = __builtin_bit_cast(uint32_t, value);
    // Round to nearest, ties to even.
    bits = value != value ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  ALWAYS_INLINE operator float() const {
    return __builtin_bit_cast(float, uint32_t(bits) << 16);
  }
};

struct Float16 {
  _Float16 value;
  Float16() = default;
  ALWAYS_INLINE explicit Float16(float from) : value(from) {}
  ALWAYS_INLINE operator float() const {
    return value;
  }
};

extern "C" {
float cosf(float) noexcept;
float exp2f(float) noexcept;
float expf(float) noexcept;
float fmaf(float, float, float) noexcept;
float rintf(float) noexcept;
float fmaxf(float, float) noexcept;
float fabsf(float) noexcept;
float log1pf(float) noexcept;
float logf(float) noexcept;
void sincosf(float, float*, float*) noexcept;
float sinf(float) noexcept;
float sqrtf(float) noexcept;
float tanhf(float) noexcept;
}

/** Which memory a barrier orders. */
enum Order { ORDERS_NOTHING = 0, ORDERS_DEVICE = 1, ORDERS_SHARED = 2 };

/** All lanes of the group, or those of a warp, must arrive before any goes on. */
void group_barrier(int order);
void await_inputs();
void warp_barrier(int order);

/** What the lane of this warp has given that each asks for. */
float from_lane(const char* operation, float x, int lane);
float from_lane_xor(const char* operation, float x, int mask);

/** Of the lane that runs. */
int thread_in_group();
uint3 group_in_grid();
