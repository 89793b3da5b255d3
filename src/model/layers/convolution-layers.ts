// Short convolutions in place of attention.
import type { MlxArray } from "../../mlx/array.ts";
import { expandDims, multiply, reshape, sigmoid, split } from "../../mlx/ops.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  headFeatures,
  kvFeatures,
  ownHeads,
  projection,
  rmsNorm,
} from "./layers.ts";
import { convolution } from "./recurrent-layers.ts";

/** Builds LFM 2's convolution, on a third of the projection; the other thirds are gates before and after. */
export function shortConvolution(
  weights: Weights,
  name: string,
  states: LayerStates,
  dims: number,
  taps: number,
): AttentionBlock {
  const channels = weights.ranks.divide(dims, { inputOf: [`${name}.out_proj`] });
  const inProj = weights.linear(`${name}.in_proj`, dims, [channels, channels, channels]);
  const outProj = weights.linear(`${name}.out_proj`, channels, dims);
  const convolved = convolution(weights, `${name}.conv`, channels, taps);
  const inputs = states.slot(taps - 1, countOf(channels));
  return (x, step, { norm, residual } = {}) => {
    const [before, behind, value] = split(inProj(x, { norm }), 3);
    const mixed = step.convolve(inputs, multiply(before!, value!), convolved);
    return outProj(multiply(behind!, mixed), { residual });
  };
}

/** Builds Gear's convolution of keys and values, which queries gate. */
export function convolvedMixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  all: AttentionSizes,
  taps: number,
  eps: number,
): AttentionBlock {
  const sizes = ownHeads(weights, name, all);
  const { dims, heads, kvHeads, headDim } = sizes;
  const [queries, keys] = [heads * headDim, kvHeads * headDim];
  const project = projection(weights, name, sizes);
  const oProj = weights.linear(`${name}.o_proj`, headFeatures(sizes), dims);
  const [qNorm, kNorm] = ["q_norm", "k_norm"].map((part) =>
    rmsNorm(weights, `${name}.${part}`, headDim, eps, 1),
  );
  const [forKeys, forValues] = ["key_conv", "value_conv"].map((part) => ({
    state: states.slot(taps - 1, keys),
    convolution: convolution(weights, `${name}.${part}`, kvFeatures(sizes), taps),
  }));
  const byHead = (x: MlxArray, axes: number[]) => reshape(x, [-1, ...axes, headDim]);
  return (x, step, { norm, residual } = {}) => {
    const parts = split(project(x, { norm }), [queries, queries + keys]);
    const [q, k, v] = parts as [MlxArray, MlxArray, MlxArray];
    const normedKeys = reshape(kNorm!(byHead(k, [kvHeads])), [-1, keys]);
    const placed = (from: typeof forKeys, input: MlxArray) => {
      const mixed = step.convolve(from!.state, input, from!.convolution);
      return expandDims(byHead(mixed, [kvHeads]), 2); // (T, kvHeads, 1, D)
    };
    const query = qNorm!(byHead(q, [kvHeads, heads / kvHeads]));
    const open = sigmoid(multiply(query, placed(forKeys, normedKeys)));
    return oProj(reshape(multiply(open, placed(forValues, v)), [-1, queries]), { residual });
  };
}
