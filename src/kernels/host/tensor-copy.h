// Copies of boxes of a matrix to shared memory, as wgmma reads them there (wgmma-operand.h), to all groups of a cluster that need
// them; CUDA with compute capability 9.0 only. One thread asks for them, and barriers count them (bulk.h). The tests' emulator
// has the same functions for a CPU.

/** What a map calls numbers of this type. */
template <typename T>
constexpr int TENSOR_TYPE = 10; // bfloat16
template <>
constexpr int TENSOR_TYPE<__half> = 6;

/** Another warp than the one that made the map must say so before it uses it. */
__device__ __forceinline__ void acquire_tensor_map(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/**
 * A warp writes down where a matrix (rows, columns) of 16 bits is, in 128 bytes of device memory that copies take, by way of as
 * many of shared memory. Boxes have 64 columns and `box` rows; what is past the matrix is zero.
 */
template <typename T>
__device__ __forceinline__ void make_tensor_map(
    void* map, unsigned shared, const T* matrix, int rows, int columns, int box, int lane) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared + lane * 4), "r"(0) : "memory");
  __syncwarp();
  if (lane == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(shared), "l"(matrix) : "memory");
    // One less than there are.
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
    // Over 128 bytes.
    asm volatile("tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;" ::"r"(shared) : "memory");
    asm volatile("tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" ::"r"(shared) : "memory");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               ::"l"(map), "r"(shared) : "memory");
  acquire_tensor_map(map);
}

/** The box that begins at this column and row, to where lines of 128 bytes begin. */
__device__ __forceinline__ void tensor_copy(unsigned to, const void* map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

/** The same to this place of several groups of the cluster, a bit each, where a barrier at the same place counts it. */
__device__ __forceinline__ void tensor_copy_to(
    unsigned groups, unsigned to, const void* map, int column, int row, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)groups) : "memory");
}

/** Starts to copy a box of shared memory, fenced, to where it begins in the matrix. What is past the matrix is left out. */
__device__ __forceinline__ void tensor_store(const void* map, int column, int row, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;"
               ::"l"(map), "r"(column), "r"(row), "r"(from) : "memory");
}

/** Until what this thread has stored, but for the last PENDING boxes, may be written to in shared memory. */
template <int PENDING>
__device__ __forceinline__ void tensor_stores_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
