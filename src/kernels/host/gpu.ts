// Properties of an NVIDIA GPU that decide how kernels are launched. A device reads them when it is opened.
import type { Runtime } from "../../mlx/runtime.ts";

export type Gpu = {
  /** Whether the GPU is a Hopper (compute capability 9.0), with wgmma and clusters. Blackwell has no wgmma. */
  readonly hasWgmma: boolean;
  /** Number of streaming multiprocessors (SMs). A CTA that needs most of an SM runs alone on one. */
  readonly multiprocessors: number;
  /** Number of GPU processing clusters (GPCs). All CTAs of a cluster run on the SMs of one GPC. */
  readonly gpcs: number;
};

/** SMs if the driver does not say: those of an H200, on which the kernels were tuned. */
const MULTIPROCESSORS = 132;
/** GPCs of a Hopper GPU. CUDA has no attribute for their number. */
const GPCS = 8;

export function gpuFacts({ architecture, multiprocessors }: Runtime["device"]): Gpu {
  return {
    hasWgmma: architecture === "sm_90",
    multiprocessors: Number(multiprocessors ?? MULTIPROCESSORS),
    gpcs: GPCS,
  };
}
