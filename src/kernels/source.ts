// Kernels are written once, in a subset of C++ that CUDA and Metal share, with names in capitals for what
// the two call differently. Here those names become one language or the other.

export type Language = "cuda" | "metal";

type Names = Readonly<Record<string, string>>;

const cuda: Names = {
  LANE: "int(threadIdx.x & 31)",
  WARP: "int(threadIdx.x >> 5)",
  THREAD: "int(threadIdx.x)",
  GROUP_X: "int(blockIdx.x)",
  GROUP_Y: "int(blockIdx.y)",
  GROUP_Z: "int(blockIdx.z)",
  SHARED: "__shared__",
  IN_SHARED: "",
  DEVICE: "",
  BARRIER: "__syncthreads()",
  SHUFFLE_XOR: "mlx_serve_shuffle_xor",
  EXP: "__expf",
  TANH: "tanhf",
  RSQRT: "rsqrtf",
  SINCOS: "mlx_serve_sincos",
};

// MLX looks for the names of attributes in a kernel's body and adds those that it finds to its arguments.
const metal: Names = {
  LANE: "int(thread_index_in_simdgroup)",
  WARP: "int(simdgroup_index_in_threadgroup)",
  THREAD: "int(thread_position_in_threadgroup.x)",
  GROUP_X: "int(threadgroup_position_in_grid.x)",
  GROUP_Y: "int(threadgroup_position_in_grid.y)",
  GROUP_Z: "int(threadgroup_position_in_grid.z)",
  SHARED: "threadgroup",
  IN_SHARED: "threadgroup",
  DEVICE: "device",
  BARRIER: "threadgroup_barrier(mem_flags::mem_threadgroup)",
  SHUFFLE_XOR: "simd_shuffle_xor",
  EXP: "metal::fast::exp",
  TANH: "metal::precise::tanh",
  RSQRT: "metal::precise::rsqrt",
  SINCOS: "mlx_serve_sincos",
};

const headers: Record<Language, string> = {
  cuda: `
__device__ inline float mlx_serve_shuffle_xor(float x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
__device__ inline void mlx_serve_sincos(float angle, float& sine, float& cosine) {
  sincosf(angle, &sine, &cosine);
}
#define MLX_SERVE_MMA(TYPE, NAME) \\
__device__ inline void mlx_serve_mma(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, \\
                                     unsigned a3, unsigned b0, unsigned b1, const TYPE*) { \\
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \\
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \\
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \\
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \\
} \\
__device__ inline unsigned mlx_serve_pack(float low, float high, const TYPE*) { \\
  unsigned pair; \\
  asm("cvt.rn." NAME "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)); \\
  return pair; \\
}
MLX_SERVE_MMA(__nv_bfloat16, "bf16")
MLX_SERVE_MMA(__half, "f16")
template <typename T>
__device__ inline float mlx_serve_squares(const uint4& packed, const T*) {
  const T* x = reinterpret_cast<const T*>(&packed);
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += float(x[i]) * float(x[i]);
  return sum;
}
template <typename T>
__device__ inline uint4 mlx_serve_times(const uint4& packed, const uint4& factors, const T*) {
  uint4 result;
  const T* x = reinterpret_cast<const T*>(&packed);
  const T* y = reinterpret_cast<const T*>(&factors);
  T* to = reinterpret_cast<T*>(&result);
  for (int i = 0; i < 8; i++) to[i] = x[i] * y[i];
  return result;
}
`,
  metal: `
inline void mlx_serve_sincos(float angle, thread float& sine, thread float& cosine) {
  sine = metal::precise::sin(angle);
  cosine = metal::precise::cos(angle);
}
`,
};

/** The body and the header of a kernel in one language. */
export function inLanguage(body: string, language: Language): { source: string; header: string } {
  const names = language === "cuda" ? cuda : metal;
  const pattern = new RegExp(`\\b(${Object.keys(names).join("|")})\\b`, "g");
  return { source: body.replace(pattern, (name) => names[name]!), header: headers[language] };
}
