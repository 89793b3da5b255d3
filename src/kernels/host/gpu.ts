// Facts of an NVIDIA GPU that decide how kernels are launched. A device reads them once, when it is opened.
import type { Runtime } from "../../mlx/runtime.ts";

export type Gpu = {
  /** Hopper (compute capability 9.0): wgmma and clusters. Blackwell replaced wgmma. */
  readonly hasWgmma: boolean;
  /** Streaming multiprocessors (SMs). A CTA that needs most of an SM runs alone on one. */
  readonly multiprocessors: number;
  /** GPU processing clusters (GPCs). All CTAs of a cluster run on the SMs of one GPC. */
  readonly gpcs: number;
};

/** An H200's, on which the kernels were tuned, if the driver does not say. */
const MULTIPROCESSORS = 132;
/** Hopper's. CUDA has no attribute for it. */
const GPCS = 8;

export function gpuFacts({ architecture, multiprocessors }: Runtime["device"]): Gpu {
  return {
    hasWgmma: architecture === "sm_90",
    multiprocessors: Number(multiprocessors ?? MULTIPROCESSORS),
    gpcs: GPCS,
  };
}
