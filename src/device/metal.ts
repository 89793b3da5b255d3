// An Apple GPU: kernels of our own for attention, MLX's for everything else.
import { LatentKernels } from "../kernels/latent-attention.ts";
import { PagedAttention } from "../kernels/paged-attention.ts";
import { RecurrenceKernels } from "../kernels/recurrence-kernels.ts";
import { array } from "../mlx/array.ts";
import { Compiled } from "../mlx/compile.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import type { Runtime } from "../mlx/runtime.ts";
import type { Device } from "./device.ts";
import { gpuParts } from "./gpu.ts";
import { quantizedLinear, weightLinear } from "./linear.ts";

/** Few enough to keep the streams of others smooth. */
const TOKEN_BUDGET = 512;

export function metalDevice(_: Runtime["device"], make: MakeKernel = makeKernel): Device {
  const gpu = gpuParts();
  return {
    ...gpu,
    backend: "metal",
    hasHostMemory: true,
    linear: (matrix, options) =>
      matrix.kind === "dense"
        ? weightLinear(matrix.weight, options, gpu.gate)
        : quantizedLinear(matrix, options.bias, gpu.gate),
    attention: (shape, dtype) => new PagedAttention("metal", shape, dtype, make),
    latentAttention: (shape, dtype) => new LatentKernels("metal", shape, dtype, make),
    recurrence: () => new RecurrenceKernels("metal", make),
    tokenBudget: TOKEN_BUDGET,
    stage: (values) => array(values),
    trace: (build) => new Compiled(build),
  };
}
