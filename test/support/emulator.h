// A CUDA thread block on a CPU, for the kernels of src/kernels. Each lane is a fibre, and runs until it has to wait
// for others. What the lanes of a warp do together is computed by the last one to arrive, as CUDA defines it.
// Asynchronous copies arrive when they are waited for, and not before; what they copy must not change until then.
// So with asynchronous products: their sums change when they are waited for, and their operands must not until then.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__ static
#define __forceinline__ inline
#define __shared__ static
#define __expf expf

using std::max;
using std::min;

struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    uint32_t all;
    memcpy(&all, &value, 4);
    // Round to nearest, ties to even.
    bits = value != value ? 0x7fc0 : (all + 0x7fff + (all >> 16 & 1)) >> 16;
  }
  operator float() const {
    const uint32_t all = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &all, 4);
    return value;
  }
};

struct __half {
  _Float16 value;
  __half() = default;
  explicit __half(float from) : value(from) {}
  operator float() const {
    return value;
  }
};

static void demand(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "an emulated kernel: %s\n", what);
  abort();
}

// ---- Lanes

struct Index3 {
  int x, y, z;
};

struct Copy {
  unsigned to;
  const void* from;
  int bytes;
  int group; // how many were committed before
  char taken[16]; // what was there when it began
};

/** Of one lane. */
struct Product {
  std::function<void(float*)> compute;
  float* sum;
  int group;
  float begun[128]; // what it was when it began
};

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  Index3 thread;
  bool is_done = false;
  std::vector<Copy> copies;
  std::vector<Product> products;
  int copy_groups = 0, product_groups = 0;
  int lane() const {
    return thread.x % 32;
  }
  int warp() const {
    return thread.x / 32;
  }
};

/** A rendezvous: the last one to arrive does something for all, then they go on. */
struct Meeting {
  int missing;
  long number = 0;
};

static std::vector<Lane> all_lanes;
static std::vector<Meeting> warps;
static Meeting group;
static std::vector<char> shared_memory; // dynamic
static Index3 blockIdx;
static Lane* me;
static ucontext_t scheduler;
#define threadIdx (me->thread)

static void meet(Meeting& meeting, int size, const std::function<void()>& last) {
  const long number = meeting.number;
  meeting.missing -= 1;
  if (meeting.missing == 0) {
    last();
    meeting.missing = size;
    meeting.number += 1;
  } else {
    while (meeting.number == number) swapcontext(&me->context, &scheduler);
  }
}

static void in_warp(const std::function<void()>& last) {
  meet(warps[me->warp()], 32, last);
}

static void __syncthreads() {
  meet(group, all_lanes.size(), [] {});
}

static void __syncwarp() {
  in_warp([] {});
}

static std::function<void()> entry;

static void begin() {
  entry();
  me->is_done = true;
  swapcontext(&me->context, &scheduler);
}

static void run_group(int threads, int shared) {
  all_lanes = std::vector<Lane>(threads);
  warps.assign(threads / 32, {32});
  group = {threads};
  shared_memory.assign(shared, char(0xff)); // NaN
  for (int i = 0; i < threads; i++) {
    Lane& lane = all_lanes[i];
    lane.thread = {i, 0, 0};
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    makecontext(&lane.context, begin, 0);
  }
  // A warp may run far ahead of the others; the last one runs first.
  for (int left = threads; left > 0;) {
    const int before = left;
    long met = group.number;
    for (int i = threads - 1; i >= 0; i--) {
      if (all_lanes[i].is_done) continue;
      me = &all_lanes[i];
      const long number = warps[me->warp()].number;
      swapcontext(&scheduler, &me->context);
      left -= me->is_done;
      met += warps[me->warp()].number - number;
    }
    demand(left < before || met + group.number > 0, "deadlock: all its lanes wait");
  }
  for (const Lane& lane : all_lanes) {
    demand(lane.copies.empty(), "copies were never waited for");
    demand(lane.products.empty(), "products were never waited for");
  }
}

static void launch(Index3 groups, int threads, int shared, std::function<void()> kernel) {
  entry = std::move(kernel);
  for (int z = 0; z < groups.z; z++)
    for (int y = 0; y < groups.y; y++)
      for (int x = 0; x < groups.x; x++) {
        blockIdx = {x, y, z};
        run_group(threads, shared);
      }
}

/** A copy of an array, aligned to 16 bytes, that ends at a page which must not be touched. */
class Guarded {
 public:
  void take(const void* from, size_t bytes) {
    constexpr size_t PAGE = 4096;
    size_ = bytes;
    mapped_ = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    demand(memory != MAP_FAILED, "no memory");
    memory_ = static_cast<char*>(memory);
    mprotect(memory_ + mapped_ - PAGE, PAGE, PROT_NONE);
    data_ = memory_ + mapped_ - PAGE - (bytes + 15) / 16 * 16;
    memcpy(data_, from, bytes);
  }

  void give_back(void* to) {
    memcpy(to, data_, size_);
    munmap(memory_, mapped_);
  }

  void* data() {
    return data_;
  }

 private:
  char* memory_;
  char* data_;
  size_t size_, mapped_;
};

// ---- Instructions

/** A value of each lane of a warp, visible to all of them. */
template <typename T>
struct Shared {
  T of[32][32];
  T& mine() {
    return of[me->warp()][me->lane()];
  }
  T& at(int lane) {
    return of[me->warp()][lane];
  }
};

static float from_lane(float x, int lane) {
  static Shared<float> shared;
  shared.mine() = x;
  in_warp([] {});
  const float found = shared.at(lane);
  in_warp([] {});
  return found;
}

static float __shfl_xor_sync(unsigned, float x, int mask) {
  return from_lane(x, me->lane() ^ mask);
}

static float __shfl_sync(unsigned, float x, int lane) {
  return from_lane(x, lane);
}

static int atomic_add(int* at, int added) {
  const int before = *at;
  *at += added;
  return before;
}

static float rsqrtf(float x) {
  return 1 / sqrtf(x);
}

static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = x | uint64_t(y) << 32;
  unsigned made = 0;
  for (int i = 0; i < 4; i++) made |= unsigned(both >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
  return made;
}

template <typename T>
static float half_of(unsigned pair, int which) {
  const uint16_t bits = pair >> (16 * which);
  T value;
  memcpy(&value, &bits, 2);
  return value;
}

template <typename T>
static unsigned pack_pair(float low, float high, const T*) {
  const T both[2] = {T(low), T(high)};
  unsigned pair;
  memcpy(&pair, both, 4);
  return pair;
}

template <typename T>
static unsigned fma_pair(unsigned x, unsigned y, unsigned z, const T* type) {
  const auto one = [&](int i) {
    return double(half_of<T>(x, i)) * half_of<T>(y, i) + half_of<T>(z, i);
  };
  return pack_pair(one(0), one(1), type);
}

struct Operands {
  unsigned a[4], b[2];
  float sum[4];
};

/** sum (16, 8) += a (16, 16) b (16, 8), spread over a warp. */
template <typename T>
static void mma_m16n8k16(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
    const T*) {
  static Shared<Operands> shared;
  Operands& mine = shared.mine();
  mine = {{a0, a1, a2, a3}, {b0, b1}, {}};
  memcpy(mine.sum, sum, sizeof(sum));
  in_warp([] {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
      const Operands& its = shared.at(lane);
      const int row = lane / 4, column = lane % 4 * 2;
      for (int i = 0; i < 8; i++)
        a[row + i / 2 % 2 * 8][column + i % 2 + i / 4 * 8] = half_of<T>(its.a[i / 2], i % 2);
      for (int i = 0; i < 4; i++) b[column + i % 2 + i / 2 * 8][row] = half_of<T>(its.b[i / 2], i % 2);
    }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
          shared.at(lane).sum[i] += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
  });
  memcpy(sum, mine.sum, sizeof(sum));
  in_warp([] {});
}

/** It is aligned to 16 bytes and to no more. */
static unsigned dynamic_shared_memory() {
  return 16;
}

static char* in_shared_memory(unsigned at, unsigned bytes = 16) {
  const unsigned first = dynamic_shared_memory(), end = first + shared_memory.size();
  demand(at % bytes == 0 && at >= first && at + bytes <= end, "an address outside its dynamic shared memory");
  return shared_memory.data() + (at - first);
}

/** Takes those that are waited for from what is under way: all but the last PENDING groups. */
template <int PENDING, typename Each>
static std::vector<Each> take_groups(std::vector<Each>& under_way, int groups) {
  const auto is_later = [&](const Each& each) { return each.group >= groups - PENDING; };
  const auto later = std::find_if(under_way.begin(), under_way.end(), is_later);
  const std::vector<Each> done(under_way.begin(), later);
  under_way.erase(under_way.begin(), later);
  return done;
}

static void cp_async(unsigned to, const void* from, int bytes) {
  demand(bytes == 0 || reinterpret_cast<uintptr_t>(from) % 16 == 0, "a copy from an unaligned address");
  Copy copy = {to, from, bytes, me->copy_groups};
  memcpy(copy.taken, from, bytes);
  me->copies.push_back(copy);
}

static void cp_async_commit() {
  me->copy_groups += 1;
}

template <int PENDING = 0>
static void cp_async_wait() {
  for (const auto& [to, from, bytes, group, taken] : take_groups<PENDING>(me->copies, me->copy_groups)) {
    demand(memcmp(taken, from, bytes) == 0, "what was being copied was written to");
    memset(in_shared_memory(to), 0, 16);
    memcpy(in_shared_memory(to), from, bytes);
  }
}

static void* shared_pointer(unsigned at) {
  return in_shared_memory(at);
}

static uint4 load_constant(const void* from) {
  uint4 loaded;
  memcpy(&loaded, from, 16);
  return loaded;
}

static uint4 load_shared(unsigned at) {
  uint4 read;
  memcpy(&read, in_shared_memory(at), 16);
  return read;
}

static void store_shared(unsigned at, const float (&four)[4]) {
  memcpy(in_shared_memory(at), four, 16);
}

static void store_shared(unsigned at, const uint4& four) {
  memcpy(in_shared_memory(at), &four, 16);
}

static void store_shared(unsigned at, unsigned pair) {
  memcpy(in_shared_memory(at, 4), &pair, 4);
}

static void add_shared(float (&sum)[4], unsigned at) {
  float four[4];
  memcpy(four, in_shared_memory(at), 16);
  for (int i = 0; i < 4; i++) sum[i] += four[i];
}

static float __fdividef(float x, float y) {
  return x / y;
}

struct Matrices {
  unsigned at, made[4];
};

/** Four matrices (8, 8) of 16 bits, whose rows the lanes point at, eight lanes each. */
template <bool TRANSPOSED>
static void ldmatrix_x4(unsigned (&made)[4], unsigned at) {
  static Shared<Matrices> shared;
  shared.mine().at = at;
  in_warp([] {
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        uint16_t both[2];
        for (int e = 0; e < 2; e++) {
          const int row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4;
          const int column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
          memcpy(&both[e], in_shared_memory(shared.at(i * 8 + row).at) + column * 2, 2);
        }
        memcpy(&shared.at(lane).made[i], both, 4);
      }
  });
  memcpy(made, shared.mine().made, sizeof(made));
  in_warp([] {});
}

static float ex2_approx(float x) {
  return exp2f(x);
}

// ---- Products of warpgroups

static void fence_proxy_async() {}

static void wgmma_fence() {}

static void wgmma_commit() {
  me->product_groups += 1;
}

/** 16 numbers of one row of an operand: lines of 128 bytes, swizzled over 8 of them. */
template <typename T>
static void read_operand(float (&made)[16], uint64_t descriptor, int row) {
  demand(descriptor >> 62 == 1, "an operand that is not swizzled over 128 bytes");
  const unsigned start = (descriptor & 0x3fff) << 4, apart = (descriptor >> 32 & 0x3fff) << 4;
  for (int half = 0; half < 2; half++) {
    const unsigned at = start + row / 8 * apart + row % 8 * 128 + half * 16;
    T numbers[8];
    memcpy(numbers, in_shared_memory(at ^ (at >> 7 & 7) << 4), 16);
    for (int i = 0; i < 8; i++) made[half * 8 + i] = numbers[i];
  }
}

/** sum (64, 256) += a (64, 16) b (256, 16), spread over a warpgroup: each lane computes its own. */
template <typename T>
static void wgmma_m64n256k16(float (&sum)[128], uint64_t a, uint64_t b, const T*) {
  const int row = me->warp() % 4 * 16 + me->lane() / 4, column = me->lane() % 4 * 2;
  const auto compute = [=](float* made) {
    float rows[2][16], other[16];
    for (int r = 0; r < 2; r++) read_operand<T>(rows[r], a, row + r * 8);
    for (int i = 0; i < 64; i++) {
      read_operand<T>(other, b, i / 2 * 8 + column + i % 2);
      for (int r = 0; r < 2; r++) {
        float dot = 0;
        for (int k = 0; k < 16; k++) dot += rows[r][k] * other[k];
        made[i / 2 * 4 + r * 2 + i % 2] = dot;
      }
    }
  };
  Product product = {compute, sum, me->product_groups};
  compute(product.begun);
  me->products.push_back(product);
}

template <int PENDING, int N>
static void wgmma_wait(float (&)[N]) {
  for (const Product& product : take_groups<PENDING>(me->products, me->product_groups)) {
    float made[128];
    product.compute(made);
    demand(memcmp(made, product.begun, sizeof(made)) == 0, "what was being multiplied was written to");
    for (int i = 0; i < 128; i++) product.sum[i] += made[i];
  }
}
