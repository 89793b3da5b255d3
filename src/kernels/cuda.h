// What CUDA and Metal call differently, as CUDA calls it; metal.h has the same names. Every kernel begins with
// one of the two.
#define FUNCTION __device__ __forceinline__
#define DEVICE
#define PRIVATE
#define SHARED __shared__
#define IN_SHARED
#define BARRIER __syncthreads()
#define WARP_BARRIER __syncwarp()
#define SHUFFLE_XOR(x, mask) __shfl_xor_sync(0xffffffffu, x, mask)
#define EXP __expf
#define DIVIDE __fdividef
#define LOG1P log1pf
#define TANH tanhf
#define RSQRT rsqrtf
#define SINCOS(angle, sine, cosine) sincosf(angle, &sine, &cosine)

#ifdef LAUNCH_BOUNDS
// MLX writes a kernel's signature without these: the most threads of a group, and how many groups are to share a
// multiprocessor, for which the compiler spares registers.
#define __global__ __attribute__((global)) __launch_bounds__(LAUNCH_BOUNDS)
#endif
