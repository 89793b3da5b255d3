// Copies to shared memory that one thread asks for and barriers count, of GPUs from Hopper on. Shared memory is addressed by
// 32-bit numbers, as in cuda-instructions.h. The tests' emulator has the same functions for a CPU.

/** A barrier of 8 bytes that `count` arrivals complete, and then the next time as many. */
__device__ __forceinline__ void barrier_init(unsigned at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(at), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/** Arrives, and has so many bytes of copies complete it too. */
__device__ __forceinline__ void barrier_expect(unsigned at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/** Until it has been completed so often that the last number is even, or odd: with 0, once. */
__device__ __forceinline__ void barrier_wait(unsigned at, int parity) {
  asm volatile("{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again_%=;\n}"
               ::"r"(at), "r"(parity) : "memory");
}

/** A multiple of 16 bytes, from and to where such begin. */
__device__ __forceinline__ void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
