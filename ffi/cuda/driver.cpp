#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace mlx_serve {
namespace {

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("CUDA's driver has no ") + name);
}

Driver open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) throw std::runtime_error("CUDA's driver is not there");
  Driver d{};
  find(library, "cuGetErrorString", d.cuGetErrorString);
  find(library, "cuInit", d.cuInit);
  find(library, "cuDeviceGet", d.cuDeviceGet);
  find(library, "cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain);
  find(library, "cuCtxGetCurrent", d.cuCtxGetCurrent);
  find(library, "cuCtxSetCurrent", d.cuCtxSetCurrent);
  find(library, "cuMemHostAlloc", d.cuMemHostAlloc);
  find(library, "cuMemcpyAsync", d.cuMemcpyAsync);
  find(library, "cuStreamBeginCapture_v2", d.cuStreamBeginCapture);
  find(library, "cuStreamEndCapture", d.cuStreamEndCapture);
  find(library, "cuGraphGetNodes", d.cuGraphGetNodes);
  find(library, "cuGraphNodeGetType", d.cuGraphNodeGetType);
  find(library, "cuGraphInstantiateWithFlags", d.cuGraphInstantiate);
  find(library, "cuGraphLaunch", d.cuGraphLaunch);
  find(library, "cuGraphDestroy", d.cuGraphDestroy);
  find(library, "cuGraphExecDestroy", d.cuGraphExecDestroy);
  return d;
}

} // namespace

const Driver& driver() {
  static const Driver found = open();
  return found;
}

void check(int error, const char* what) {
  if (error == 0) return;
  const char* text = nullptr;
  driver().cuGetErrorString(error, &text);
  throw std::runtime_error(std::string(what) + ": " + (text ? text : std::to_string(error)));
}

} // namespace mlx_serve
