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

// A launch may begin while the one before it still runs, whoever wrote that. It may read what no launch of the step has
// written, weights above all, and write nothing; behind this everything before it is there, and the next launch may
// begin. Where it is not said it comes first.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define AWAIT_INPUTS asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory")
#elif !defined(AWAIT_INPUTS)
#define AWAIT_INPUTS
#endif

// MLX writes a kernel's signature without these: the most threads of a group, and how many groups are to share a
// multiprocessor, for which the compiler spares registers; and how many groups run together (cluster.h).
#ifdef LAUNCH_BOUNDS
#define BOUNDED __launch_bounds__(LAUNCH_BOUNDS)
#else
#define BOUNDED
#endif
#ifdef CLUSTER
#define CLUSTERED __attribute__((cluster_dims(CLUSTER, 1, 1)))
#else
#define CLUSTERED
#endif
#if defined(LAUNCH_BOUNDS) || defined(CLUSTER)
#define __global__ __attribute__((global)) BOUNDED CLUSTERED
#endif
