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

/** What CUDA's kernels ask of the device by its own instructions; tests compute them on a CPU. */
export const cudaInstructions = `
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
} \\
__device__ inline unsigned mlx_serve_fma(unsigned x, unsigned y, unsigned z, const TYPE*) { \\
  unsigned pair; \\
  asm("fma.rn." NAME "x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z)); \\
  return pair; \\
}
MLX_SERVE_MMA(__nv_bfloat16, "bf16")
MLX_SERVE_MMA(__half, "f16")
__device__ inline unsigned mlx_serve_room() {
  extern __shared__ __align__(16) unsigned char room[];
  return unsigned(__cvta_generic_to_shared(room));
}
__device__ inline void mlx_serve_copy(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline uint4 mlx_serve_read(unsigned at) {
  uint4 read;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(read.x), "=r"(read.y), "=r"(read.z), "=r"(read.w) : "r"(at));
  return read;
}
__device__ inline void mlx_serve_write(unsigned at, const float (&four)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]));
}
__device__ inline void mlx_serve_add(float (&sum)[4], unsigned at) {
  float four[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3]) : "r"(at));
  for (int i = 0; i < 4; i++) sum[i] += four[i];
}
__device__ inline float mlx_serve_quotient(float x, float y) { return __fdividef(x, y); }
__device__ inline void mlx_serve_copies_end() { asm volatile("cp.async.commit_group;"); }
__device__ inline void mlx_serve_copies_wait() { asm volatile("cp.async.wait_group 0;"); }
template <bool CROSSWISE>
__device__ inline void mlx_serve_load(unsigned (&r)[4], unsigned at) {
  if (CROSSWISE)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ inline float mlx_serve_power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
`;

const headers: Record<Language, string> = {
  cuda: `${cudaInstructions}template <typename T>
__device__ inline uint4 mlx_serve_times(const uint4& x, const uint4& y, const T* type) {
  constexpr unsigned NONE = 0x80008000;  // -0, which any product stays as it is with
  return {mlx_serve_fma(x.x, y.x, NONE, type), mlx_serve_fma(x.y, y.y, NONE, type),
          mlx_serve_fma(x.z, y.z, NONE, type), mlx_serve_fma(x.w, y.w, NONE, type)};
}
// 128 and 1024, to whose last bits integers are added, and the numbers that take them away again.
__device__ inline uint3 mlx_serve_integers(const __nv_bfloat16*) {
  return {0x43004300, 0x3f803f80, 0xc300c300};
}
__device__ inline uint3 mlx_serve_integers(const __half*) {
  return {0x64006400, 0x3c003c00, 0xe400e400};
}
// 8 elements of a matrix out of the 16 bytes that a lane has loaded, those of one 'sub'. Of 4 bits they
// come out as 0, 4, 1, 5, 2, 6, 3, 7: two halves of a word are taken at once.
template <int BITS, typename T>
__device__ inline uint4 mlx_serve_unpacked(const uint4& packed, int sub, T scale, T bias) {
  const T* type = nullptr;
  const unsigned* words = &packed.x;
  unsigned made[4];
  if (BITS == 16) return packed;
  if (BITS == 8) {
    // As the last bits of 2^23 a byte is a float sooner than by a conversion.
    const auto number = [&](int i) {
      const unsigned bits = __byte_perm(words[sub * 2 + i / 4], 0x4b000000, 0x7650 + i % 4);
      return (__uint_as_float(bits) - 8388608.0f) * float(scale) + float(bias);
    };
    for (int i = 0; i < 4; i++) made[i] = mlx_serve_pack(number(2 * i), number(2 * i + 1), type);
  } else {
    const uint3 integers = mlx_serve_integers(type);
    const unsigned scales = mlx_serve_pack(float(scale), float(scale), type);
    const unsigned biases = mlx_serve_pack(float(bias), float(bias), type);
    for (int i = 0; i < 4; i++) {
      const unsigned two = (words[sub] >> (4 * i) & 0x000f000f) | integers.x;
      made[i] = mlx_serve_fma(mlx_serve_fma(two, integers.y, integers.z, type), scales, biases, type);
    }
  }
  return {made[0], made[1], made[2], made[3]};
}
// 8 neighbours of x in that order.
template <int BITS>
__device__ inline uint4 mlx_serve_ordered(const uint4& x) {
  if (BITS != 4) return x;
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
          __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
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
