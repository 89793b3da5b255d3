// What some architectures do to queries, keys and values between their product and attention.
import type { MlxArray } from "../mlx/array.ts";
import {
  add,
  arange,
  astype,
  concatenate,
  expandDims,
  floorDivide,
  less,
  log,
  multiply,
  reshape,
  split,
  where,
} from "../mlx/ops.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  type HeadProjection,
  type Projection,
  projection,
} from "./layers.ts";
import type { Step } from "./model.ts";
import { type Rope, rotated } from "./rope.ts";
import type { Weights } from "./weights.ts";

/** Of each head by itself: queries (T, heads, D), keys and values (T, kvHeads, D) */
export type HeadArrays = { q: MlxArray; k: MlxArray; v: MlxArray };

/** A projection whose heads are changed before they attend. */
export function changedHeads(
  project: Projection,
  { heads, kvHeads, headDim }: Omit<AttentionSizes, "dims">,
  change: (parts: HeadArrays, step: Step) => Partial<HeadArrays>,
): HeadProjection {
  return (x, fused, step) => {
    const all = reshape(project(x, fused), [-1, heads + 2 * kvHeads, headDim]);
    const [q, k, v] = split(all, [heads, heads + kvHeads], 1) as [MlxArray, MlxArray, MlxArray];
    const changed = { q, k, v, ...change({ q, k, v }, step) };
    return reshape(concatenate([changed.q, changed.k, changed.v], 1), [x.shape[0]!, -1]);
  };
}

/** A norm over each head of queries and keys, with weights (heads, D) of these names. */
export function headwiseNorms(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  [query, key]: readonly [query: string, key: string],
  norm: (x: MlxArray) => MlxArray,
): HeadProjection {
  const { heads, kvHeads, headDim } = sizes;
  const qWeight = weights.tensor(query, [heads, headDim]);
  const kWeight = weights.tensor(key, [kvHeads, headDim]);
  return changedHeads(projection(weights, name, sizes), sizes, ({ q, k }) => ({
    q: multiply(norm(q), qWeight),
    k: multiply(norm(k), kWeight),
  }));
}

/** RoPE, where it comes before norms or gates: `parts` of an attention whose kernel applies none. */
export function rotatedFirst(
  project: Projection,
  sizes: AttentionSizes,
  rope: Rope,
): { project: HeadProjection; rope: undefined } {
  const rotate = changedHeads(project, sizes, ({ q, k }, step) => {
    const positions = step.positions();
    return { q: rotated(q, rope, positions), k: rotated(k, rope, positions) };
  });
  return { project: rotate, rope: undefined };
}

/**
 * Queries, the first `width` columns, grow with the logarithm of their position, counted in so many from `first` on:
 * attention to many tokens stays sharp.
 */
export function withTemperature(
  attend: AttentionBlock,
  width: number,
  { scale, every, first }: { scale: number; every: number; first: number },
): AttentionBlock {
  const scaled = (qkv: MlxArray, positions: MlxArray) => {
    const stage = floorDivide(add(positions, first), every);
    const factor = add(multiply(log(add(astype(stage, "float32"), 1)), scale), 1); // (T)
    const isQuery = less(arange(0, qkv.shape[1]!), width);
    return astype(multiply(qkv, where(isQuery, expandDims(factor, 1), 1)), qkv.dtype);
  };
  return (x, step, fused) =>
    attend(
      x,
      {
        ...step,
        attend: (state, qkv, heads, options) =>
          step.attend(state, scaled(qkv, step.positions()), heads, options),
      },
      fused,
    );
}
