#include "memory.h"

#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include "driver.h"

namespace mx = mlx::core;

namespace mlx_serve {
namespace {

constexpr size_t LEAST = 256;
constexpr size_t CHUNK = 1 << 20;

/** Guards `idle`, because MLX's threads free arrays too. */
std::mutex mutex;
/** Pinned memory that no array uses, by size (powers of two). */
std::map<size_t, std::vector<void*>> idle;

void use_device() {
  void* context = nullptr;
  check(driver().cuInit(0), "cuInit");
  check(driver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context) return;
  int device = 0;
  check(driver().cuDeviceGet(&device, 0), "cuDeviceGet");
  check(driver().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void* take(size_t size) {
  const std::lock_guard lock(mutex);
  auto& found = idle[size];
  if (found.empty()) {
    use_device();
    constexpr unsigned ANY_CONTEXT = 1;
    const size_t bytes = size < CHUNK ? CHUNK : size;
    void* chunk = nullptr;
    check(driver().cuMemHostAlloc(&chunk, bytes, ANY_CONTEXT), "cuMemHostAlloc");
    for (size_t at = 0; at < bytes; at += size) found.push_back(static_cast<char*>(chunk) + at);
  }
  void* data = found.back();
  found.pop_back();
  return data;
}

} // namespace

void pin(mx::array& x) {
  const size_t size = std::bit_ceil(x.nbytes() < LEAST ? LEAST : x.nbytes());
  auto* memory = new Memory{take(size), size, -1};
  const auto give_back = [](mx::allocator::Buffer buffer) {
    auto* memory = static_cast<Memory*>(buffer.ptr());
    const std::lock_guard lock(mutex);
    idle[memory->size].push_back(memory->data);
    delete memory;
  };
  x.set_data({mx::allocator::Buffer(memory), give_back});
}

} // namespace mlx_serve
