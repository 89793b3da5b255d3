// TMA (cp.async.bulk.tensor): copies boxes of a matrix between global memory and shared memory, in
// the swizzled layout of wgmma-operand.h, optionally multicast to several CTAs of a cluster; CUDA
// with compute capability 9.0 only. One thread issues a copy, and an mbarrier (bulk.h) counts its
// bytes. The tests' emulator implements the same functions for a CPU.

/** The code of element type T in a tensor map (TMA descriptor). */
template <typename T>
constexpr int TENSOR_TYPE = 10; // bfloat16
template <>
constexpr int TENSOR_TYPE<__half> = 6;

/** Acquires a tensor map that another warp wrote; required before its first use. */
__device__ __forceinline__ void acquire_tensor_map(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/**
 * Writes, with one warp, a tensor map (TMA descriptor, 128 bytes of device memory) for a 16-bit matrix (rows,
 * columns) and boxes of `box` rows and 64 columns. `shared`: 128 bytes of scratch. Loads beyond the matrix return
 * zeros.
 */
template <typename T>
__device__ __forceinline__ void make_tensor_map(
    void* map, unsigned shared, const T* matrix, int rows, int columns, int box, int lane) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + lane * 4), "r"(0) : "memory");
  __syncwarp();
  if (lane == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(shared), "l"(matrix) : "memory");
    // Sets the rank to 2; the instruction takes the rank minus 1.
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;" ::"r"(shared) : "memory");
    asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(shared), "r"(64) : "memory");
    asm volatile("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(shared), "r"(box) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(shared), "r"(columns) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(shared), "r"(rows) : "memory");
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(shared), "l"(columns * 2l) : "memory");
    asm volatile("tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(shared), "r"(1) : "memory");
    asm volatile("tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(shared), "r"(1) : "memory");
    asm volatile("tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], %1;" ::"r"(shared), "n"(TENSOR_TYPE<T>) : "memory");
    asm volatile("tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;" ::"r"(shared) : "memory");
    // Mode 3 is the 128-byte swizzle.
    asm volatile("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;" ::"r"(shared) : "memory");
    asm volatile("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" ::"r"(shared) : "memory");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               ::"l"(map), "r"(shared) : "memory");
  acquire_tensor_map(map);
}

/** Starts a copy of the box at (row, column) to shared address `to`, aligned to 128 bytes. */
__device__ __forceinline__ void tensor_copy(unsigned to, const void* map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

/** Multicasts the box to address `to` of each CTA in the bit mask, where the CTA's own mbarrier counts the bytes. */
__device__ __forceinline__ void tensor_copy_to(
    unsigned ctas, unsigned to, const void* map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)ctas) : "memory");
}

/** Starts to store a box, after fence_proxy_async, at (row, column). Elements beyond the matrix are dropped. */
__device__ __forceinline__ void tensor_store(const void* map, int column, int row, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;"
               ::"l"(map), "r"(column), "r"(row), "r"(from) : "memory");
}

/** Waits until at most PENDING of this thread's stores still read from shared memory. */
template <int PENDING>
__device__ __forceinline__ void tensor_stores_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
