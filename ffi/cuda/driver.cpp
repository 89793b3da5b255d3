#include "driver.h"

#include <string>

#include "library.h"

namespace mlx_serve {
namespace {

Driver open() {
  const Library library("libcuda.so.1");
  Driver d{};
  library.find("cuGetErrorString", d.cuGetErrorString);
  library.find("cuInit", d.cuInit);
  library.find("cuDeviceGet", d.cuDeviceGet);
  library.find("cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain);
  library.find("cuCtxGetCurrent", d.cuCtxGetCurrent);
  library.find("cuCtxSetCurrent", d.cuCtxSetCurrent);
  library.find("cuMemHostAlloc", d.cuMemHostAlloc);
  library.find("cuMemcpyAsync", d.cuMemcpyAsync);
  library.find("cuModuleLoadData", d.cuModuleLoadData);
  library.find("cuModuleGetFunction", d.cuModuleGetFunction);
  library.find("cuLaunchKernel", d.cuLaunchKernel);
  library.find("cuStreamBeginCapture_v2", d.cuStreamBeginCapture);
  library.find("cuStreamEndCapture", d.cuStreamEndCapture);
  library.find("cuGraphGetNodes", d.cuGraphGetNodes);
  library.find("cuGraphNodeGetType", d.cuGraphNodeGetType);
  library.find("cuGraphGetEdges_v2", d.cuGraphGetEdges);
  library.find("cuGraphAddDependencies_v2", d.cuGraphAddDependencies);
  library.find("cuGraphRemoveDependencies_v2", d.cuGraphRemoveDependencies);
  library.find("cuGraphKernelNodeGetParams_v2", d.cuGraphKernelNodeGetParams);
  library.find("cuFuncGetName", d.cuFuncGetName);
  library.find("cuKernelGetName", d.cuKernelGetName);
  library.find("cuGraphInstantiateWithFlags", d.cuGraphInstantiate);
  library.find("cuGraphExecKernelNodeSetParams_v2", d.cuGraphExecKernelNodeSetParams);
  library.find("cuGraphLaunch", d.cuGraphLaunch);
  library.find("cuGraphDestroy", d.cuGraphDestroy);
  library.find("cuGraphExecDestroy", d.cuGraphExecDestroy);
  return d;
}

} // namespace

const Driver& driver() {
  static const Driver found = open();
  return found;
}

int type_of(CudaGraphNode node) {
  int type = 0;
  check(driver().cuGraphNodeGetType(node, &type), "cuGraphNodeGetType");
  return type;
}

const char* kernel_of(CudaGraphNode node, KernelNode& found) {
  constexpr int KERNEL = 0;
  if (type_of(node) != KERNEL) return nullptr;
  check(driver().cuGraphKernelNodeGetParams(node, &found), "cuGraphKernelNodeGetParams");
  const char* name = nullptr;
  if (found.function) check(driver().cuFuncGetName(&name, found.function), "cuFuncGetName");
  else check(driver().cuKernelGetName(&name, found.kernel), "cuKernelGetName");
  return name;
}

void check(int error, const char* what) {
  if (error == 0) return;
  const char* text = nullptr;
  driver().cuGetErrorString(error, &text);
  throw std::runtime_error(std::string(what) + ": " + (text ? text : std::to_string(error)));
}

} // namespace mlx_serve
