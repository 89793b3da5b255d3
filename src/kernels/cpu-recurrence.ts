// Recurrent layers on a CPU, by operations of our own. Pools are float32, and so is all arithmetic; rows of 16 bits
// are converted on their way in and out.
import type { MlxArray } from "../mlx/array.ts";
import { convolve, scan } from "../mlx/cpu.ts";
import { astype } from "../mlx/ops.ts";
import type { Recurrence } from "./recurrence.ts";

export const cpuRecurrence: Recurrence = {
  convolve: (x, pool, moves, { weight, bias, activation }) =>
    inFloat32(x, (rows) =>
      convolve(rows, pool, moves, {
        weight: float32(weight),
        bias: bias && float32(bias),
        silu: activation === "silu",
      }),
    ),
  scan: ({ x, decays, betas }, pool, moves, options) =>
    inFloat32(x, (rows) => scan(rows, { decays, betas }, pool, moves, options)),
  free() {},
};

function float32(x: MlxArray): MlxArray {
  return x.dtype === "float32" ? x : astype(x, "float32");
}

function inFloat32(x: MlxArray, compute: (x: MlxArray) => MlxArray): MlxArray {
  return x.dtype === "float32" ? compute(x) : astype(compute(float32(x)), x.dtype);
}
