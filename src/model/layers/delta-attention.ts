// KDA, a delta net with a decay per feature, as in Kimi Linear, Kimi K3 and Ling 3.
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  astype,
  exp,
  logAddExp,
  multiply,
  negative,
  reshape,
  sigmoid,
  split,
  zeros,
} from "../../mlx/ops.ts";
import type { LayerStates } from "../contract/states.ts";
import type { Weights } from "../weights/weights.ts";
import {
  type AttentionBlock,
  type AttentionSizes,
  headFeatures,
  ownHeads,
  projection,
  rmsNorm,
} from "./layers.ts";
import { convolution, deltaScan, joinConvolutions } from "./recurrent-layers.ts";

export type DeltaSizes = { dims: number; heads: number; headDim: number; taps: number };

/**
 * Builds KDA from q_proj, k_proj, v_proj with a convolution each, o_norm, o_proj. f_proj, b_proj and g_proj make
 * decays, betas and output gates; f and g are low-rank in some models. `least`: lower bound of a decay's logarithm.
 */
export function deltaAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: DeltaSizes,
  { eps, least }: { eps: number; least?: number | null | undefined },
): AttentionBlock {
  const { dims, headDim, taps } = sizes;
  const own = ownHeads(weights, name, { ...sizes, kvHeads: sizes.heads });
  const { heads } = own;
  const [width, features] = [heads * headDim, headFeatures(own)];
  const project = projection(weights, name, own);
  joinConvolutions(weights, name);
  const channels = [features, features, features];
  const convolved = convolution(weights, `${name}.conv1d`, channels, taps, "silu");
  const gatesOf = deltaGates(weights, name, own);
  const { rate, bias } = featureRates(weights, name, own);
  const headNorm = rmsNorm(weights, `${name}.o_norm`, headDim, eps);
  const oProj = weights.linear(`${name}.o_proj`, features, dims);
  const inputs = states.slot(taps - 1, 3 * width);
  const state = states.slot(heads, headDim, headDim);
  const scan = deltaScan(heads, headDim);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const { steps, betas, open } = gatesOf(x);
    const size = add(astype(steps, "float32"), bias);
    const power =
      least == null
        ? negative(multiply(logAddExp(size, 0), rate))
        : multiply(sigmoid(multiply(size, rate)), least);
    const mixed = step.convolve(inputs, project(x), convolved);
    const gates = { decays: exp(power), betas: sigmoid(astype(betas, "float32")) };
    const read = step.scan(state, { x: mixed, gates }, scan);
    const normed = reshape(headNorm(reshape(read, [-1, heads, headDim])), [-1, width]);
    return oProj(multiply(normed, sigmoid(open)), { residual });
  };
}

/** Computes step sizes (for decays) and output gates (T, heads * features), and betas (T, heads), from x. */
function deltaGates(weights: Weights, name: string, own: AttentionSizes) {
  const { dims, headDim } = own;
  const width = headFeatures(own);
  const [isNarrowF, isNarrowG] = ["f_a_proj", "g_a_proj"].map((part) =>
    weights.matrices.has(`${name}.${part}`),
  );
  const parts = [
    ...(isNarrowF ? ["f_a_proj"] : []),
    ...(isNarrowG ? ["g_a_proj"] : []),
    "b_proj",
  ].map((part) => `${name}.${part}`);
  const heads = headFeatures(own, 1);
  const sizes = parts.map((_, i) => (i === parts.length - 1 ? heads : headDim));
  const narrow = weights.joined(`${name}.narrow_proj`, parts, dims, sizes);
  const wide = (isNarrow: boolean | undefined, part: string) =>
    isNarrow
      ? weights.linear(`${name}.${part}_b_proj`, headDim, width)
      : weights.linear(`${name}.${part}_proj`, dims, width);
  const [steps, open] = [wide(isNarrowF, "f"), wide(isNarrowG, "g")];
  const ends = parts.slice(1).map((_, i) => (i + 1) * headDim);
  return (x: MlxArray) => {
    const made = ends.length > 0 ? split(narrow(x), ends) : [narrow(x)];
    const betas = made.at(-1)!;
    const f = isNarrowF ? made[0]! : x;
    const g = isNarrowG ? made.at(-2)! : x;
    return { steps: steps(f), betas, open: open(g) };
  };
}

/** Loads exp(A_log), a number per head that is repeated for each feature, and dt_bias. */
function featureRates(
  weights: Weights,
  name: string,
  own: AttentionSizes,
): { rate: MlxArray; bias: MlxArray } {
  const { heads, headDim } = own;
  const stored = weights.part(`${name}.A_log`, headFeatures(own, 1), [], "float32");
  const rate = weights.arrays.computed(() =>
    reshape(add(reshape(exp(stored), [heads, 1]), zeros([1, headDim])), [heads * headDim]),
  );
  return { rate, bias: weights.part(`${name}.dt_bias`, headFeatures(own), [], "float32") };
}
