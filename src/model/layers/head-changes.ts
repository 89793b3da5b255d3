// Changes queries, keys and values between their projection and attention, for architectures that need it.
import { LoadError } from "../../files/load-error.ts";
import type { MlxArray } from "../../mlx/array.ts";
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
  slice,
  split,
  where,
  zeros,
} from "../../mlx/ops.ts";
import type { Step } from "../contract/model.ts";
import { ofAnyLength, type Rope, rotated } from "../contract/rope.ts";
import type { Weights } from "../weights/weights.ts";
import { type Crossing, handingOn, takingOver } from "./crossings.ts";
import {
  type AttentionBlock,
  type AttentionParts,
  type AttentionSizes,
  type HeadProjection,
  headFeatures,
  kvFeatures,
  type Projection,
  projection,
} from "./layers.ts";

/** Queries (T, heads, D), keys and values (T, kvHeads, D), split into heads. */
export type HeadArrays = { q: MlxArray; k: MlxArray; v: MlxArray };

/** Wraps a projection so that `change` is applied to its heads before attention. */
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

/** Norms over each head of queries and keys. `query` and `key` name the weights (heads, D). */
export type HeadwiseNorms = { query: string; key: string; norm: (x: MlxArray) => MlxArray };

export function headwiseNorms(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  { query, key, norm }: HeadwiseNorms,
): HeadProjection {
  const rest = [sizes.headDim];
  const qWeight = weights.part(`${name}.${query}`, headFeatures(sizes, 1), rest);
  const kWeight = weights.part(`${name}.${key}`, kvFeatures(sizes, 1), rest);
  return changedHeads(projection(weights, name, sizes), sizes, ({ q, k }) => ({
    q: multiply(norm(q), qWeight),
    k: multiply(norm(k), kWeight),
  }));
}

/** Applies RoPE in the projection, for norms or gates that follow RoPE; attention then applies none. */
export function rotatedFirst(
  project: Projection,
  sizes: AttentionSizes,
  rope: Rope,
): { project: HeadProjection; rope: undefined } {
  const own = ofAnyLength(rope);
  const rotate = changedHeads(project, sizes, ({ q, k }, step) => {
    const positions = step.positions();
    return { q: rotated(q, own, positions), k: rotated(k, own, positions) };
  });
  return { project: rotate, rope: undefined };
}

export type Temperature = { scale: number; every: number; first: number };

/**
 * Returns a function of positions (T) that gives a factor on queries, so that attention to many tokens stays sharp.
 * It grows with the logarithm of 1 + floor((position + `first`) / `every`).
 */
export function temperature({ scale, every, first }: Temperature) {
  return (positions: MlxArray): MlxArray => {
    const stage = floorDivide(add(positions, first), every);
    return add(multiply(log(add(astype(stage, "float32"), 1)), scale), 1);
  };
}

/** Scales queries, the first `width` columns of qkv, by a factor that grows with position, before attention. */
export function withTemperature(
  attend: AttentionBlock,
  width: number,
  grown: Temperature,
): AttentionBlock {
  const factorOf = temperature(grown);
  const scaled = (qkv: MlxArray, positions: MlxArray) => {
    const isQuery = less(arange(0, qkv.shape[1]!), width);
    const factor = where(isQuery, expandDims(factorOf(positions), 1), 1);
    return astype(multiply(qkv, factor), qkv.dtype);
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

/** Pads values with zeros, if they have fewer features than keys. `scale`: factor on attention's output. */
export function narrowValues(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  scale: number,
): Partial<AttentionParts> {
  const { dims, heads, kvHeads, headDim, valueDim = headDim } = sizes;
  if (valueDim > headDim) {
    throw new LoadError(`config.json: ${valueDim} features of values, but ${headDim} of keys`);
  }
  const [queries, keys] = [heads * headDim, kvHeads * headDim];
  const parts = ["q_proj", "k_proj", "v_proj"].map((part) => `${name}.${part}`);
  const outputs = [headFeatures(sizes), kvFeatures(sizes), kvFeatures(sizes, valueDim)];
  const project = weights.joined(`${name}.qkv_proj`, parts, dims, outputs);
  return {
    outputs: headFeatures(sizes, valueDim),
    project: (x, fused) => {
      const [qk, v] = split(project(x, fused), [queries + keys]) as [MlxArray, MlxArray];
      const rest = zeros([v.shape[0]!, kvHeads, headDim - valueDim], v.dtype);
      const whole = concatenate([reshape(v, [-1, kvHeads, valueDim]), rest], -1);
      return concatenate([qk, reshape(whole, [-1, keys])], -1);
    },
    afterwards: (attended) => {
      const byHead = slice(reshape(attended, [-1, heads, headDim]), 2, 0, valueDim);
      const values = reshape(byHead, [-1, heads * valueDim]);
      return scale === 1 ? values : multiply(values, scale);
    },
  };
}

/** Makes one crossing per group of `each` layers, for the keys and values of the group's first layer. */
export function takenOver(
  { kvHeads, headDim }: Pick<AttentionSizes, "kvHeads" | "headDim">,
  layers: number,
  each: number,
): Crossing[] {
  const width = 2 * kvHeads * headDim;
  return Array.from({ length: Math.ceil(layers / each) }, (_, i) => {
    return { from: i * each, to: Math.min((i + 1) * each, layers) - 1, width };
  });
}

/** Returns a projection with the layer's own keys and values, or with those of an earlier layer. */
export function projectionWith(
  weights: Weights,
  name: string,
  sizes: AttentionSizes,
  layer: number,
  shared: readonly Crossing[],
): Projection {
  const crossing = shared.find(({ from, to }) => from <= layer && layer <= to);
  if (crossing && crossing.from < layer) {
    return takingOver(weights.linear(`${name}.q_proj`, sizes.dims, headFeatures(sizes)), crossing);
  }
  const project = projection(weights, name, sizes);
  return crossing ? handingOn(project, 2 * sizes.kvHeads * sizes.headDim, crossing) : project;
}
