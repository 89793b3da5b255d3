// A delta net with a decay for each feature (KDA), as Kimi Linear, Kimi K3 and Ling 3 have it.
import type { MlxArray } from "../mlx/array.ts";
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
} from "../mlx/ops.ts";
import { type AttentionBlock, projection, rmsNorm } from "./layers.ts";
import { convolution, deltaScan, joinConvolutions } from "./recurrent-layers.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

export type DeltaSizes = { dims: number; heads: number; headDim: number; taps: number };

/**
 * q_proj, k_proj, v_proj, a convolution of each, o_norm, o_proj. Decays, betas and how far what is read is open are
 * made of the input, by f_proj, b_proj and g_proj; f and g in some models by two matrices with a smaller vector between.
 * `least`: of the logarithm of a decay, where it has a limit.
 */
export function deltaAttention(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: DeltaSizes,
  { eps, least }: { eps: number; least?: number | null | undefined },
): AttentionBlock {
  const { dims, heads, headDim, taps } = sizes;
  const width = heads * headDim;
  const project = projection(weights, name, { dims, heads, kvHeads: heads, headDim });
  joinConvolutions(weights, name);
  const convolved = convolution(weights, `${name}.conv1d`, 3 * width, taps, "silu");
  const gatesOf = deltaGates(weights, name, sizes);
  const { rate, bias } = featureRates(weights, name, sizes);
  const headNorm = rmsNorm(weights, `${name}.o_norm`, headDim, eps);
  const oProj = weights.linear(`${name}.o_proj`, width, dims);
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

/** x -> (T, heads * features) of steps and of how far it is open, and (T, heads) of betas. */
function deltaGates(weights: Weights, name: string, { dims, heads, headDim }: DeltaSizes) {
  const width = heads * headDim;
  const [isNarrowF, isNarrowG] = ["f_a_proj", "g_a_proj"].map((part) =>
    weights.has(`${name}.${part}.weight`),
  );
  const parts = [
    ...(isNarrowF ? ["f_a_proj"] : []),
    ...(isNarrowG ? ["g_a_proj"] : []),
    "b_proj",
  ].map((part) => `${name}.${part}`);
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

/** A_log of each head as e to it, for each feature, and dt_bias. */
function featureRates(
  weights: Weights,
  name: string,
  { heads, headDim }: DeltaSizes,
): { rate: MlxArray; bias: MlxArray } {
  const width = heads * headDim;
  const stored = weights.vector(`${name}.A_log`, heads, "float32");
  const rate = weights.computed(() =>
    reshape(add(reshape(exp(stored), [heads, 1]), zeros([1, headDim])), [width]),
  );
  return { rate, bias: weights.vector(`${name}.dt_bias`, width, "float32") };
}
