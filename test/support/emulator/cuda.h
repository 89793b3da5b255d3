// CUDA for the emulator: what the kernels use of its language, and the instructions of src/kernels/host/cuda-instructions.h,
// bulk.h, cluster.h, tensor-copy.h and wgmma.h (instructions.cpp).
#include "kernel.h"

#define __device__ static
#define __forceinline__ inline
#define __shared__ SHARED_MEMORY
#define __expf expf
#define threadIdx (uint3{unsigned(thread_in_group()), 0, 0})
#define blockIdx (group_in_grid())
#define AWAIT_INPUTS await_inputs()

using __nv_bfloat16 = Bfloat16;
using __half = Float16;

inline int min(int x, int y) {
  return x < y ? x : y;
}
inline int max(int x, int y) {
  return x < y ? y : x;
}

inline void __syncthreads() {
  group_barrier(ORDERS_DEVICE | ORDERS_SHARED);
}
inline void __syncwarp() {
  warp_barrier(ORDERS_DEVICE | ORDERS_SHARED);
}
template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return __builtin_bit_cast(T, from_lane_xor("__shfl_xor_sync", __builtin_bit_cast(float, x), mask));
}
inline float __shfl_sync(unsigned, float x, int lane) {
  return from_lane("__shfl_sync", x, lane);
}

inline float rsqrtf(float x) {
  return 1 / sqrtf(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float ex2_approx(float x) {
  return exp2f(x);
}
inline float sin_approx(float x) {
  return sinf(x);
}
inline float cos_approx(float x) {
  return cosf(x);
}
inline float rcp_approx(float x) {
  return 1 / x;
}
inline float __uint_as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
inline unsigned __float_as_uint(float x) {
  return __builtin_bit_cast(unsigned, x);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = x | uint64_t(y) << 32;
  unsigned made = 0;
  for (int i = 0; i < 4; i++) made |= unsigned(both >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
  return made;
}

// ---- Instructions

template <typename T>
inline unsigned pack_pair(float low, float high, const T*) {
  return __builtin_bit_cast(uint16_t, T(low)) | unsigned(__builtin_bit_cast(uint16_t, T(high))) << 16;
}

template <typename T>
inline float half_of(unsigned pair, int which) {
  return __builtin_bit_cast(T, uint16_t(pair >> (16 * which)));
}

template <typename T>
inline unsigned fma_pair(unsigned x, unsigned y, unsigned z, const T* type) {
  const auto one = [&](int i) { return double(half_of<T>(x, i)) * half_of<T>(y, i) + half_of<T>(z, i); };
  return pack_pair(one(0), one(1), type);
}

inline unsigned and_or(unsigned x, unsigned mask, unsigned bits) {
  return (x & mask) | bits;
}

int atomic_add(int* at, int added);
inline void pause_shortly() {}

/** sum (16, 8) += a (16, 16) b (16, 8), spread over a warp. */
template <typename T>
void mma_m16n8k16(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, const T*);

/** Shared memory by numbers, as instructions address it. It is aligned to 16 bytes and to no more. */
inline unsigned dynamic_shared_memory() {
  return 16;
}
void* shared_pointer(unsigned at);
uint4 load_constant(const void* from);
uint4 load_global(const void* from);
uint4 load_shared(unsigned at);
uint16_t load_shared_bits(unsigned at);
template <typename T>
inline T load_shared_number(unsigned at, const T*) {
  return __builtin_bit_cast(T, load_shared_bits(at));
}
void load_shared(unsigned (&loaded)[1], unsigned at);
void load_shared(unsigned (&loaded)[2], unsigned at);
void store_shared(unsigned at, const float (&four)[4]);
void store_shared(unsigned at, const uint4& four);
void store_shared(unsigned at, unsigned pair);
void store_shared(unsigned at, float number);
void add_shared(float (&sum)[4], unsigned at);

/** Four matrices (8, 8) of 16 bits, whose rows the lanes point at, eight lanes each. */
template <bool TRANSPOSED>
void ldmatrix_x4(unsigned (&made)[4], unsigned at);

/** `written`: zeros behind the bytes too. */
void cp_async(unsigned to, const void* from, int bytes, int written = 16);
inline void cp_async_ahead(unsigned to, const void* from, int bytes) {
  cp_async(to, from, bytes);
}
template <int BYTES>
inline void cp_async_ahead(unsigned to, const void* from) {
  cp_async(to, from, BYTES, BYTES);
}
void cp_async_commit();
void wait_copies(int pending);
template <int PENDING = 0>
inline void cp_async_wait() {
  wait_copies(PENDING);
}

void barrier_init(unsigned at, int count);
void barrier_arrive(unsigned at);
void barrier_expect(unsigned at, int bytes);
void barrier_wait(unsigned at, int parity);
void bulk_copy(unsigned to, const void* from, int bytes, unsigned barrier);

/** A warp writes down a matrix (rows, columns) of 16 bits, of which boxes of 64 columns and `box` rows are copied. */
void make_tensor_map(void* map, unsigned shared, const void* matrix, int rows, int columns, int box, int lane);
void tensor_copy(unsigned to, const void* map, int column, int row, unsigned barrier);
void tensor_copy_to(unsigned ctas, unsigned to, const void* map, int column, int row, unsigned barrier);
void acquire_tensor_map(const void* map);
void tensor_store(const void* map, int column, int row, unsigned from);
void wait_stores(int pending);
template <int PENDING>
inline void tensor_stores_wait() {
  wait_stores(PENDING);
}

void cluster_barrier();
void cluster_arrive();
void cluster_wait();
void bulk_copy_to(int index, unsigned to, unsigned from, int bytes, unsigned barrier);
void barrier_arrive_at(int index, unsigned at);
void load_shared_of(int index, float (&four)[4], unsigned at);

void fence_proxy_async();
template <int REGISTERS>
inline void setmaxnreg_dec() {}
template <int REGISTERS>
inline void setmaxnreg_inc() {}
void wgmma_fence();
void wgmma_commit();
/** sum (64, 2 * SUMS) = a (64, 16) b (2 * SUMS, 16), spread over a warpgroup, or added to it. */
template <int SUMS, typename T>
void wgmma_m64k16(float (&sum)[SUMS], uint64_t a, uint64_t b, bool adds, const T*);
/** sum (64, 2 * SUMS) += a (64, 16) b (2 * SUMS, 16), with `a` in registers. */
template <int SUMS, typename T>
void wgmma_m64k16(float (&sum)[SUMS], const unsigned (&a)[4], uint64_t b, const T*);
/** With b (16, 2 * SUMS), and added or not. */
template <int SUMS, typename T>
void wgmma_m64k16_transposed(float (&sum)[SUMS], const unsigned (&a)[4], uint64_t b, bool adds, const T*);
void wait_products(int pending);
template <int PENDING>
inline void wgmma_wait() {
  wait_products(PENDING);
}
template <int PENDING, int N>
inline void wgmma_wait(float (&)[N]) {
  wait_products(PENDING);
}
