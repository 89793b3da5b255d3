// GPUs that launches are planned for in tests.
import { gpuFacts } from "../../src/kernels/host/gpu.ts";

/** An H200. */
export const hopper = gpuFacts({ architecture: "sm_90" });
/** As large, and without wgmma. */
export const ampere = gpuFacts({ architecture: "sm_80" });
