// Kernels that report their launches and compute nothing: their outputs are zeros.
import type { MlxArray } from "../../src/mlx/array.ts";
import type { KernelLaunch, KernelSource, MakeKernel } from "../../src/mlx/kernel.ts";
import { zeros } from "../../src/mlx/ops.ts";

export const recordingKernel =
  (
    record: (kernel: KernelSource, launch: KernelLaunch, inputs: readonly MlxArray[]) => void,
  ): MakeKernel =>
  (_, kernel) => ({
    configure: (launch) => ({
      call: (...inputs) => {
        record(kernel, launch, inputs);
        return launch.outputs.map(({ shape, dtype }) => zeros(shape, dtype));
      },
      free() {},
    }),
    free() {},
  });
