// A copy by cuMemcpyAsync goes through one of the GPU's copy engines, which takes it microseconds, however few bytes there
// are. A step takes a handful of small arrays and gives back two: a kernel copies them all, in no more time than one.
#include "copies.h"

namespace mlx_serve {
namespace {

/** As the kernel takes them. */
struct Range {
  DevicePointer to, from;
  unsigned long long bytes;
};
constexpr unsigned MOST = 16;
struct Ranges {
  Range each[MOST];
};
static_assert(sizeof(Ranges) == 384, "the kernel's parameter has so many bytes");

// Which range it is, says the group's y. All threads of its groups copy units that lie one behind the other: of 16 bytes
// where both addresses and the length are multiples of that, else of 4, else of 1.
constexpr const char* KERNEL = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .entry mlx_serve_copy_ranges(.param .align 8 .b8 ranges[384]) {
  .reg .pred is_wide, is_word, is_done;
  .reg .b16 byte;
  .reg .b32 y, group, size, groups, thread, index, count, unit, word, second, third, fourth;
  .reg .b64 range, first, to, from, bytes, all, rest, offset, step, source, target;

  mov.u32 y, %ctaid.y;
  mul.wide.u32 range, y, 24;
  mov.b64 first, ranges;
  add.u64 range, range, first;
  ld.param.u64 to, [range];
  ld.param.u64 from, [range+8];
  ld.param.u64 bytes, [range+16];

  or.b64 all, to, from;
  or.b64 all, all, bytes;
  and.b64 rest, all, 15;
  setp.eq.u64 is_wide, rest, 0;
  and.b64 rest, all, 3;
  setp.eq.u64 is_word, rest, 0;
  selp.u32 unit, 4, 1, is_word;
  selp.u32 unit, 16, unit, is_wide;

  mov.u32 group, %ctaid.x;
  mov.u32 groups, %nctaid.x;
  mov.u32 size, %ntid.x;
  mov.u32 thread, %tid.x;
  mad.lo.u32 index, group, size, thread;
  mul.lo.u32 count, groups, size;
  mul.wide.u32 offset, index, unit;
  mul.wide.u32 step, count, unit;

NEXT:
  setp.ge.u64 is_done, offset, bytes;
  @is_done ret;
  add.u64 source, from, offset;
  add.u64 target, to, offset;
  add.u64 offset, offset, step;
  @is_wide bra WIDE;
  @is_word bra WORD;
  ld.global.u8 byte, [source];
  st.global.u8 [target], byte;
  bra NEXT;
WORD:
  ld.global.u32 word, [source];
  st.global.u32 [target], word;
  bra NEXT;
WIDE:
  ld.global.v4.u32 {word, second, third, fourth}, [source];
  st.global.v4.u32 [target], {word, second, third, fourth};
  bra NEXT;
}
)";

/** It stays loaded as long as the process runs. */
CudaFunction kernel() {
  static const CudaFunction found = [] {
    CudaModule module = nullptr;
    CudaFunction function = nullptr;
    check(driver().cuModuleLoadData(&module, KERNEL), "the kernel that copies, cuModuleLoadData");
    check(driver().cuModuleGetFunction(&function, module, "mlx_serve_copy_ranges"), "cuModuleGetFunction");
    return function;
  }();
  return found;
}

/** With as many groups as copy the longest at once. */
void launch(Ranges& ranges, unsigned count, CudaStream stream) {
  constexpr unsigned THREADS = 256, WIDE = 16;
  unsigned long long longest = 0;
  for (unsigned i = 0; i < count; i++)
    if (ranges.each[i].bytes > longest) longest = ranges.each[i].bytes;
  const unsigned groups = (longest + THREADS * WIDE - 1) / (THREADS * WIDE);
  void* parameters[] = {&ranges};
  check(
      driver().cuLaunchKernel(kernel(), groups, count, 1, THREADS, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

} // namespace

void load_copies() {
  kernel();
}

void copy_all(const std::vector<Copy>& copies, CudaStream stream) {
  Ranges ranges{};
  unsigned count = 0;
  for (const auto& [to, from, bytes] : copies) {
    const auto place = [](const void* at) { return reinterpret_cast<DevicePointer>(at); };
    if (bytes == 0) continue;
    if (bytes > SMALL_BYTES) {
      check(driver().cuMemcpyAsync(place(to), place(from), bytes, stream), "cuMemcpyAsync");
      continue;
    }
    ranges.each[count++] = {place(to), place(from), bytes};
    if (count == MOST) {
      launch(ranges, count, stream);
      count = 0;
    }
  }
  if (count > 0) launch(ranges, count, stream);
}

} // namespace mlx_serve
