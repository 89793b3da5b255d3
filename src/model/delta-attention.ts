// A delta net with a decay for each feature (KDA), as Kimi Linear and Ling 3 have it.
import type { MlxArray } from "../mlx/array.ts";
import { add, astype, exp, multiply, reshape, sigmoid, zeros } from "../mlx/ops.ts";
import { type AttentionBlock, projection, rmsNorm } from "./layers.ts";
import { convolution, deltaScan, joinConvolutions } from "./recurrent-layers.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

export type DeltaSizes = { dims: number; heads: number; headDim: number; taps: number };

export type DeltaGates = {
  /** (T, heads * features) float32 */
  decays: MlxArray;
  /** (T, heads), before their sigmoids. */
  betas: MlxArray;
  /** (T, heads * features), before their sigmoids: how far what is read is open. */
  open: MlxArray;
};

/** q_proj, k_proj, v_proj, a convolution of each, o_norm, o_proj; the gates are the caller's. */
export function deltaAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  { dims, heads, headDim, taps }: DeltaSizes,
  eps: number,
  gatesOf: (x: MlxArray) => DeltaGates,
): AttentionBlock {
  const width = heads * headDim;
  const project = projection(weights, name, { dims, heads, kvHeads: heads, headDim });
  joinConvolutions(weights, name);
  const convolved = convolution(weights, `${name}.conv1d`, 3 * width, taps, "silu");
  const headNorm = rmsNorm(weights, `${name}.o_norm`, headDim, eps);
  const oProj = weights.linear(`${name}.o_proj`, width, dims);
  const inputs = states.slot(taps - 1, 3 * width);
  const state = states.slot(heads, headDim, headDim);
  const scan = deltaScan(heads, headDim);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { decays, betas, open } = gatesOf(x);
    const mixed = step.convolve(inputs, project(x), convolved);
    const gates = { decays, betas: sigmoid(astype(betas, "float32")) };
    const read = step.scan(state, { x: mixed, gates }, scan);
    const normed = reshape(headNorm(reshape(read, [-1, heads, headDim])), [-1, width]);
    return oProj(multiply(normed, sigmoid(open)), { residual });
  };
}

/** A_log of each head as e to it, for each feature, and dt_bias. Some files have axes of size 1 that say nothing. */
export function featureRates(
  weights: Weights,
  name: string,
  { heads, headDim }: DeltaSizes,
): { rate: MlxArray; bias: MlxArray } {
  const width = heads * headDim;
  for (const [part, size] of [["A_log", heads] as const, ["dt_bias", width] as const]) {
    weights.arrange([`${name}.${part}`], ([stored]) => {
      const fits = stored!.shape.reduce((a, b) => a * b) === size;
      return { ...stored!, shape: fits ? [size] : stored!.shape };
    });
  }
  const stored = weights.tensor(`${name}.A_log`, [heads], "float32");
  const rate = weights.computed(() =>
    reshape(add(reshape(exp(stored), [heads, 1]), zeros([1, headDim])), [width]),
  );
  return { rate, bias: weights.tensor(`${name}.dt_bias`, [width], "float32") };
}
