// What CUDA and Metal call differently, as Metal calls it; cuda.h has the same names. Every kernel begins with
// one of the two.
#define FUNCTION inline
// Where a pointer or a reference points: global memory, a thread's own variables, the group's shared memory.
#define DEVICE device
#define PRIVATE thread
#define IN_SHARED threadgroup
// Declares shared memory, which only a kernel itself may do: functions take pointers to it.
#define SHARED threadgroup
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
// For the lanes of one warp. What they have loaded from shared memory is loaded again behind it, and not kept.
#define WARP_BARRIER simdgroup_barrier(mem_flags::mem_threadgroup)
#define SHUFFLE_XOR simd_shuffle_xor
#define EXP metal::fast::exp
#define DIVIDE metal::fast::divide
// MLX's: Metal has none.
#define LOG1P log1p
#define TANH metal::precise::tanh
#define RSQRT metal::precise::rsqrt
#define SINCOS(angle, sine, cosine) \
  (sine = metal::precise::sin(angle), cosine = metal::precise::cos(angle))
// Launches do not overlap but where MLX lets them.
#define AWAIT_INPUTS
