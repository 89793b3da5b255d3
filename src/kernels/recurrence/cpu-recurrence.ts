// Recurrent layers on a CPU, with our own operations. Pools and arithmetic are float32; 16-bit rows
// are converted before and after.
import type { MlxArray } from "../../mlx/array.ts";
import { convolve, gate, rmsNorm, scan } from "../../mlx/cpu.ts";
import {
  add,
  astype,
  clip,
  exp,
  expandDims,
  logAddExp,
  multiply,
  reshape,
  sigmoid,
  slice,
} from "../../mlx/ops.ts";
import type { GivenGates, OutputGate, RawGates, Recurrence, Scan } from "./recurrence.ts";

export const cpuRecurrence: Recurrence = {
  convolve: (x, pool, moves, { weight, bias, activation, column }) => {
    const own = column === undefined ? x : columnsOf(x, column, weight.shape[1]!);
    return inFloat32(own, (rows) =>
      convolve(rows, pool, moves, {
        weight: float32(weight),
        bias: bias && float32(bias),
        silu: activation === "silu",
      }),
    );
  },
  scan: ({ x, gates }, pool, moves, options) =>
    inFloat32(x, (rows) => {
      const [, heads, values] = pool.shape as [number, number, number];
      const given = "raw" in gates ? computedGates(gates, heads) : gates;
      const read = scan(rows, given, pool, moves, options);
      const { skip } = options;
      const whole = skip ? add(read, skipped(rows, skip, options, heads * values)) : read;
      if (!("raw" in gates) || !gates.columns.output) return whole;
      return gated(whole, gates.raw, gates.columns.output, [heads, values]);
    }),
  free() {},
};

function computedGates({ raw, columns }: RawGates, heads: number): GivenGates {
  const { steps, betas, rate, bias, factor = 1, betaFactor = 1, limits } = columns;
  const numbers = (at: number) => float32(columnsOf(raw, at, heads));
  const softplus = logAddExp(add(scaled(numbers(steps), factor), bias), 0);
  const sizes = limits ? clip(softplus, ...limits) : softplus;
  return {
    decays: exp(rate.size === heads ? multiply(sizes, rate) : byFeature(sizes, rate)),
    betas: betas === undefined ? sizes : scaled(sigmoid(numbers(betas)), betaFactor),
  };
}

function scaled(x: MlxArray, factor: number): MlxArray {
  return factor === 1 ? x : multiply(x, factor);
}

/** Multiplies step sizes (T, heads) by each feature's decay rate, (heads * features) -> (T, heads * features). */
function byFeature(sizes: MlxArray, rate: MlxArray): MlxArray {
  const heads = sizes.shape[1]!;
  return reshape(multiply(expandDims(sizes, -1), reshape(rate, [heads, -1])), [-1, rate.size]);
}

/** Returns the skip connection, skip * values: (T, width). */
function skipped(rows: MlxArray, skip: MlxArray, { columns }: Scan, width: number): MlxArray {
  const heads = skip.size;
  const values = reshape(columnsOf(rows, columns.values, width), [-1, heads, width / heads]);
  return reshape(multiply(values, reshape(skip, [heads, 1])), [-1, width]);
}

function gated(
  read: MlxArray,
  raw: MlxArray,
  { column, norm }: OutputGate,
  [heads, values]: [number, number],
): MlxArray {
  const width = heads * values;
  const normed = rmsNorm(reshape(read, [-1, heads, values]), float32(norm.weight), norm.eps);
  return gate("swiglu", float32(columnsOf(raw, column, width)), reshape(normed, [-1, width]));
}

function columnsOf(x: MlxArray, at: number, width: number): MlxArray {
  return slice(x, 1, at, at + width);
}

function float32(x: MlxArray): MlxArray {
  return x.dtype === "float32" ? x : astype(x, "float32");
}

function inFloat32(x: MlxArray, compute: (x: MlxArray) => MlxArray): MlxArray {
  return x.dtype === "float32" ? compute(x) : astype(compute(float32(x)), x.dtype);
}
