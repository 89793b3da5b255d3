// Copies a step's few small inputs and its two outputs by one kernel, as a node of the step's graph. cuMemcpyAsync
// uses the GPU's copy engines, which takes microseconds however small the copy is, and so does the transition between
// a copy and a graph launch.
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../calls.h"

namespace mlx_serve {
namespace {

/** One range to copy, in the layout of the kernel's parameter. */
struct Range {
  DevicePointer to, from;
  unsigned long long bytes;
};
constexpr unsigned MOST = 16;
struct Ranges {
  Range each[MOST];
};
static_assert(sizeof(Ranges) == 384, "the kernel's parameter has so many bytes");

// ctaid.y selects the range. The threads of all CTAs along x copy consecutive units of 16 bytes if both addresses and
// the length are multiples of 16, otherwise of 4 bytes if they are multiples of 4, otherwise of 1 byte.
constexpr const char* KERNEL = R"(
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
  AWAIT_INPUTS

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

constexpr const char* NAME = "mlx_serve_copy_ranges";

/** The loaded copy kernel, which is never unloaded. */
CudaFunction kernel = nullptr;

DevicePointer place(const void* at) {
  return reinterpret_cast<DevicePointer>(at);
}

/** Returns kernel parameters for the copies of up to SMALL_BYTES: batches of up to MOST, each with its length. */
std::vector<std::pair<Ranges, unsigned>> ranges_of(const std::vector<Copy>& copies) {
  std::vector<std::pair<Ranges, unsigned>> all;
  for (const auto& [to, from, bytes] : copies) {
    if (bytes == 0 || bytes > SMALL_BYTES) continue;
    if (all.empty() || all.back().second == MOST) all.push_back({});
    auto& [ranges, count] = all.back();
    ranges.each[count++] = {place(to), place(from), bytes};
  }
  return all;
}

} // namespace

void load_copies(bool waits) {
  if (kernel) return;
  std::string text = KERNEL;
  const std::string head = waits ? ".version 7.8\n.target sm_90\n" : ".version 7.0\n.target sm_75\n";
  const std::string await = waits ? "griddepcontrol.wait; griddepcontrol.launch_dependents;" : "";
  const std::string name = "AWAIT_INPUTS";
  text = head + text.replace(text.find(name), name.size(), await);
  CudaModule module = nullptr;
  check(driver().cuModuleLoadData(&module, text.c_str()), "the kernel that copies, cuModuleLoadData");
  check(driver().cuModuleGetFunction(&kernel, module, NAME), "cuModuleGetFunction");
}

struct RecordedCopies::Launch {
  Ranges captured;
  CudaGraphNode node;
  KernelNode parameters;
};

RecordedCopies::RecordedCopies() = default;
RecordedCopies::~RecordedCopies() = default;

void RecordedCopies::capture(const std::vector<Copy>& copies, CudaStream stream) {
  constexpr unsigned THREADS = 256, WIDE = 16;
  for (auto& [ranges, count] : ranges_of(copies)) {
    unsigned long long longest = 0;
    for (unsigned i = 0; i < count; i++) longest = std::max(longest, ranges.each[i].bytes);
    // Launches enough CTAs to copy the longest range in one pass.
    const unsigned groups = (longest + THREADS * WIDE - 1) / (THREADS * WIDE);
    void* parameters[] = {&ranges};
    check(
        driver().cuLaunchKernel(kernel, groups, count, 1, THREADS, 1, 1, 0, stream, parameters, nullptr),
        "cuLaunchKernel");
    launches_.push_back({ranges, nullptr, {}});
  }
}

void RecordedCopies::find(const std::vector<CudaGraphNode>& nodes) {
  for (CudaGraphNode node : nodes) {
    KernelNode found{};
    const char* const name = kernel_of(node, found);
    if (!name || std::strcmp(name, NAME) != 0) continue;
    for (Launch& launch : launches_) {
      if (std::memcmp(found.parameters[0], &launch.captured, sizeof(Ranges)) != 0) continue;
      launch.node = node;
      launch.parameters = found;
    }
  }
  for (const Launch& launch : launches_) require(launch.node != nullptr, "a copy was not captured");
}

void RecordedCopies::prepare(const std::vector<Copy>& copies, CudaGraphExec graph, CudaStream stream) {
  for (const auto& [to, from, bytes] : copies) {
    if (bytes <= SMALL_BYTES) continue;
    check(driver().cuMemcpyAsync(place(to), place(from), bytes, stream), "cuMemcpyAsync");
  }
  auto all = ranges_of(copies);
  require(all.size() == launches_.size(), "a recording is played with other copies");
  for (size_t i = 0; i < all.size(); i++) {
    void* parameters[] = {&all[i].first};
    KernelNode given = launches_[i].parameters;
    given.parameters = parameters;
    check(
        driver().cuGraphExecKernelNodeSetParams(graph, launches_[i].node, &given), "cuGraphExecKernelNodeSetParams");
  }
}

} // namespace mlx_serve
