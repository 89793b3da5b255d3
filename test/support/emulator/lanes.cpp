// A group of threads on a CPU, or those of a cluster. Each lane is a fibre, and runs until it has to wait for others; a
// warp may run far ahead of the others, and the last one runs first.
#include "lanes.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "kernel.h"
#include "memory.h"

Lane* me;
std::vector<Lane> lanes(MOST_LANES);
Warp warps[MOST_LANES / 32];
Group groups[MOST_GROUPS];
int group_count;
uint32_t cluster_writes;
unsigned dynamic_bytes;

namespace {
constexpr size_t STACK = 256 << 10;

int threads; // of a group
/** How often barriers have ordered memory, those of any group; and where those of a cluster meet. */
Epochs latest;
Meeting cluster;
/** Whether launches begin while the ones before them still run. */
bool overlaps;
/** Whether lanes run in their order, each as far as it can. Otherwise they take turns, the last one first. */
bool in_order;
jmp_buf scheduler;
const char* kernel_name;
char message[1024];
const Group* told_by;
void (*enter_kernel)(void**);
void** arguments;

char* stacks() {
  static char* const all = static_cast<char*>(mmap(
      nullptr, MOST_LANES * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return all;
}

/** A fibre runs the kernel for one group after the other. */
void begin() {
  for (;;) {
    enter_kernel(arguments);
    if (me->met <= me->group->read_until)
      fault("lane %d ends, and another group of its cluster may still read its shared memory", me->index);
    me->is_done = me->group->has_ended = true;
    if (_setjmp(me->context) == 0) _longjmp(scheduler, 1);
  }
}

/** Contexts are slow, and needed to get onto a stack for the first time only. */
void resume(Lane& lane) {
  me = &lane;
  show_shared_memory(lane.group - groups);
  if (_setjmp(scheduler) == 0) {
    if (lane.is_started) _longjmp(lane.context, 1);
    lane.is_started = true;
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks() + lane.index * STACK;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, begin, 0);
    setcontext(&context);
  }
  me = nullptr;
}

void expect_ended() {
  if (const char* const name = find_changed())
    snprintf(message, sizeof(message), "a race: it writes to %s what another group has used, and not the same", name);
  for (int i = 0; i < threads * group_count && !*message; i++) {
    if (!lanes[i].copies.empty()) snprintf(message, sizeof(message), "lane %d never waited for its copies", i);
    if (!lanes[i].products.empty()) snprintf(message, sizeof(message), "lane %d never waited for its products", i);
    if (!lanes[i].stores.empty()) snprintf(message, sizeof(message), "lane %d never waited for its stores", i);
  }
  for (int i = 0; i < group_count && !*message; i++)
    for (const auto& [at, barrier] : groups[i].barriers)
      if (!barrier.copies.empty()) snprintf(message, sizeof(message), "nobody waited for the copies of a barrier");
}

/** Of the lanes that have not ended: one that waits, and for what. */
void tell_deadlock(int left) {
  for (const Lane& lane : lanes) {
    if (lane.is_done) continue;
    snprintf(
        message, sizeof(message), "lane %d waits at %s for lanes that never come there; %d of %d have ended",
        lane.index, lane.waits_for->operation, threads * group_count - left, threads * group_count);
    return;
  }
}

void run_groups() {
  const int all = threads * group_count;
  for (int i = 0; i < all; i++) {
    Lane& lane = lanes[i];
    lane.index = i;
    lane.group = &groups[i / threads];
    lane.is_done = false;
    lane.has_waited = !overlaps;
    lane.arrived = -1;
    lane.met = cluster.number;
    lane.waits_for = nullptr;
    lane.copies.clear();
    lane.products.clear();
    lane.stores.clear();
    lane.copy_groups = lane.product_groups = 0;
    lane.fenced_writes = 0;
    lane.has_fenced = false;
  }
  for (int w = 0; w < all / 32; w++) warps[w] = {};
  cluster.missing = 0;
  for (int left = all; left > 0;) {
    bool is_stuck = true;
    for (int i = 0; i < all; i++) {
      Lane& lane = lanes[in_order ? i : all - 1 - i];
      if (lane.is_done || (lane.waits_for && lane.waits_for->number == lane.waits_until)) continue;
      is_stuck = false;
      resume(lane);
      if (*message) return;
      left -= lane.is_done;
      if (in_order) break;
    }
    if (is_stuck) return tell_deadlock(left);
  }
  expect_ended();
}

void advance(Group& group, int order) {
  latest.advance(order);
  if (order & ORDERS_DEVICE) group.epochs.device = latest.device;
  if (order & ORDERS_SHARED) group.epochs.shared = latest.shared;
}

/** The group, or the first of its cluster, begins. */
void begin_groups(unsigned x, unsigned y, unsigned z) {
  for (int i = 0; i < group_count; i++) {
    Group& group = groups[i];
    group.x = x + i;
    group.y = y;
    group.z = z;
    group.missing = 0;
    group.has_ended = false;
    group.read_until = -1;
    memset(group.known, 0, sizeof(group.known));
    group.barriers.clear();
    advance(group, ORDERS_DEVICE | ORDERS_SHARED);
    group.first = group.epochs;
    memset(group.dynamic_memory, 0xff, dynamic_bytes); // NaN
  }
  cluster_writes = 0;
}
} // namespace

void Epochs::advance(int order) {
  if (order & ORDERS_DEVICE) device += 1;
  if (order & ORDERS_SHARED) shared += 1;
}

void fault(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof(message), format, values);
  told_by = me->group;
  va_end(values);
  _longjmp(scheduler, 1);
}

void wait_for(const Meeting& meeting, long number) {
  me->waits_for = &meeting;
  me->waits_until = number;
  if (_setjmp(me->context) == 0) _longjmp(scheduler, 1);
}

void await_inputs() {
  me->has_waited = true;
}

void group_barrier(int order) {
  meet(*me->group, threads, "a barrier of the group", [&] { advance(*me->group, order); });
}

void order_group(Group& group) {
  advance(group, ORDERS_DEVICE | ORDERS_SHARED);
}

void cluster_barrier() {
  meet(cluster, threads * group_count, "a barrier of the cluster", [] {
    for (int i = 0; i < group_count; i++) advance(groups[i], ORDERS_DEVICE | ORDERS_SHARED);
    cluster_writes = write_count;
  });
  me->met = cluster.number;
}

void cluster_arrive() {
  if (me->arrived != -1) fault("lane %d arrives at a barrier of the cluster where it has arrived", me->index);
  me->arrived = cluster.number;
  if (cluster.missing == 0) {
    cluster.missing = threads * group_count;
    cluster.operation = "a barrier of the cluster";
  }
  cluster.missing -= 1;
  if (cluster.missing == 0) cluster.number += 1;
}

void cluster_wait() {
  if (me->arrived == -1) fault("lane %d waits at a barrier of the cluster where it has not arrived", me->index);
  if (cluster.number == me->arrived) wait_for(cluster, me->arrived);
  me->met = me->arrived + 1;
  me->arrived = -1;
}

void keep_until_read(Group& other) {
  if (&other != me->group) other.read_until = me->arrived == -1 ? cluster.number : me->arrived + 1;
}

void warp_barrier(int order) {
  in_warp("a barrier of its warp", [&] { me->warp().epochs.advance(order); });
}

float from_lane(const char* operation, float x, int lane) {
  static Exchange<float> exchange;
  float* const values = exchange.begin();
  if (lane < 0 || lane >= 32) fault("lane %d asks for what lane %d of its warp has", me->index, lane);
  values[me->in_warp()] = x;
  in_warp(operation, [] {});
  return values[lane];
}

float from_lane_xor(const char* operation, float x, int mask) {
  static Exchange<int> exchange;
  int* const masks = exchange.begin();
  masks[me->in_warp()] = mask;
  const float found = from_lane(operation, x, me->in_warp() ^ mask);
  if (masks[0] != mask)
    fault("lane %d shuffles with mask %d, and the first of its warp with %d", me->index, mask, masks[0]);
  return found;
}

int thread_in_group() {
  return me->index % threads;
}

uint3 group_in_grid() {
  return {me->group->x, me->group->y, me->group->z};
}

/** An array of the launch, or what a group has of shared memory, as the caller writes it down. */
struct Named {
  const char* name;
  void* memory;
  uint64_t bytes;
  uint64_t is_output;
};

extern "C" const char* emulate(
    const char* name, void (*enter)(void**), const Named* arrays, int count, const Named* shared, int shared_count,
    const int* grid, int threads_of_group, int dynamic, int groups_of_cluster, bool is_cuda, bool is_in_order) {
  may_repeat_writes = overlaps = is_cuda;
  in_order = is_in_order;
  kernel_name = name;
  enter_kernel = enter;
  threads = threads_of_group;
  group_count = groups_of_cluster;
  told_by = &groups[0];
  *message = 0;
  std::vector<void*> made(count);
  for (int i = 0; i < count; i++) {
    // Two names of one array, which a kernel may write to by either.
    int same = 0;
    while (arrays[same].memory != arrays[i].memory || arrays[same].bytes != arrays[i].bytes) same++;
    made[i] = same < i ? made[same]
                       : add_array(arrays[i].name, arrays[i].memory, arrays[i].bytes, arrays[i].is_output);
  }
  for (int i = 0; i < shared_count; i++)
    add_shared_array(shared[i].name, static_cast<char*>(shared[i].memory), shared[i].bytes);
  dynamic_bytes = dynamic;
  for (int i = 0; i < group_count; i++) groups[i].dynamic_memory = add_dynamic_memory(dynamic);
  arguments = made.data();
  latest = {};
  for (unsigned z = 0; z < unsigned(grid[2]); z++)
    for (unsigned y = 0; y < unsigned(grid[1]); y++)
      for (unsigned x = 0; x < unsigned(grid[0]) && !*message; x += group_count) {
        begin_groups(x, y, z);
        run_groups();
      }
  for (int i = 0; i < count; i++) memcpy(arrays[i].memory, made[i], arrays[i].bytes);
  forget_memory();
  if (!*message) return nullptr;
  // Those that a fault has left in the middle of a kernel begin anew.
  for (Lane& lane : lanes) lane.is_started = false;
  static char told[1280];
  snprintf(told, sizeof(told), "%s, group (%u, %u, %u): %s", kernel_name, told_by->x, told_by->y, told_by->z, message);
  return told;
}
