// The memory of a launch. Kernels are compiled with the calls before every access that a compiler writes for its
// detector of races; the functions that they call are here. What is past an array, what was never written, and what two
// lanes touch of which one writes, without a barrier between them that orders it, are faults; so is what an asynchronous
// copy has not been waited for, and what the launch before may still be making.
#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "lanes.h"

namespace {
/** Who has read two bytes since they were last written. */
enum Readers : uint8_t { NO_LANE, ONE_LANE, LANES_OF_ONE_WARP, LANES_OF_WARPS, LANES_OF_GROUPS };

/** What is known of two bytes, the smallest numbers that kernels have. An epoch of 0 is never. */
struct Cell {
  uint32_t written, written_in_warp; // in which epoch of the group and of the warp
  uint32_t read, read_in_warp;
  uint32_t write; // the how manieth
  uint16_t writer, reader, other_reader;
  Readers readers;
  bool is_under_way; // by an asynchronous copy of the writer's
  bool is_bulk; // such a copy has written it
};
constexpr size_t CELL_BYTES = 2;

struct Array {
  const char* name;
  char* data;
  size_t bytes;
  bool is_shared;
  bool begins_unwritten;
  bool is_early;
  Cell* cells;
  size_t cell_count;
};

/** Each array of a launch is in the middle of addresses that are otherwise nobody's. */
constexpr size_t SLOT = size_t(1) << 34, MOST_ARRAYS = 32;
/** An array of shared memory is at the beginning of as many bytes (SHARED_MEMORY in kernel.h). */
constexpr size_t SHARED_SLOT = 1 << 16;

std::vector<Array> arrays; // of the launch, one a slot
std::vector<Array> shared_slots;
char* shared_begin;

/** What a group of a cluster has in the arrays of `shared_slots`, one after the other, while others run. */
struct SharedOfGroup {
  std::vector<std::vector<char>> data;
  std::vector<Cell*> cells;
};
SharedOfGroup shared_of[MOST_GROUPS];
int shown_group;

/** What a group has written that another had written or read, and what was there. */
struct Repeated {
  const Array* array;
  size_t cell;
  char before[CELL_BYTES];
};
std::vector<Repeated> repeated;

char* arena() {
  static char* const all = static_cast<char*>(
      mmap(nullptr, SLOT * MOST_ARRAYS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return all;
}

size_t pages(size_t bytes) {
  return (bytes + 4096) / 4096 * 4096;
}

Cell* make_cells(size_t count) {
  // Zero, and only what is touched takes memory.
  const size_t bytes = pages(count * sizeof(Cell));
  return static_cast<Cell*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

/** What a kernel may read before it waits for the launch before: that one has made none of them. */
bool is_early(std::string_view name) {
  for (const char* each :
       {"weight", "scales", "biases", "norm", "numbers", "sizes", "layer", "tables", "places", "tiles", "keys", "values"})
    if (name == each) return true;
  return false;
}

Array make_array(const char* name, char* data, size_t bytes, bool is_shared, bool begins_unwritten) {
  const size_t count = (bytes + CELL_BYTES - 1) / CELL_BYTES;
  return {name, data, bytes, is_shared, begins_unwritten, is_early(name), make_cells(count), count};
}

char* add(const char* name, size_t bytes, bool is_shared, bool begins_unwritten) {
  char* const data = arena() + SLOT * arrays.size() + SLOT / 2;
  mmap(data, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  arrays.push_back(make_array(name, data, bytes, is_shared, begins_unwritten));
  return data;
}

/** The array whose addresses these are, or that come behind it. */
Array* array_at(const char* at) {
  const size_t slot = size_t(at - arena()) / SLOT;
  if (slot < arrays.size()) return &arrays[slot];
  const size_t shared = size_t(at - shared_begin) / SHARED_SLOT;
  return shared < shared_slots.size() && shared_slots[shared].data ? &shared_slots[shared] : nullptr;
}

/** Of the lane that runs, for the kind of memory that an array is in. */
struct Now {
  uint32_t first, epoch, in_warp;
  int lane;
  /** Whether what a lane of this group did then was before now. */
  bool is_after(uint32_t then, uint32_t then_in_warp, int who) const {
    return who == lane || then < epoch || (who / 32 == lane / 32 && then_in_warp < in_warp);
  }
};

Now now_in(const Array& array) {
  const Epochs& of_warp = me->warp().epochs;
  const Group& group = *me->group;
  if (array.is_shared) return {group.first.shared, group.epochs.shared, of_warp.shared, me->index};
  return {group.first.device, group.epochs.device, of_warp.device, me->index};
}

[[noreturn]] void tell_race(
    const Array& array, size_t cell, const char* did, int other, bool is_others, const char* does) {
  fault(
      "a race: lane %d %s byte %zu of %s, which lane %d%s has %s with no barrier between them", me->index, does,
      cell * CELL_BYTES, array.name, other, is_others ? " of another group" : "", did);
}

/** Of another group, where a lane writes: whether that is looked at when the group has ended. */
bool is_repeated(const Array& array, size_t index, bool is_others) {
  if (!is_others || !may_repeat_writes) return false;
  Repeated each = {&array, index, {}};
  memcpy(each.before, array.data + index * CELL_BYTES, CELL_BYTES);
  repeated.push_back(each);
  return true;
}

void expect_written_before(const Array& array, size_t index, const Cell& cell, const Now& now, bool is_read) {
  if (cell.written == 0 || (array.is_shared && cell.written < now.first)) return;
  const bool is_others = cell.written < now.first || lanes[cell.writer].group != me->group;
  if (!is_read && is_repeated(array, index, is_others)) return;
  if (is_others || !now.is_after(cell.written, cell.written_in_warp, cell.writer))
    tell_race(array, index, "written", cell.writer, is_others, is_read ? "reads" : "writes");
}

void expect_read_before(const Array& array, size_t index, const Cell& cell, const Now& now) {
  if (cell.read == 0 || (array.is_shared && cell.read < now.first)) return;
  const bool is_others = cell.read < now.first || cell.readers == LANES_OF_GROUPS;
  const bool is_one = cell.readers == ONE_LANE;
  if (is_repeated(array, index, is_others)) return;
  if (!is_others) {
    if (cell.read < now.epoch) return;
    if (is_one && cell.reader == now.lane) return;
    if (cell.readers <= LANES_OF_ONE_WARP && cell.reader / 32 == now.lane / 32 && cell.read_in_warp < now.in_warp)
      return;
  }
  const int other = cell.reader == now.lane && !is_one ? cell.other_reader : cell.reader;
  tell_race(array, index, "read", other, is_others, "writes");
}

void note_read(const Array& array, Cell& cell, const Now& now) {
  if (cell.read == now.epoch && cell.reader == now.lane && cell.read_in_warp == now.in_warp) return;
  const bool is_new = cell.read == 0 || (array.is_shared && cell.read < now.first);
  Readers readers = ONE_LANE;
  if (!is_new) {
    if (cell.read < now.first || cell.readers == LANES_OF_GROUPS) readers = LANES_OF_GROUPS;
    else if (cell.read == now.epoch && cell.readers == LANES_OF_WARPS) readers = LANES_OF_WARPS;
    else if (cell.read == now.epoch && cell.reader / 32 != now.lane / 32) readers = LANES_OF_WARPS;
    else if (cell.read == now.epoch && cell.read_in_warp == now.in_warp)
      readers = cell.readers == ONE_LANE && cell.reader == now.lane ? ONE_LANE : LANES_OF_ONE_WARP;
  }
  if (cell.reader != now.lane) cell.other_reader = cell.reader;
  cell.reader = now.lane;
  cell.read = now.epoch;
  cell.read_in_warp = now.in_warp;
  cell.readers = readers;
}
} // namespace

bool may_repeat_writes;
uint32_t write_count;

const char* find_changed() {
  const Array* changed = nullptr;
  for (const auto& [array, cell, before] : repeated)
    if (memcmp(before, array->data + cell * CELL_BYTES, CELL_BYTES) != 0) changed = array;
  repeated.clear();
  return changed ? changed->name : nullptr;
}

void touch(const void* at, size_t bytes, Access access) {
  if (!me) return;
  Array* const array = array_at(static_cast<const char*>(at));
  if (!array) return;
  const ptrdiff_t first = static_cast<const char*>(at) - array->data;
  const bool is_read = access == Access::READ || access == Access::MULTIPLY;
  const char* const does = is_read ? "reads" : "writes";
  if (first < 0 || first + bytes > array->bytes) {
    fault(
        "lane %d %s %zu bytes at byte %td of %s, which has %zu", me->index, does, bytes, first, array->name,
        array->bytes);
  }
  if (!me->has_waited && !array->is_shared && !(is_read && array->is_early))
    fault("lane %d %s %s before it waits for the launch before", me->index, does, array->name);
  const Now now = now_in(*array);
  write_count += !is_read;
  for (size_t i = first / CELL_BYTES; i <= (first + bytes - 1) / CELL_BYTES; i++) {
    Cell& cell = array->cells[i];
    const bool is_written = cell.written != 0 && !(array->is_shared && cell.written < now.first);
    const bool ends_copy = access == Access::END_COPY || access == Access::END_BULK_COPY;
    if (is_written && cell.is_under_way && !ends_copy)
      fault(
          "lane %d %s byte %zu of %s, where a copy of lane %d has not been waited for", me->index, does,
          i * CELL_BYTES, array->name, cell.writer);
    expect_written_before(*array, i, cell, now, is_read);
    if ((is_read || access == Access::ATOMIC) && array->begins_unwritten && !is_written)
      fault("lane %d reads byte %zu of %s, which nobody has written", me->index, i * CELL_BYTES, array->name);
    if (access == Access::MULTIPLY && !cell.is_bulk && cell.write > lanes[cell.writer].fenced_writes)
      fault(
          "lane %d multiplies byte %zu of %s, which lane %d has written and not fenced", me->index, i * CELL_BYTES,
          array->name, cell.writer);
    if (!is_read) expect_read_before(*array, i, cell, now);
    if (is_read) note_read(*array, cell, now);
    // Those of an atomic operation are in order with each other.
    if (is_read || access == Access::ATOMIC) continue;
    cell.written = now.epoch;
    cell.written_in_warp = now.in_warp;
    cell.write = write_count;
    cell.writer = now.lane;
    cell.is_under_way = access == Access::BEGIN_COPY;
    cell.is_bulk = access == Access::END_BULK_COPY;
  }
}

void touch_of(const Group& other, const void* at, size_t bytes) {
  const Array& array = *array_at(static_cast<const char*>(at));
  const size_t first = static_cast<const char*>(at) - array.data;
  for (size_t i = first / CELL_BYTES; i <= (first + bytes - 1) / CELL_BYTES; i++) {
    const Cell& cell = array.cells[i];
    if (cell.written < other.first.shared || cell.is_under_way || cell.write > cluster_writes)
      fault(
          "lane %d reads byte %zu of another group's memory, which nobody has written before a barrier of the cluster",
          me->index, i * CELL_BYTES);
  }
}

void begin_copy_of(const Group& other, const void* at, size_t bytes) {
  int owner = 0;
  while (lanes[owner].group != &other) owner += 1;
  Array& array = *array_at(static_cast<const char*>(at));
  const size_t first = static_cast<const char*>(at) - array.data;
  write_count += 1;
  for (size_t i = first / CELL_BYTES; i <= (first + bytes - 1) / CELL_BYTES; i++) {
    Cell& cell = array.cells[i];
    const uint32_t used = cell.written > cell.read ? cell.written : cell.read;
    const bool is_under_way = cell.is_under_way && cell.written >= other.first.shared;
    if (is_under_way || (used >= other.first.shared && used >= me->group->known[&other - groups]))
      fault(
          "lane %d copies to byte %zu of another group's memory, which that has used, or still does", me->index,
          i * CELL_BYTES);
    cell.written = other.epochs.shared;
    cell.written_in_warp = 0;
    cell.write = write_count;
    cell.writer = owner;
    cell.is_under_way = true;
  }
}

void* add_array(const char* name, const void* from, size_t bytes, bool is_output) {
  char* const data = add(name, bytes, false, is_output);
  // Nobody has written what a kernel makes.
  if (is_output) memset(data, 0xff, bytes);
  else memcpy(data, from, bytes);
  return data;
}

char* add_dynamic_memory(size_t bytes) {
  return add("the dynamic shared memory", bytes, true, true);
}

void add_shared_array(const char* name, char* at, size_t bytes) {
  if (shared_slots.empty()) shared_begin = at;
  const size_t slot = size_t(at - shared_begin) / SHARED_SLOT;
  if (slot >= shared_slots.size()) shared_slots.resize(slot + 1);
  shared_slots[slot] = make_array(name, at, bytes, true, true);
}

void show_shared_memory(int group) {
  if (group == shown_group) return;
  SharedOfGroup &before = shared_of[shown_group], &now = shared_of[group];
  for (SharedOfGroup* each : {&before, &now}) {
    each->data.resize(shared_slots.size());
    each->cells.resize(shared_slots.size());
  }
  for (size_t i = 0; i < shared_slots.size(); i++) {
    Array& array = shared_slots[i];
    before.data[i].assign(array.data, array.data + array.bytes);
    before.cells[i] = array.cells;
    if (!now.cells[i]) now.cells[i] = make_cells(array.cell_count);
    array.cells = now.cells[i];
    if (!now.data[i].empty()) memcpy(array.data, now.data[i].data(), array.bytes);
  }
  shown_group = group;
}

void forget_memory() {
  show_shared_memory(0);
  for (SharedOfGroup& group : shared_of) {
    for (size_t i = 0; &group != shared_of && i < group.cells.size(); i++)
      if (group.cells[i]) munmap(group.cells[i], pages(shared_slots[i].cell_count * sizeof(Cell)));
    group = {};
  }
  for (size_t i = 0; i < arrays.size(); i++) {
    char* const data = arena() + SLOT * i + SLOT / 2;
    mmap(data, pages(arrays[i].bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  for (const std::vector<Array>* all : {&arrays, &shared_slots})
    for (const Array& array : *all)
      if (array.cells) munmap(array.cells, pages(array.cell_count * sizeof(Cell)));
  arrays.clear();
  shared_slots.clear();
  repeated.clear();
}

// ---- What compilers call (-fsanitize=thread, bounds and alignment)

#define EXPORTED extern "C" void
#define ACCESSES_OF(BYTES) \
  EXPORTED __tsan_read##BYTES(void* at) { touch(at, BYTES, Access::READ); } \
  EXPORTED __tsan_write##BYTES(void* at) { touch(at, BYTES, Access::WRITE); } \
  EXPORTED __tsan_unaligned_read##BYTES(void* at) { touch(at, BYTES, Access::READ); } \
  EXPORTED __tsan_unaligned_write##BYTES(void* at) { touch(at, BYTES, Access::WRITE); }
ACCESSES_OF(1)
ACCESSES_OF(2)
ACCESSES_OF(4)
ACCESSES_OF(8)
ACCESSES_OF(16)
EXPORTED __tsan_read_range(void* at, size_t bytes) { touch(at, bytes, Access::READ); }
EXPORTED __tsan_write_range(void* at, size_t bytes) { touch(at, bytes, Access::WRITE); }
EXPORTED __tsan_init() {}
EXPORTED __tsan_func_entry(void*) {}
EXPORTED __tsan_func_exit() {}

/** Where something is wrong, and with what. */
struct Place {
  const char* file;
  uint32_t line, column;
  const struct Type {
    uint16_t kind, info;
    char name[1];
  }* type;
};
EXPORTED __ubsan_handle_out_of_bounds(const Place* at, uintptr_t index) {
  if (!me) return;
  fault("lane %d takes element %td of %s at %s:%u", me->index, ptrdiff_t(index), at->type->name, at->file, at->line);
}
EXPORTED __ubsan_handle_type_mismatch_v1(const Place* at, uintptr_t address) {
  if (!me) return;
  fault(
      "lane %d takes %s from an unaligned address, ...%03zx, at %s:%u", me->index, at->type->name, address % 4096,
      at->file, at->line);
}
