// Metal's definitions of the names that kernels use where CUDA and Metal differ (cuda.h has CUDA's, and explains the
// terms). Every kernel's source begins with one of the two files.
#define FUNCTION inline
// Address spaces of pointers and references: global, per thread, per CTA (Metal's threadgroup).
#define DEVICE device
#define PRIVATE thread
#define IN_SHARED threadgroup
// Declares shared memory. Metal allows that in kernels only, so other functions take pointers to shared memory.
#define SHARED threadgroup
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
// Synchronizes the lanes of a warp, after which the compiler reloads shared memory.
#define WARP_BARRIER simdgroup_barrier(mem_flags::mem_threadgroup)
#define SHUFFLE_XOR simd_shuffle_xor
#define EXP metal::fast::exp
#define DIVIDE metal::fast::divide
// LOG1P is MLX's function, because Metal's library has no log1p.
#define LOG1P log1p
#define TANH metal::precise::tanh
#define RSQRT metal::precise::rsqrt
#define SINCOS(angle, sine, cosine) \
  (sine = metal::precise::sin(angle), cosine = metal::precise::cos(angle))
// AWAIT_INPUTS is empty, because Metal has no programmatic dependent launch.
#define AWAIT_INPUTS
