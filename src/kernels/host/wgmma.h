// Hopper's warpgroup MMA (wgmma) as functions; CUDA with compute capability 9.0 only. Products run
// asynchronously and read operands in shared memory through descriptors (wgmma-operand.h). The
// tests' emulator (test/support/emulator) implements the same functions for a CPU.

/**
 * Makes this thread's writes and completed cp.async copies to shared memory visible to wgmma and TMA. A barrier after
 * it extends that to the wgmma and TMA of other threads.
 */
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/**
 * Sets this warpgroup's registers per thread: setmaxnreg_dec frees registers for other warpgroups, setmaxnreg_inc
 * waits until enough are free.
 */
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/** Orders register writes before the following wgmmas; needed once per commit group. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/** Waits until at most PENDING commit groups of wgmma are in flight. */
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/** wgmma_wait<PENDING>() after which the accumulators `d` may be read. */
template <int PENDING, int N>
__device__ __forceinline__ void wgmma_wait(float (&d)[N]) {
  wgmma_wait<PENDING>();
  // Keeps the compiler from moving reads of the accumulators before the wait.
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define SUMS_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_48(i) SUMS_32(i), SUMS_16(i + 32)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define SUMS_96(i) SUMS_64(i), SUMS_32(i + 64)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)
#define REGISTERS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 \
  REGISTERS_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48 \
  REGISTERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_64 \
  REGISTERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_96 \
  REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_128 \
  REGISTERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// FIRST to SIXTH: the numbers of the asm operands that follow the accumulators.
#define WGMMA_OF_SUMS(COUNT, COLUMNS, TYPE, NAME, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH) \
/** d (64, COLUMNS) = a (64, 16) b^T (COLUMNS, 16), or d += if `adds`; operands in shared memory. */ \
__device__ __forceinline__ void wgmma_m64k16( \
    float (&d)[COUNT], unsigned long long a, unsigned long long b, bool adds, const TYPE*) { \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " THIRD ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " " \
               "{" REGISTERS_##COUNT "}, " FIRST ", " SECOND ", adds, 1, 1, 0, 0; }" \
               : SUMS_##COUNT(0) : "l"(a), "l"(b), "r"(int(adds))); \
} \
/** d (64, COLUMNS) += a (64, 16) b^T (COLUMNS, 16), `a` in registers, as in mma_m16n8k16. */ \
__device__ __forceinline__ void wgmma_m64k16( \
    float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b, const TYPE*) { \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " " \
               "{" REGISTERS_##COUNT "}, {" FIRST ", " SECOND ", " THIRD ", " FOURTH "}, " FIFTH ", 1, 1, 1, 0;" \
               : SUMS_##COUNT(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
} \
/** d (64, COLUMNS) = a (64, 16) b (16, COLUMNS), or d += if `adds`; `a` in registers. */ \
__device__ __forceinline__ void wgmma_m64k16_transposed( \
    float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b, bool adds, const TYPE*) { \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " SIXTH ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " " \
               "{" REGISTERS_##COUNT "}, {" FIRST ", " SECOND ", " THIRD ", " FOURTH "}, " FIFTH ", adds, 1, 1, 1; }" \
               : SUMS_##COUNT(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(adds))); \
}
#define WGMMA_OF(TYPE, NAME) \
  WGMMA_OF_SUMS(16, 32, TYPE, NAME, "%16", "%17", "%18", "%19", "%20", "%21") \
  WGMMA_OF_SUMS(32, 64, TYPE, NAME, "%32", "%33", "%34", "%35", "%36", "%37") \
  WGMMA_OF_SUMS(48, 96, TYPE, NAME, "%48", "%49", "%50", "%51", "%52", "%53") \
  WGMMA_OF_SUMS(64, 128, TYPE, NAME, "%64", "%65", "%66", "%67", "%68", "%69") \
  WGMMA_OF_SUMS(96, 192, TYPE, NAME, "%96", "%97", "%98", "%99", "%100", "%101") \
  WGMMA_OF_SUMS(128, 256, TYPE, NAME, "%128", "%129", "%130", "%131", "%132", "%133")
WGMMA_OF(__nv_bfloat16, "bf16")
WGMMA_OF(__half, "f16")
#undef WGMMA_OF
#undef WGMMA_OF_SUMS
#undef REGISTERS_128
#undef REGISTERS_96
#undef REGISTERS_64
#undef REGISTERS_48
#undef REGISTERS_32
#undef REGISTERS_16
#undef SUMS_128
#undef SUMS_96
#undef SUMS_64
#undef SUMS_48
#undef SUMS_32
#undef SUMS_16
#undef SUMS_8
