// What architectures with recurrent layers have in common.
import type { Fused } from "../device/device.ts";
import type { Convolution, Scan } from "../kernels/recurrence.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import {
  add,
  astype,
  clip,
  contiguous,
  exp,
  logAddExp,
  multiply,
  negative,
  reshape,
  sigmoid,
  slice,
  split,
  swapAxes,
  zeros,
} from "../mlx/ops.ts";
import { type AttentionBlock, rmsNorm } from "./layers.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

/** Each channel by itself, over its last `taps` inputs. Files have it as (channels, taps, 1) or (channels, 1, taps). */
export function convolution(
  weights: Weights,
  name: string,
  channels: number,
  taps: number,
  activation?: "silu",
): Convolution {
  const shape = [channels, taps];
  weights.arrange([`${name}.weight`], ([stored]) => {
    const fits = stored!.shape.length === 3 && stored!.shape[0] === channels;
    return { ...stored!, name: `${name}.taps`, shape: fits ? shape : stored!.shape };
  });
  const stored = weights.tensor(`${name}.taps`, shape, "float32");
  const bias = weights.has(`${name}.bias`)
    ? weights.tensor(`${name}.bias`, [channels], "float32")
    : undefined;
  return { weight: weights.computed(() => contiguous(swapAxes(stored, 0, 1))), bias, activation };
}

/** Of inputs that have a factor on so many channels each: its weights may as well have it. */
function scaledInputs(
  weights: Weights,
  { weight, ...rest }: Convolution,
  runs: readonly (readonly [channels: number, factor: number])[],
): Convolution {
  const factors = runs.flatMap(([channels, factor]) => Array<number>(channels).fill(factor));
  const scale = () => multiply(weight, array(Float32Array.from(factors)));
  return { ...rest, weight: weights.computed(scale) };
}

/** exp(-exp(A_log) * step): how much of a state is left after a step of this size, of a head or of a feature. */
export function decayOf(
  weights: Weights,
  name: string,
  heads: number,
  features = 1,
): (step: MlxArray) => MlxArray {
  const stored = weights.tensor(name, [heads], "float32");
  const rate = weights.computed(() => {
    const byFeature = add(reshape(negative(exp(stored)), [heads, 1]), zeros([1, features]));
    return reshape(byFeature, [heads * features]);
  });
  return (step) => exp(multiply(step, rate));
}

/** log(1 + e^(x + bias)) in float32 */
export function stepOf(weights: Weights, name: string, heads: number): (x: MlxArray) => MlxArray {
  const bias = weights.tensor(name, [heads], "float32");
  return (x) => logAddExp(add(astype(x, "float32"), bias), 0);
}

export type DeltaNetSizes = {
  dims: number;
  keyHeads: number;
  valueHeads: number;
  keyDim: number;
  valueDim: number;
  /** Of its convolution. */
  taps: number;
};

/** A gated delta net: in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, conv1d, A_log, dt_bias, norm, out_proj. */
export function deltaNet(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: DeltaNetSizes,
  eps: number,
): AttentionBlock {
  const { dims, keyHeads, valueHeads, keyDim, valueDim, taps } = sizes;
  const [keys, values] = [keyHeads * keyDim, valueHeads * valueDim];
  const channels = 2 * keys + values;
  const qkv = weights.linear(`${name}.in_proj_qkv`, dims, channels);
  const z = weights.linear(`${name}.in_proj_z`, dims, values);
  const parts = [`${name}.in_proj_b`, `${name}.in_proj_a`];
  const gates = weights.joined(`${name}.in_proj_gates`, parts, dims, [valueHeads, valueHeads]);
  const convolved = convolution(weights, `${name}.conv1d`, channels, taps, "silu");
  const decay = decayOf(weights, `${name}.A_log`, valueHeads);
  const stepSize = stepOf(weights, `${name}.dt_bias`, valueHeads);
  const headNorm = rmsNorm(weights, `${name}.norm`, valueDim, eps);
  const outProj = weights.linear(`${name}.out_proj`, values, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(valueHeads, valueDim, keyDim);
  const scan = deltaScan(keyHeads, keyDim);
  return (input, step, { norm, residual } = {}) => {
    const x = norm ? norm(input) : input;
    const [b, a] = split(gates(x), 2) as [MlxArray, MlxArray];
    const betas = sigmoid(astype(b, "float32"));
    const mixed = step.convolve(inputs, qkv(x), convolved);
    const read = step.scan(state, { x: mixed, decays: decay(stepSize(a)), betas }, scan);
    const normed = headNorm(reshape(read, [-1, valueHeads, valueDim]));
    const gated = weights.device.gate("swiglu", z(x), reshape(normed, [-1, values]));
    return outProj(gated, { residual });
  };
}

/** Of queries, keys and values in this order; queries and keys have the length 1 before a query is scaled. */
export function deltaScan(keyHeads: number, keyDim: number): Scan {
  const [keys, scale] = [keyHeads * keyDim, keyDim ** -0.5];
  return {
    keyHeads,
    columns: { queries: 0, keys, values: 2 * keys },
    norm: { eps: 1e-6 * scale ** 2, queryScale: scale ** 2, keyScale: scale },
    deltaRule: true,
  };
}

export type Mamba2Sizes = {
  dims: number;
  heads: number;
  headDim: number;
  groups: number;
  stateSize: number;
  taps: number;
  /** Of a step's size. */
  limits: readonly [number, number];
};

/** y (T, heads * headDim) and its gate -> what the output projection takes. */
export type GatedNorm = (y: MlxArray, gate: MlxArray) => MlxArray;

/** The usual one: the gate first, then a norm, over each of the groups by itself. */
export function normAfterGate(
  weights: Weights,
  name: string,
  dims: number,
  eps: number,
  groups = 1,
): GatedNorm {
  const norm = groupedNorm(weights, name, dims, eps, groups);
  return (y, gate) => norm(weights.device.gate("swiglu", gate, y));
}

/** A norm over each of the groups by itself, with one weight for all features. */
export function groupedNorm(
  weights: Weights,
  name: string,
  dims: number,
  eps: number,
  groups: number,
): (x: MlxArray) => MlxArray {
  if (groups === 1) return rmsNorm(weights, name, dims, eps);
  const weight = weights.tensor(`${name}.weight`, [dims]);
  return (x) => {
    const grouped = reshape(x, [-1, groups, dims / groups]);
    return multiply(reshape(weights.device.rmsNorm(grouped, undefined, eps), [-1, dims]), weight);
  };
}

/** Factors on parts of what goes into a mixer. */
export type Mamba2Factors = { values: number; keys: number; queries: number; steps: number };

/** Mamba 2's mixer: in_proj, conv1d, A_log, D, dt_bias, out_proj, and a norm of the caller's. */
export function mamba2Mixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  { dims, heads, headDim, groups, stateSize, taps, limits }: Mamba2Sizes,
  gatedNorm: GatedNorm,
  factors?: Mamba2Factors,
): AttentionBlock {
  const [values, keys] = [heads * headDim, groups * stateSize];
  const channels = values + 2 * keys;
  const inProj = `${name}.in_proj`;
  weights.check(inProj, [values + channels + heads, dims]);
  weights.pick(inProj, `${inProj}_z`, [{ first: 0, count: values }]);
  weights.pick(inProj, `${inProj}_x`, [{ first: values, count: channels }]);
  weights.pick(inProj, `${inProj}_dt`, [{ first: values + channels, count: heads }]);
  const z = weights.linear(`${inProj}_z`, dims, values);
  const xbc = weights.linear(`${inProj}_x`, dims, channels);
  const dt = weights.linear(`${inProj}_dt`, dims, heads);
  const unscaled = convolution(weights, `${name}.conv1d`, channels, taps, "silu");
  const convolved = factors
    ? scaledInputs(weights, unscaled, [
        [values, factors.values],
        [keys, factors.keys],
        [keys, factors.queries],
      ])
    : unscaled;
  const decay = decayOf(weights, `${name}.A_log`, heads);
  const stepSize = stepOf(weights, `${name}.dt_bias`, heads);
  const skip = weights.tensor(`${name}.D`, [heads]);
  const skips = weights.computed(() => reshape(skip, [heads, 1]));
  const outProj = weights.linear(`${name}.out_proj`, values, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(heads, headDim, stateSize);
  const scan: Scan = {
    keyHeads: groups,
    columns: { values: 0, keys: values, queries: values + keys },
    deltaRule: false,
  };
  const [least, most] = limits;
  const scaledSteps = (x: MlxArray) => (factors ? multiply(dt(x), factors.steps) : dt(x));
  return (input, step, { norm, residual }: Pick<Fused, "norm" | "residual"> = {}) => {
    const x = norm ? norm(input) : input;
    const sizes = clip(stepSize(scaledSteps(x)), least, most);
    const mixed = step.convolve(inputs, xbc(x), convolved);
    const read = step.scan(state, { x: mixed, decays: decay(sizes), betas: sizes }, scan);
    const own = reshape(slice(mixed, 1, 0, values), [-1, heads, headDim]);
    const y = add(read, reshape(multiply(own, skips), [-1, values]));
    return outProj(gatedNorm(y, z(x)), { residual });
  };
}
