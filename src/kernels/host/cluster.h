// Thread block clusters: CLUSTER neighbouring CTAs along x that are scheduled together and can
// access each other's shared memory (DSMEM). CUDA with compute capability 9.0 only. The tests'
// emulator (test/support/emulator) implements the same functions for a CPU.

/** Waits for all threads of the cluster, and makes their earlier shared-memory writes visible. */
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/** cluster_barrier in two halves: no thread passes cluster_wait before all threads have called cluster_arrive. */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/** Arrives at the mbarrier (bulk.h) that CTA `index` of the cluster has at shared address `at`. */
__device__ __forceinline__ void barrier_arrive_at(int index, unsigned at) {
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at), "r"(index) : "memory");
}

/** Loads four floats from address `at` of the shared memory of CTA `index` of the cluster. */
__device__ __forceinline__ void load_shared_of(int index, float (&four)[4], unsigned at) {
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
               "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
               : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3]) : "r"(at), "r"(index));
}

/**
 * Starts a copy of `bytes` (a multiple of 16) from this CTA's shared memory to CTA `index` of the cluster, where
 * `barrier` (bulk.h) counts them. Call fence_proxy_async before; this CTA must not exit before the copy is complete.
 */
__device__ __forceinline__ void bulk_copy_to(int index, unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile("{ .reg .u32 there, counted; mapa.shared::cluster.u32 there, %0, %4;\nmapa.shared::cluster.u32 counted, %3, %4;\n"
               "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [counted]; }"
               ::"r"(to), "r"(from), "r"(bytes), "r"(barrier), "r"(index) : "memory");
}
