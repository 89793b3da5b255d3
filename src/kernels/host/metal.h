// The names that kernels use for what CUDA and Metal spell differently: Metal's version (cuda.h has
// CUDA's, and the terms). Every kernel's source begins with one of the two files.
#define FUNCTION inline
// Address spaces of pointers and references: global, per thread, per CTA (Metal's threadgroup).
#define DEVICE device
#define PRIVATE thread
#define IN_SHARED threadgroup
// Declares shared memory. Metal allows that in kernels only, so functions take pointers to it.
#define SHARED threadgroup
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
// Synchronizes the lanes of a warp. The compiler reloads shared memory after it.
#define WARP_BARRIER simdgroup_barrier(mem_flags::mem_threadgroup)
#define SHUFFLE_XOR simd_shuffle_xor
#define EXP metal::fast::exp
#define DIVIDE metal::fast::divide
// MLX's function: Metal's library has no log1p.
#define LOG1P log1p
#define TANH metal::precise::tanh
#define RSQRT metal::precise::rsqrt
#define SINCOS(angle, sine, cosine) \
  (sine = metal::precise::sin(angle), cosine = metal::precise::cos(angle))
// Metal has no programmatic dependent launch.
#define AWAIT_INPUTS
