// Implementations that devices share: MLX's own operations, and what all GPUs have in common.
import { array, type MlxArray } from "../mlx/array.ts";
import { Compiled } from "../mlx/compile.ts";
import { rmsNorm } from "../mlx/fast.ts";
import {
  add,
  argmax,
  astype,
  flatten,
  less,
  logSumExp,
  max,
  multiply,
  power,
  reshape,
  sigmoid,
  slice,
  softmax,
  take,
  tanh,
  where,
  zeros,
} from "../mlx/ops.ts";
import type { SketchNode } from "../mlx/sketch.ts";
import type { Compute, Gating, HostTransfer, Memory, StepPolicy } from "./device.ts";
import { expertLinear, headLinear, lookup } from "./linear.ts";
import { combine, route } from "./routing.ts";

/** Transfer with the host as plain MLX arrays. */
export const hostValues: HostTransfer = {
  stage: (values, shape) => array(values, shape),
  spread: (values) => array(values),
  fetch: (x) => x,
};

/** Computes with MLX's own operations, which run on every device. */
export function mlxCompute({ stage } = hostValues) {
  const gates = compiledGates();
  const gate: Compute["gate"] = (gating, gate, up) =>
    typeof gating === "function" ? gating(gate, up) : gates.call(gating, gate, up);
  return {
    lookup,
    experts: (matrix, bias, keepView) =>
      Object.assign(expertLinear(matrix, bias, keepView, gate), { sortedRows: 64 }),
    route: (x, scores, routing) => route(scores(x), routing),
    combine,
    headLinear,
    rmsNorm,
    gate,
    softmax: (x) => softmax(x),
    logSumExp: (x) => logSumExp(x, -1, true),
    best: (x) => ({ indices: argmax(x), highest: max(x, -1) }),
    mask: (x, bits) => {
      const [rows, vocabulary] = x.shape as [number, number];
      const bytes = new Uint8Array(bits.buffer, bits.byteOffset, bits.byteLength);
      const table = astype(stage(bitsOfByte, [256, 8]), "bool");
      const flags = take(table, stage(bytes, [rows, bytes.length / rows]), 0); // (R, bytes, 8)
      return where(slice(reshape(flags, [rows, -1]), 1, 0, vocabulary), x, -Infinity);
    },
    after: (integers, before) => {
      const first = slice(flatten(before), 0, 0, 1);
      // Adds 0, so that the launch depends on `before`: no number, not even NaN, is below -infinity. MLX's `depends`
      // adds no launch, and so orders none.
      return add(integers, astype(less(first, -Infinity), integers.dtype));
    },
    free: () => gates.free(),
  } satisfies Partial<Compute>;
}

export function gpuCompute(transfer = hostValues) {
  return {
    ...mlxCompute(transfer),
    computeType: (stored) => stored,
    keepsQuantized: () => true,
    expertType: (dtype) => dtype,
    // Uses the compute type for scales, because MLX would promote a product of mixed types.
    scaleType: (_, dtype) => dtype,
    packedRows: (rows) => rows,
    longPrompt: 512,
  } satisfies Partial<Compute>;
}

export const gpuSteps = {
  depth: 2,
  // Keeps batch sizes up to 8. Rounds larger ones up to multiples of an eighth of the next power of two.
  paddedRows: (rows) => {
    const step = Math.max(1, 2 ** (Math.ceil(Math.log2(rows)) - 3));
    return Math.ceil(rows / step) * step;
  },
  compiles: true,
} satisfies Partial<StepPolicy>;

export const gpuMemory = {
  kvType: (dtype) => dtype,
  allocate: (shape, dtype) => zeros(shape, dtype),
} satisfies Partial<Memory>;

/** Returns the temporary memory of a GPU sort: two buffers each for values and indices. */
export function sortBytes({ symbol, bytes }: SketchNode): number {
  return /^mlx_arg(sort|partition)_axis$/.test(symbol) ? 4 * bytes : 0;
}

/** Bytes of the scores that MLX's attention materializes if it is not fused. q (B, H, L, D), k (B, Hkv, T, D) */
export function scoreBytes(
  { symbol, bytes, parents }: SketchNode,
  isFused: (headDim: number) => boolean = () => false,
): number {
  const [queries, keys] = parents;
  if (symbol !== "mlx_fast_scaled_dot_product_attention" || !queries || !keys) return 0;
  const [headDim, length] = [queries.shape[3]!, keys.shape[2]!];
  // Counts the scores, and the scaled queries, which are as large as the output.
  return isFused(headDim) ? 0 : bytes + (bytes / headDim) * length;
}

const gateFunctions = {
  swiglu: (gate: MlxArray, up: MlxArray) => multiply(multiply(gate, sigmoid(gate)), up),
  /** GeGLU with the tanh approximation of GELU. */
  geglu: (gate: MlxArray, up: MlxArray) => {
    const cubic = multiply(power(gate, 3), 0.044715);
    const inner = multiply(add(gate, cubic), Math.sqrt(2 / Math.PI));
    return multiply(multiply(multiply(gate, 0.5), add(tanh(inner), 1)), up);
  },
};

/** Gates, each compiled at first use to one kernel for all shapes. */
function compiledGates() {
  const compiled = new Map<string, Compiled>();
  return {
    call(gating: Extract<Gating, string>, gate: MlxArray, up: MlxArray): MlxArray {
      const found =
        compiled.get(gating) ??
        new Compiled(([gate, up]) => [gateFunctions[gating](gate!, up!)], { shapeless: true });
      compiled.set(gating, found);
      return found.call(gate, up)[0]!;
    },
    free() {
      for (const each of compiled.values()) each.free();
      compiled.clear();
    },
  };
}

/** Table of each byte's eight bits, lowest first: one lookup expands the mask bits of eight tokens. */
const bitsOfByte = Uint8Array.from({ length: 256 * 8 }, (_, i) => ((i >> 3) >> (i & 7)) & 1);
