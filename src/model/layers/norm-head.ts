// Output matrices whose rows or columns are made as long as 1. What converters have quantized is so already.
import type { Linear } from "../../device/device.ts";
import { array, evaluate, type MlxArray } from "../../mlx/array.ts";
import { add, astype, concatenate, divide, multiply, power, sum } from "../../mlx/ops.ts";
import type { Weights } from "../weights/weights.ts";

/** Features that are looked at in one product. */
const SOME = 64;

/** Rows, one a token, are divided by their lengths: so are logits. */
export function normedRows(weights: Weights, head: Linear, dims: number): Linear {
  if (weights.has("lm_head.scales")) return head;
  const lengths = weights.computed(() => {
    const sums = squares(weights, head, dims, 0).reduce((a, b) => add(a, b));
    return astype(lengthOf(sums), weights.dtype); // (vocabulary)
  });
  return (x, fused) => divide(head(x, fused), lengths);
}

/** Columns, one a feature, are divided by their lengths: so are the features of hidden states. */
export function normedColumns(weights: Weights, head: Linear, dims: number): Linear {
  if (weights.has("lm_head.scales")) return head;
  const lengths = weights.computed(
    () => astype(lengthOf(concatenate(squares(weights, head, dims, 1), 0)), weights.dtype), // (dims)
  );
  return (x, fused) => head(divide(x, lengths), fused);
}

const lengthOf = (sums: MlxArray) => add(power(sums, 0.5), 1e-7);

/** Of the matrix's columns, some at a time as products with unit vectors: sums of squares along an axis. */
function squares(weights: Weights, head: Linear, dims: number, axis: 0 | 1): MlxArray[] {
  return Array.from({ length: Math.ceil(dims / SOME) }, (_, piece) => {
    const count = Math.min(SOME, dims - piece * SOME);
    const units = new Float32Array(count * dims);
    for (let i = 0; i < count; i++) units[i * dims + piece * SOME + i] = 1;
    const columns = astype(head(astype(array(units, [count, dims]), weights.dtype)), "float32");
    const sums = sum(multiply(columns, columns), axis);
    evaluate(sums);
    return sums;
  });
}
