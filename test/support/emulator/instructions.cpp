// CUDA's instructions of src/kernels on a CPU. What the lanes of a warp do together is computed by the last one to
// arrive, as CUDA defines it. Asynchronous copies arrive when they are waited for, and not before; what they copy must
// not change until then, and what they write must not be touched. So with asynchronous products: their sums change when
// they are waited for, and their operands must not until then. What these read of shared memory must have been fenced
// by the lane that wrote it, and registers by their own.
#include <algorithm>
#include <cstring>

#include "cuda.h"
#include "lanes.h"
#include "memory.h"

namespace {
char* in_shared_memory(unsigned at, unsigned bytes = 16) {
  const unsigned first = dynamic_shared_memory();
  if (at % bytes != 0 || at < first || at + bytes > first + dynamic_bytes)
    fault("lane %d addresses byte %d of its dynamic shared memory, %u at once", me->index, int(at - first), bytes);
  return me->group->dynamic_memory + (at - first);
}

/** The same, which this lane reads or writes there. */
char* touched(unsigned at, Access access, unsigned bytes = 16) {
  char* const found = in_shared_memory(at, bytes);
  touch(found, bytes, access);
  return found;
}

/** Takes those that are waited for from what is under way: all but the last `pending` groups. */
template <typename Each>
std::vector<Each> take_groups(std::vector<Each>& under_way, int groups, int pending) {
  const auto is_later = [&](const Each& each) { return each.group >= groups - pending; };
  const auto later = std::find_if(under_way.begin(), under_way.end(), is_later);
  const std::vector<Each> done(under_way.begin(), later);
  under_way.erase(under_way.begin(), later);
  return done;
}

struct Operands {
  unsigned a[4], b[2];
  float sum[4];
};

struct Matrices {
  unsigned at, made[4];
};

/** Where 8 numbers of an operand are: of line `line` of a panel, whose lines of 128 bytes are swizzled over 8 of them. */
unsigned pack_at(uint64_t descriptor, int panel, int line, int pack) {
  if (descriptor >> 62 != 1) fault("an operand is not swizzled over 128 bytes");
  const unsigned start = (descriptor & 0x3fff) << 4;
  const unsigned panels = (descriptor >> 16 & 0x3fff) << 4, eights = (descriptor >> 32 & 0x3fff) << 4;
  const unsigned at = start + panel * panels + line / 8 * eights + line % 8 * 128 + pack * 16;
  return at ^ (at >> 7 & 7) << 4;
}

/** 16 numbers of each row, in two packs of its line. */
template <typename T>
void read_row(float (&made)[16], uint64_t descriptor, int row) {
  for (int i = 0; i < 16; i++) {
    T number;
    memcpy(&number, in_shared_memory(pack_at(descriptor, 0, row, i / 8)) + i % 8 * 2, 2);
    made[i] = number;
  }
}

/** A column of 16 lines. */
template <typename T>
void read_column(float (&made)[16], uint64_t descriptor, int column) {
  for (int i = 0; i < 16; i++) {
    T number;
    memcpy(&number, in_shared_memory(pack_at(descriptor, column / 64, i, column / 8 % 8)) + column % 8 * 2, 2);
    made[i] = number;
  }
}

/** This lane's part of what its warp reads of the operands: 16 rows of the one, and all of the other. */
void touch_operands(const Product& product) {
  const int lane = me->in_warp(), columns = product.sums * 2;
  if (!product.registers)
    touched(pack_at(product.a, 0, me->index / 32 % 4 * 16 + lane / 2, lane % 2), Access::MULTIPLY);
  for (int i = lane; i < columns * 2; i += 32) {
    const unsigned at = product.is_transposed ? pack_at(product.b, i / 128, i / 8 % 16, i % 8)
                                              : pack_at(product.b, 0, i / 2, i % 2);
    touched(at, Access::MULTIPLY);
  }
}

/** What a lane has of a product: 64 rows, two columns of sums each. */
template <typename T>
void compute_product(float* made, const Product& product) {
  const int row = me->index / 32 % 4 * 16 + me->in_warp() / 4, column = me->in_warp() % 4 * 2;
  float rows[2][16], other[16];
  memcpy(rows, product.rows, sizeof(rows));
  for (int r = 0; r < 2 && !product.registers; r++) read_row<T>(rows[r], product.a, row + r * 8);
  for (int i = 0; i < product.sums / 2; i++) {
    const int at = i / 2 * 8 + column + i % 2;
    if (product.is_transposed) read_column<T>(other, product.b, at);
    else read_row<T>(other, product.b, at);
    for (int r = 0; r < 2; r++) {
      float dot = 0;
      for (int k = 0; k < 16; k++) dot += rows[r][k] * other[k];
      made[i / 2 * 4 + r * 2 + i % 2] = dot;
    }
  }
}

/** What a lane brings into a product of its warpgroup. */
struct Brought {
  uint64_t a, b;
  unsigned registers[4];
};

/** For all the lanes of a warp, which must agree. */
template <typename T>
void begin_product(Product product) {
  static Exchange<Brought> exchange;
  Brought* const all = exchange.begin();
  Brought& mine = all[me->in_warp()];
  mine = {product.a, product.b, {}};
  if (product.registers) memcpy(mine.registers, product.registers, sizeof(mine.registers));
  in_warp("wgmma", [] {});
  if (mine.a != all[0].a || mine.b != all[0].b)
    fault("lane %d multiplies other operands than the first of its warp", me->index);
  if (!me->has_fenced) fault("lane %d multiplies with registers that it has not fenced", me->index);
  for (int i = 0; i < 32 && product.registers; i++) {
    const Brought& its = all[me->in_warp() / 4 * 4 + i / 8];
    product.rows[i / 2 % 2][i / 8 * 2 + i % 2 + i / 4 % 2 * 8] = half_of<T>(its.registers[i / 2 % 4], i % 2);
  }
  memcpy(product.taken, mine.registers, sizeof(product.taken));
  product.compute = compute_product<T>;
  product.group = me->product_groups;
  touch_operands(product);
  product.compute(product.begun, product);
  me->products.push_back(product);
}
} // namespace

int atomic_add(int* at, int added) {
  touch(at, 4, Access::ATOMIC);
  const int before = *at;
  *at += added;
  return before;
}

template <typename T>
void mma_m16n8k16(
    float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, const T*) {
  static Exchange<Operands> exchange;
  Operands* const all = exchange.begin();
  Operands& mine = all[me->in_warp()];
  mine = {{a0, a1, a2, a3}, {b0, b1}, {}};
  memcpy(mine.sum, sum, sizeof(sum));
  in_warp("mma_m16n8k16", [all] {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
      const Operands& its = all[lane];
      const int row = lane / 4, column = lane % 4 * 2;
      for (int i = 0; i < 8; i++)
        a[row + i / 2 % 2 * 8][column + i % 2 + i / 4 * 8] = half_of<T>(its.a[i / 2], i % 2);
      for (int i = 0; i < 4; i++) b[column + i % 2 + i / 2 * 8][row] = half_of<T>(its.b[i / 2], i % 2);
    }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
          all[lane].sum[i] += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
  });
  memcpy(sum, mine.sum, sizeof(sum));
}

void* shared_pointer(unsigned at) {
  return in_shared_memory(at);
}

uint4 load_constant(const void* from) {
  touch(from, 16, Access::READ);
  uint4 loaded;
  memcpy(&loaded, from, 16);
  return loaded;
}

uint4 load_global(const void* from) {
  return load_constant(from);
}

uint4 load_shared(unsigned at) {
  uint4 read;
  memcpy(&read, touched(at, Access::READ), 16);
  return read;
}

void load_shared(unsigned (&loaded)[1], unsigned at) {
  memcpy(loaded, touched(at, Access::READ, 4), 4);
}

void load_shared(unsigned (&loaded)[2], unsigned at) {
  memcpy(loaded, touched(at, Access::READ, 8), 8);
}

void store_shared(unsigned at, const float (&four)[4]) {
  memcpy(touched(at, Access::WRITE), four, 16);
}

void store_shared(unsigned at, const uint4& four) {
  memcpy(touched(at, Access::WRITE), &four, 16);
}

void store_shared(unsigned at, unsigned pair) {
  memcpy(touched(at, Access::WRITE, 4), &pair, 4);
}

void store_shared(unsigned at, float number) {
  memcpy(touched(at, Access::WRITE, 4), &number, 4);
}

void add_shared(float (&sum)[4], unsigned at) {
  float four[4];
  memcpy(four, touched(at, Access::READ), 16);
  for (int i = 0; i < 4; i++) sum[i] += four[i];
}

void load_shared_of(int index, float (&four)[4], unsigned at) {
  if (index < 0 || index >= group_count) fault("lane %d reads of group %d of its cluster", me->index, index);
  Group& other = groups[index];
  const char* const from = other.dynamic_memory + (in_shared_memory(at) - me->group->dynamic_memory);
  if (other.has_ended && &other != me->group)
    fault("lane %d reads shared memory of group %d of its cluster, which ends", me->index, index);
  touch_of(other, from, 16);
  keep_until_read(other);
  memcpy(four, from, 16);
}

template <bool TRANSPOSED>
void ldmatrix_x4(unsigned (&made)[4], unsigned at) {
  static Exchange<Matrices> exchange;
  Matrices* const all = exchange.begin();
  touched(at, Access::READ);
  all[me->in_warp()].at = at;
  in_warp("ldmatrix_x4", [all] {
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        uint16_t both[2];
        for (int e = 0; e < 2; e++) {
          const int row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4;
          const int column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
          memcpy(&both[e], in_shared_memory(all[i * 8 + row].at) + column * 2, 2);
        }
        memcpy(&all[lane].made[i], both, 4);
      }
  });
  memcpy(made, all[me->in_warp()].made, sizeof(made));
}

void cp_async(unsigned to, const void* from, int bytes, int written) {
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % written != 0)
    fault("lane %d copies from an unaligned address", me->index);
  if (bytes > 0) touch(from, bytes, Access::READ);
  touched(to, Access::BEGIN_COPY, written);
  Copy copy = {to, from, bytes, written, me->copy_groups, {}};
  memcpy(copy.taken, from, bytes);
  me->copies.push_back(copy);
}

void cp_async_commit() {
  me->copy_groups += 1;
}

void wait_copies(int pending) {
  for (const auto& [to, from, bytes, written, group, taken] : take_groups(me->copies, me->copy_groups, pending)) {
    if (memcmp(taken, from, bytes) != 0) fault("what lane %d was copying was written to", me->index);
    char* const place = touched(to, Access::END_COPY, written);
    memset(place, 0, written);
    memcpy(place, from, bytes);
  }
}

uint16_t load_shared_bits(unsigned at) {
  uint16_t bits;
  memcpy(&bits, touched(at, Access::READ, 2), 2);
  return bits;
}

// ---- Copies that barriers count

namespace {
/** Barriers of one address in all groups of a cluster. */
CountingBarrier& barrier_of(Group& group, unsigned at) {
  in_shared_memory(at, 8);
  const auto found = group.barriers.find(at);
  if (found == group.barriers.end())
    fault("lane %d uses a barrier of group %td of its cluster that was never made", me->index, &group - groups);
  return found->second;
}

CountingBarrier& barrier_at(unsigned at) {
  return barrier_of(*me->group, at);
}

void complete(CountingBarrier& barrier, Group& owner) {
  order_group(owner);
  for (const auto& [to, from, of, taken] : barrier.copies) {
    if (of && of->has_ended) fault("lane %d waits for a copy from group %td of its cluster, which ends", me->index, of - groups);
    if (memcmp(taken.data(), from, taken.size()) != 0) fault("what lane %d was copying was written to", me->index);
    char* const place = in_shared_memory(to);
    touch(place, taken.size(), Access::END_BULK_COPY);
    memcpy(place, from, taken.size());
  }
  for (int i = 0; i < group_count; i++) owner.known[i] = std::max(owner.known[i], barrier.arrived[i]);
  barrier.copies.clear();
  barrier.left = barrier.count;
  barrier.expected = barrier.asked = 0;
  barrier.completed += 1;
  barrier.number += 1;
  order_group(owner);
}

bool can_complete(const CountingBarrier& barrier) {
  return barrier.left == 0 && barrier.asked == barrier.expected;
}

void arrive(CountingBarrier& barrier, Group& owner) {
  if (barrier.left == 0) fault("lane %d arrives at a barrier where all have arrived", me->index);
  barrier.left -= 1;
  if (!can_complete(barrier)) return;
  // Copies arrive as late as they may, when they are waited for.
  if (barrier.copies.empty()) complete(barrier, owner);
  else barrier.number += 1;
}

Group& other_group(int index, const char* does) {
  if (index < 0 || index >= group_count) fault("lane %d %s group %d of its cluster", me->index, does, index);
  if (groups[index].has_ended && &groups[index] != me->group)
    fault("lane %d %s group %d of its cluster, which ends", me->index, does, index);
  return groups[index];
}

void begin_bulk_copy(Group& group, unsigned to, const char* from, int bytes, const Group* of, CountingBarrier& barrier) {
  in_shared_memory(to + bytes - 16);
  char* const own = in_shared_memory(to);
  if (&group == me->group) touch(own, bytes, Access::BEGIN_COPY);
  else begin_copy_of(group, group.dynamic_memory + (own - me->group->dynamic_memory), bytes);
  barrier.copies.push_back({to, from, of, std::vector<char>(from, from + bytes)});
  barrier.asked += bytes;
}

/** After all that an instruction has asked for. */
void tell_waiting(CountingBarrier& barrier) {
  if (can_complete(barrier)) barrier.number += 1;
}

/** In the first of 128 bytes. */
struct TensorMap {
  char* matrix;
  int rows, columns, box;
};

TensorMap read_map(const void* at) {
  TensorMap map;
  touch(at, 128, Access::READ);
  memcpy(&map, at, sizeof(map));
  return map;
}

/** Where pack `i` of 16 bytes of a box is in the matrix, if it is. */
char* pack_in(const TensorMap& map, int column, int row, int i) {
  const int line = row + i / 8, first = column + i % 8 * 8;
  const bool is_there = line >= 0 && line < map.rows && first >= 0 && first < map.columns;
  return is_there ? map.matrix + (long(line) * map.columns + first) * 2 : nullptr;
}

/** And in the shared memory that the box begins at, swizzled over 128 bytes. */
unsigned pack_of_box(unsigned box, int i) {
  const unsigned at = box + i * 16;
  return at ^ (at >> 7 & 7) << 4;
}
} // namespace

void barrier_init(unsigned at, int count) {
  touched(at, Access::WRITE, 8);
  CountingBarrier& barrier = me->group->barriers[at];
  barrier.operation = "a barrier of shared memory";
  barrier.count = barrier.left = count;
}

void barrier_arrive(unsigned at) {
  arrive(barrier_at(at), *me->group);
}

void barrier_arrive_at(int index, unsigned at) {
  Group& other = other_group(index, "arrives at");
  CountingBarrier& barrier = barrier_of(other, at);
  if (&other != me->group) {
    order_group(*me->group);
    barrier.arrived[me->group - groups] = me->group->epochs.shared;
  }
  arrive(barrier, other);
}

void barrier_expect(unsigned at, int bytes) {
  barrier_at(at).expected += bytes;
  barrier_arrive(at);
}

void barrier_wait(unsigned at, int parity) {
  CountingBarrier& barrier = barrier_at(at);
  while (barrier.completed % 2 == parity) {
    if (can_complete(barrier)) complete(barrier, *me->group);
    else wait_for(barrier, barrier.number);
  }
}

void bulk_copy(unsigned to, const void* from, int bytes, unsigned at) {
  CountingBarrier& barrier = barrier_at(at);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0)
    fault("lane %d copies %d bytes from an unaligned address", me->index, bytes);
  touch(from, bytes, Access::READ);
  begin_bulk_copy(*me->group, to, static_cast<const char*>(from), bytes, nullptr, barrier);
  tell_waiting(barrier);
}

void bulk_copy_to(int index, unsigned to, unsigned from, int bytes, unsigned at) {
  Group& other = other_group(index, "copies to");
  CountingBarrier& barrier = barrier_of(other, at);
  if (bytes % 16 != 0) fault("lane %d copies %d bytes", me->index, bytes);
  in_shared_memory(from + bytes - 16);
  const char* const source = in_shared_memory(from);
  // Copies read shared memory as products do.
  touch(source, bytes, Access::MULTIPLY);
  begin_bulk_copy(other, to, source, bytes, me->group, barrier);
  tell_waiting(barrier);
}

void make_tensor_map(void* map, unsigned shared, const void* matrix, int rows, int columns, int box, int lane) {
  if (lane != me->in_warp()) fault("lane %d of its warp says that it is lane %d", me->in_warp(), lane);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) fault("lane %d puts a map at an unaligned address", me->index);
  if (box < 1 || box > 256 || columns % 8 != 0) fault("lane %d maps boxes of %d rows of %d columns", me->index, box, columns);
  in_shared_memory(shared, 128);
  touched(shared + lane * 4, Access::WRITE, 4);
  touch(static_cast<char*>(map) + lane * 4, 4, Access::WRITE);
  in_warp("make_tensor_map", [&] {
    const TensorMap made = {static_cast<char*>(const_cast<void*>(matrix)), rows, columns, box};
    memcpy(map, &made, sizeof(made));
    me->warp().epochs.advance(ORDERS_DEVICE | ORDERS_SHARED);
  });
}

void tensor_copy_to(unsigned to_groups, unsigned to, const void* at, int column, int row, unsigned barrier) {
  const TensorMap map = read_map(at);
  if (to % 128 != 0) fault("lane %d copies a box to byte %u of its shared memory", me->index, to);
  for (int index = 0; to_groups >> index; index++) {
    if (!(to_groups >> index & 1)) continue;
    Group& group = other_group(index, "copies to");
    CountingBarrier& counted = barrier_of(group, barrier);
    for (int i = 0; i < map.box * 8; i++) {
      static const char zeros[16] = {};
      const char* const there = pack_in(map, column, row, i);
      const char* const from = there ? there : zeros;
      touch(from, 16, Access::READ);
      begin_bulk_copy(group, pack_of_box(to, i), from, 16, nullptr, counted);
    }
    tell_waiting(counted);
  }
}

void tensor_copy(unsigned to, const void* map, int column, int row, unsigned barrier) {
  tensor_copy_to(1u << (me->group - groups), to, map, column, row, barrier);
}

void acquire_tensor_map(const void* map) {
  touch(map, 128, Access::READ);
}

void tensor_store(const void* at, int column, int row, unsigned from) {
  const TensorMap map = read_map(at);
  if (from % 128 != 0) fault("lane %d stores a box of byte %u of its shared memory", me->index, from);
  Store store;
  for (int i = 0; i < map.box * 8; i++) {
    StoredPack pack = {pack_of_box(from, i), pack_in(map, column, row, i), {}};
    // It reads shared memory as products do.
    memcpy(pack.taken, touched(pack.from, Access::MULTIPLY), 16);
    store.push_back(pack);
  }
  me->stores.push_back(store);
}

void wait_stores(int pending) {
  while (int(me->stores.size()) > pending) {
    for (const auto& [from, to, taken] : me->stores.front()) {
      if (memcmp(touched(from, Access::MULTIPLY), taken, 16) != 0) fault("what lane %d was storing was written to", me->index);
      if (!to) continue;
      touch(to, 16, Access::WRITE);
      memcpy(to, taken, 16);
    }
    me->stores.erase(me->stores.begin());
  }
}

// ---- Products of warpgroups

void fence_proxy_async() {
  me->fenced_writes = write_count;
}

void wgmma_fence() {
  me->has_fenced = true;
}

void wgmma_commit() {
  me->product_groups += 1;
}

template <int SUMS, typename T>
void wgmma_m64k16(float (&sum)[SUMS], uint64_t a, uint64_t b, bool adds, const T*) {
  begin_product<T>({.a = a, .b = b, .sum = sum, .sums = SUMS, .adds = adds});
}

template <int SUMS, typename T>
void wgmma_m64k16(float (&sum)[SUMS], const unsigned (&a)[4], uint64_t b, const T*) {
  begin_product<T>({.b = b, .registers = a, .sum = sum, .sums = SUMS, .adds = true});
}

template <int SUMS, typename T>
void wgmma_m64k16_transposed(float (&sum)[SUMS], const unsigned (&a)[4], uint64_t b, bool adds, const T*) {
  begin_product<T>({.b = b, .registers = a, .is_transposed = true, .sum = sum, .sums = SUMS, .adds = adds});
}

void wait_products(int pending) {
  me->has_fenced = false;
  for (const Product& product : take_groups(me->products, me->product_groups, pending)) {
    float made[128];
    touch_operands(product);
    product.compute(made, product);
    const bool is_same = memcmp(made, product.begun, product.sums * sizeof(float)) == 0;
    if (!is_same || (product.registers && memcmp(product.registers, product.taken, sizeof(product.taken)) != 0))
      fault("what lane %d was multiplying was written to", me->index);
    for (int i = 0; i < product.sums; i++) product.sum[i] = made[i] + (product.adds ? product.sum[i] : 0);
  }
  in_warp("wgmma_wait", [] {});
}

#define PRODUCTS_OF(SUMS, TYPE) \
  template void wgmma_m64k16(float (&)[SUMS], uint64_t, uint64_t, bool, const TYPE*); \
  template void wgmma_m64k16(float (&)[SUMS], const unsigned (&)[4], uint64_t, const TYPE*); \
  template void wgmma_m64k16_transposed(float (&)[SUMS], const unsigned (&)[4], uint64_t, bool, const TYPE*);
#define OF(TYPE) \
  template void mma_m16n8k16( \
      float (&)[4], unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, const TYPE*); \
  PRODUCTS_OF(16, TYPE) \
  PRODUCTS_OF(32, TYPE) \
  PRODUCTS_OF(48, TYPE) \
  PRODUCTS_OF(64, TYPE) \
  PRODUCTS_OF(96, TYPE) \
  PRODUCTS_OF(128, TYPE)
OF(Bfloat16)
OF(Float16)
template void ldmatrix_x4<false>(unsigned (&)[4], unsigned);
template void ldmatrix_x4<true>(unsigned (&)[4], unsigned);
