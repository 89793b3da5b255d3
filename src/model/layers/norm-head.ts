// Scales the rows or columns of output matrices to L2 norm 1. In quantized files they are scaled already.
import type { Linear } from "../../device/device.ts";
import { array, evaluate, type MlxArray } from "../../mlx/array.ts";
import { add, astype, concatenate, divide, multiply, power, sum } from "../../mlx/ops.ts";
import type { Weights } from "../weights/weights.ts";

/** Columns of the output matrix to compute at a time. */
const COLUMNS = 64;

/** Scales each row of the output matrix to L2 norm 1: divides the row's logit by the norm. */
export function normedRows(weights: Weights, head: Linear, dims: number): Linear {
  if (weights.stored.has("lm_head.scales")) return head;
  const lengths = weights.arrays.computed(() => {
    const sums = squares(weights, head, dims, 0).reduce((a, b) => add(a, b));
    return astype(lengthOf(sums), weights.dtype); // (vocabulary)
  });
  return (x, fused) => divide(head(x, fused), lengths);
}

/** Scales each column of the output matrix to L2 norm 1: divides the column's input feature by the norm. */
export function normedColumns(weights: Weights, head: Linear, dims: number): Linear {
  if (weights.stored.has("lm_head.scales")) return head;
  const lengths = weights.arrays.computed(
    () => astype(lengthOf(concatenate(squares(weights, head, dims, 1), 0)), weights.dtype), // (dims)
  );
  return (x, fused) => head(divide(x, lengths), fused);
}

const lengthOf = (sums: MlxArray) => add(power(sums, 0.5), 1e-7);

/**
 * Returns sums of squares along an axis of the output matrix, per piece of columns. Multiplies by unit vectors to get
 * the columns, because the matrix may be quantized.
 */
function squares(weights: Weights, head: Linear, dims: number, axis: 0 | 1): MlxArray[] {
  return Array.from({ length: Math.ceil(dims / COLUMNS) }, (_, piece) => {
    const count = Math.min(COLUMNS, dims - piece * COLUMNS);
    const units = new Float32Array(count * dims);
    for (let i = 0; i < count; i++) units[i * dims + piece * COLUMNS + i] = 1;
    const columns = astype(head(astype(array(units, [count, dims]), weights.dtype)), "float32");
    const sums = sum(multiply(columns, columns), axis);
    evaluate(sums);
    return sums;
  });
}
