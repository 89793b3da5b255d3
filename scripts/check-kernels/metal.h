// Metal for clang's C++ for OpenCL, whose address spaces follow the same rules: what the kernels use of
// Metal's language and library, declared and no more. A kernel that uses something new has it added here,
// as Apple's specification of the language declares it.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
#define thread __private

typedef unsigned short ushort;
typedef unsigned int uint;
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef int int32_t;
typedef uint uint32_t;
typedef half float16_t;

// Stricter than Metal's: nothing becomes a bfloat by itself.
struct bfloat16_t {
  bfloat16_t() = default;
  explicit bfloat16_t(float);
  operator float() const;

 private:
  ushort bits;
};

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
template <typename T>
T simd_shuffle_xor(T, ushort);
namespace fast {
float divide(float, float);
float exp(float);
}
namespace precise {
float cos(float);
float rsqrt(float);
float sin(float);
float tanh(float);
}
}

// As MLX's own headers do, which stand before every kernel.
using namespace metal;
float log1p(float);
