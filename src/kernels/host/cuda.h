// CUDA's definitions of the names that kernels use where CUDA and Metal differ (metal.h has Metal's). Every kernel's
// source begins with one of the two files.
//
// In all kernels CTA means CUDA's thread block and Metal's threadgroup; a block is a KV block of 32 tokens. cta_x,
// cta_y and cta_z are the CTA's index in the grid; lane and warp are the thread's (a Metal simdgroup is a warp).
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

// Programmatic dependent launch: a kernel may start while the previous one still runs. Before
// AWAIT_INPUTS it may only read data that no launch of this step writes (weights), and write
// nothing. AWAIT_INPUTS waits until all earlier launches are complete, then lets the next launch
// start. A kernel without it gets one as its first statement (source.ts).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define AWAIT_INPUTS asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory")
#elif !defined(AWAIT_INPUTS)
#define AWAIT_INPUTS
#endif

// The shape of an input: MLX passes that of input `x` if a kernel's body mentions `x_shape`. MLX's own
// type has the same layout, but its header takes seconds to compile.
struct Shape {
  int sizes[10];
  constexpr int operator[](int axis) const {
    return sizes[axis];
  }
};

// MLX generates kernel signatures without attributes, so __global__ is redefined to add them. LAUNCH_BOUNDS: maximum
// threads per CTA, and optionally minimum CTAs per SM, which limits registers.
// CLUSTER: CTAs per cluster (cluster.h).
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
