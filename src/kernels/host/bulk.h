// mbarriers and bulk copies (cp.async.bulk) from global to shared memory, which one thread issues
// and an mbarrier counts; compute capability 9.0 and later. Shared memory is addressed by 32-bit
// numbers, as in cuda-instructions.h. The tests' emulator implements the same functions for a CPU.

/** Initializes the 8-byte mbarrier at `at`, whose phases complete after `count` arrivals each. */
__device__ __forceinline__ void barrier_init(unsigned at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(at), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/** Arrives at the mbarrier, and makes its phase also wait for `bytes` bytes of copies. */
__device__ __forceinline__ void barrier_expect(unsigned at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/** Waits until the phase with this parity is complete: 0 for the first, third, ... phase, 1 for the others. */
__device__ __forceinline__ void barrier_wait(unsigned at, int parity) {
  asm volatile("{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again_%=;\n}"
               ::"r"(at), "r"(parity) : "memory");
}

/** Starts a copy of `bytes`, a multiple of 16. Both addresses must be 16-byte aligned. */
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
