// PTX instructions as functions, named after them; CUDA only. Shared memory is addressed by the 32-bit numbers that
// PTX takes. The tests' emulator (test/support/emulator) implements the same functions for a CPU.

#define INSTRUCTIONS_ON_PAIRS_OF(TYPE, NAME) \
/** d (16, 8) += a (16, 16) b (16, 8), over a warp. The last argument only selects the type. */ \
__device__ __forceinline__ void mma_m16n8k16( \
    float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, \
    const TYPE*) { \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 " \
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
} \
/** Rounds two floats to a pair of 16-bit numbers in one register. */ \
__device__ __forceinline__ unsigned pack_pair(float low, float high, const TYPE*) { \
  unsigned pair; \
  asm("cvt.rn." NAME "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)); \
  return pair; \
} \
/** x * y + z for both numbers of a pair. */ \
__device__ __forceinline__ unsigned fma_pair(unsigned x, unsigned y, unsigned z, const TYPE*) { \
  unsigned pair; \
  asm("fma.rn." NAME "x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z)); \
  return pair; \
} \
/** Loads one 16-bit number from shared memory. */ \
__device__ __forceinline__ TYPE load_shared_number(unsigned at, const TYPE*) { \
  unsigned short bits; \
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(at)); \
  return *reinterpret_cast<const TYPE*>(&bits); \
}
INSTRUCTIONS_ON_PAIRS_OF(__nv_bfloat16, "bf16")
INSTRUCTIONS_ON_PAIRS_OF(__half, "f16")

/** Returns x & mask | bits in one instruction; compilers emit two if mask and bits are constants. */
__device__ __forceinline__ unsigned and_or(unsigned x, unsigned mask, unsigned bits) {
  unsigned made;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(made) : "r"(x), "r"(mask), "r"(bits));
  return made;
}

/** Returns the address of the launch's dynamic shared memory. */
__device__ __forceinline__ unsigned dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return unsigned(__cvta_generic_to_shared(memory));
}

__device__ __forceinline__ void* shared_pointer(unsigned at) { return __cvta_shared_to_generic(at); }

/**
 * Loads 16 bytes that no launch of the step writes (weights). The asm is volatile, because compilers otherwise
 * reorder the loads and wait for some of them early. It is not ld.global.nc, which compilers move after AWAIT_INPUTS.
 */
__device__ __forceinline__ uint4 load_constant(const void* from) {
  uint4 loaded;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w) : "l"(from));
  return loaded;
}

/** Loads 16 bytes that an earlier launch may have written. Call it only after AWAIT_INPUTS. */
__device__ __forceinline__ uint4 load_global(const void* from) {
  uint4 loaded;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w) : "l"(from) : "memory");
  return loaded;
}

/** Starts a copy of `bytes` (0 to 16) to shared memory, zero-filled to 16 bytes. */
__device__ __forceinline__ void cp_async(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

/** cp_async that also prefetches the 128-byte line into L2, for a line whose other bytes are copied next. */
__device__ __forceinline__ void cp_async_ahead(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

/** Copies 4 or 8 bytes, with the L2 prefetch of cp_async_ahead above. */
template <int BYTES>
__device__ __forceinline__ void cp_async_ahead(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES));
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }

/** Waits until at most PENDING of this thread's cp.async commit groups are in flight. */
template <int PENDING = 0>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

__device__ __forceinline__ uint4 load_shared(unsigned at) {
  uint4 loaded;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w) : "r"(at));
  return loaded;
}

/** These overloads load 4 or 8 bytes from shared memory. */
__device__ __forceinline__ void load_shared(unsigned (&loaded)[1], unsigned at) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(loaded[0]) : "r"(at));
}
__device__ __forceinline__ void load_shared(unsigned (&loaded)[2], unsigned at) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(loaded[0]), "=r"(loaded[1]) : "r"(at));
}

__device__ __forceinline__ void store_shared(unsigned at, const float (&four)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]));
}

__device__ __forceinline__ void store_shared(unsigned at, const uint4& four) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w));
}

__device__ __forceinline__ void store_shared(unsigned at, unsigned pair) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pair));
}

__device__ __forceinline__ void store_shared(unsigned at, float number) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(number));
}

/** Adds the four floats at shared address `at` to `sum`. */
__device__ __forceinline__ void add_shared(float (&sum)[4], unsigned at) {
  float four[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3]) : "r"(at));
  for (int i = 0; i < 4; i++) sum[i] += four[i];
}

/** Loads four 8x8 matrices of 16 bits; lane i passes the address of row i % 8 of matrix i / 8. */
template <bool TRANSPOSED>
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned at) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

/** Adds to *at and returns the previous value. */
__device__ __forceinline__ int atomic_add(int* at, int added) { return atomicAdd(at, added); }

/** Sleeps about 100 ns, so that other threads' memory requests are issued first. */
__device__ __forceinline__ void pause_shortly() { __nanosleep(100); }

/** Returns 2^x, approximately. */
__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** Approximates sine and cosine of an angle in [-pi, pi]; less exact outside. */
__device__ __forceinline__ float sin_approx(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float cos_approx(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** Returns 1 / x, approximately. */
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
