// Groups of a cluster, CLUSTER neighbours in the direction of x that run together and can read each other's shared
// memory; CUDA with compute capability 9.0 only. The tests' emulator (test/support/emulator) has the same functions for
// a CPU.

/** All threads of the cluster must arrive before any goes on; what they have written to shared memory is there then. */
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/** The two halves of it, where nothing is read that others have written: all have come to the first before any passes the second. */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/** Arrives at the barrier (bulk.h) that stands at the same place in the shared memory of the cluster's group `index`. */
__device__ __forceinline__ void barrier_arrive_at(int index, unsigned at) {
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at), "r"(index) : "memory");
}

/** The four floats at `at` of the shared memory of the cluster's group `index`. */
__device__ __forceinline__ void load_shared_of(int index, float (&four)[4], unsigned at) {
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
               "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
               : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3]) : "r"(at), "r"(index));
}

/**
 * Copies a multiple of 16 bytes of this group's shared memory, fenced, to that of the cluster's group `index`, and a barrier there
 * counts them (bulk.h). Until they are there this group must not end.
 */
__device__ __forceinline__ void bulk_copy_to(int index, unsigned to, unsigned from, int bytes, unsigned barrier) {
  asm volatile("{ .reg .u32 there, counted; mapa.shared::cluster.u32 there, %0, %4;\nmapa.shared::cluster.u32 counted, %3, %4;\n"
               "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [counted]; }"
               ::"r"(to), "r"(from), "r"(bytes), "r"(barrier), "r"(index) : "memory");
}
