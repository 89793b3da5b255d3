// Declares the CUDA driver functions that we call, loaded when first needed: building needs no CUDA headers, and
// running without a GPU needs no libcuda.
#pragma once

#include <cstddef>

namespace mlx_serve {

using CudaStream = struct CUstream_st*;
using CudaGraph = struct CUgraph_st*;
using CudaGraphExec = struct CUgraphExec_st*;
using CudaGraphNode = struct CUgraphNode_st*;
using CudaModule = struct CUmod_st*;
using CudaFunction = struct CUfunc_st*;
using CudaKernel = struct CUkern_st*;
using DevicePointer = unsigned long long;

/** Structs of the driver, in the layout that they have since CUDA 12.3. */
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
struct KernelNode {
  CudaFunction function;
  unsigned grid[3], block[3], shared_memory;
  void **parameters, **extra;
  CudaKernel kernel;
  void* context;
};

struct Driver {
  int (*cuGetErrorString)(int error, const char** text);
  int (*cuInit)(unsigned flags);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDevicePrimaryCtxRetain)(void** context, int device);
  int (*cuCtxGetCurrent)(void** context);
  int (*cuCtxSetCurrent)(void* context);
  int (*cuMemHostAlloc)(void** memory, size_t bytes, unsigned flags);
  int (*cuMemcpyAsync)(DevicePointer to, DevicePointer from, size_t bytes, CudaStream stream);
  int (*cuModuleLoadData)(CudaModule* module, const void* image);
  int (*cuModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name);
  int (*cuLaunchKernel)(
      CudaFunction function, unsigned groups_x, unsigned groups_y, unsigned groups_z, unsigned threads_x,
      unsigned threads_y, unsigned threads_z, unsigned shared_memory, CudaStream stream, void** parameters, void** extra);
  int (*cuStreamBeginCapture)(CudaStream stream, int mode);
  int (*cuStreamEndCapture)(CudaStream stream, CudaGraph* graph);
  int (*cuGraphGetNodes)(CudaGraph graph, CudaGraphNode* nodes, size_t* count);
  int (*cuGraphNodeGetType)(CudaGraphNode node, int* type);
  int (*cuGraphGetEdges)(
      CudaGraph graph, CudaGraphNode* from, CudaGraphNode* to, EdgeData* data, size_t* count);
  int (*cuGraphAddDependencies)(
      CudaGraph graph, const CudaGraphNode* from, const CudaGraphNode* to, const EdgeData* data, size_t count);
  int (*cuGraphRemoveDependencies)(
      CudaGraph graph, const CudaGraphNode* from, const CudaGraphNode* to, const EdgeData* data, size_t count);
  int (*cuGraphKernelNodeGetParams)(CudaGraphNode node, KernelNode* found);
  int (*cuFuncGetName)(const char** name, CudaFunction function);
  int (*cuKernelGetName)(const char** name, CudaKernel kernel);
  int (*cuGraphInstantiate)(CudaGraphExec* made, CudaGraph graph, unsigned long long flags);
  int (*cuGraphExecKernelNodeSetParams)(CudaGraphExec graph, CudaGraphNode node, const KernelNode* given);
  int (*cuGraphLaunch)(CudaGraphExec graph, CudaStream stream);
  int (*cuGraphDestroy)(CudaGraph graph);
  int (*cuGraphExecDestroy)(CudaGraphExec graph);
};

/** Returns the driver's functions. Throws if libcuda cannot be loaded. */
const Driver& driver();

int type_of(CudaGraphNode node);

/** Returns a kernel node's name and sets `found` to its launch parameters. Returns null for other nodes. */
const char* kernel_of(CudaGraphNode node, KernelNode& found);

/** Throws with CUDA's error text unless `error` is 0. */
void check(int error, const char* what);

} // namespace mlx_serve
