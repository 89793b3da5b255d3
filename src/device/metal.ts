// An Apple GPU: our own kernels for attention, MLX's for everything else.
import { LatentKernels } from "../kernels/attention/latent-attention.ts";
import { PagedAttention } from "../kernels/attention/paged-attention.ts";
import { RecurrenceKernels } from "../kernels/recurrence/recurrence-kernels.ts";
import { Compiled } from "../mlx/compile.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import type { Runtime } from "../mlx/runtime.ts";
import type { Compute, DeviceKind, MemoryKind, StepPolicy } from "./device.ts";
import { gpuCompute, gpuMemory, gpuSteps, hostValues, scoreBytes, sortBytes } from "./gpu.ts";
import { quantizedLinear, weightLinear } from "./linear.ts";

/** Token budget of a step, small enough for a steady inter-token latency of other streams. */
const TOKEN_BUDGET = 512;

/** Target time of a step, shorter than on other devices, because the screen is not redrawn while a command runs. */
const STEP_MS = 100;

/**
 * Whether MLX's attention is fused for this head size, so that scores are not stored
 * (mlx/backend/metal/scaled_dot_product_attention.cpp).
 */
const isFused = (headDim: number) => [64, 80, 128].includes(headDim);

const steps: StepPolicy = {
  ...gpuSteps,
  tokenBudget: TOKEN_BUDGET,
  stepMs: STEP_MS,
  trace: (build) => new Compiled(build),
};

const memory: MemoryKind = {
  ...gpuMemory,
  hasHostMemory: true,
  // Limits of a Metal command buffer: operations, and elements that these read (mlx/backend/metal/device.cpp).
  evaluation: {
    batches: 10,
    launches: 40,
    numbers: 40 * 2 ** 20,
    launchesOf: (_, isView) => (isView ? 0 : 1),
    temporaryBytes: (node) => sortBytes(node) + scoreBytes(node, isFused),
  },
};

export function metalDevice(_: Runtime["device"], make: MakeKernel = makeKernel): DeviceKind {
  const gpu = gpuCompute();
  const compute: Compute = {
    ...gpu,
    linear: (matrix, options) =>
      matrix.kind === "dense"
        ? weightLinear(matrix.weight, options, gpu.gate)
        : quantizedLinear(matrix, options.bias, gpu.gate),
    attention: (shape, dtype) => new PagedAttention("metal", shape, dtype, make),
    latentAttention: (shape, dtype) => new LatentKernels("metal", shape, dtype, make),
    recurrence: () => new RecurrenceKernels("metal", make),
  };
  return { backend: "metal", ...compute, ...steps, ...hostValues, ...memory };
}
