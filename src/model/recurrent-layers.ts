// What architectures with recurrent layers have in common.
import type { Fused } from "../device/device.ts";
import type { Convolution, RawColumns, Scan } from "../kernels/recurrence.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { contiguous, exp, multiply, negative, reshape, slice, swapAxes } from "../mlx/ops.ts";
import { joined } from "./arrangement.ts";
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
    const [first, ...rest] = stored!.shape;
    const fits = rest.length === 2 && first === channels && rest[0]! * rest[1]! === taps;
    return { ...stored!, name: `${name}.taps`, shape: fits ? shape : stored!.shape };
  });
  const stored = weights.tensor(`${name}.taps`, shape, "float32");
  const bias = weights.has(`${name}.bias`)
    ? weights.tensor(`${name}.bias`, [channels], "float32")
    : undefined;
  return { weight: weights.computed(() => contiguous(swapAxes(stored, 0, 1))), bias, activation };
}

/** Three convolutions as one over the channels of all: `name`.q_conv1d and so on as `name`.conv1d. */
export function joinConvolutions(weights: Weights, name: string): void {
  if (weights.has(`${name}.conv1d.weight`)) return;
  const parts = ["q", "k", "v"].map((part) => `${name}.${part}_conv1d.weight`);
  weights.arrange(parts, (stored) => joined(`${name}.conv1d.weight`, stored));
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

/** How decays follow from steps: (heads) each, float32. */
export function decayRule(weights: Weights, name: string, heads: number) {
  const stored = weights.tensor(`${name}.A_log`, [heads], "float32");
  return {
    rate: weights.computed(() => negative(exp(stored))),
    bias: weights.tensor(`${name}.dt_bias`, [heads], "float32"),
  };
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

/**
 * A gated delta net: in_proj_qkv (or q_proj, k_proj, v_proj), in_proj_z, in_proj_b, in_proj_a, conv1d, A_log, dt_bias,
 * norm, out_proj. Betas are up to `most`.
 */
export function deltaNet(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: DeltaNetSizes,
  eps: number,
  most = 1,
): AttentionBlock {
  const { dims, keyHeads, valueHeads, keyDim, valueDim, taps } = sizes;
  const [keys, values] = [keyHeads * keyDim, valueHeads * valueDim];
  const channels = 2 * keys + values;
  const isJoint = weights.has(`${name}.in_proj_qkv.weight`);
  const qkv = isJoint ? ["in_proj_qkv"] : ["q_proj", "k_proj", "v_proj"];
  const parts = [...qkv, "in_proj_z", "in_proj_b", "in_proj_a"].map((part) => `${name}.${part}`);
  const widths = isJoint ? [channels] : [keys, keys, values];
  const outputs = [...widths, values, valueHeads, valueHeads];
  const project = weights.joined(`${name}.in_proj`, parts, dims, outputs);
  const convolved = {
    ...convolution(weights, `${name}.conv1d`, channels, taps, "silu"),
    column: 0,
  };
  const columns: RawColumns = {
    ...decayRule(weights, name, valueHeads),
    betas: channels + values,
    steps: channels + values + valueHeads,
    betaFactor: most,
    output: { column: channels, norm: rmsNorm(weights, `${name}.norm`, valueDim, eps) },
  };
  const outProj = weights.linear(`${name}.out_proj`, values, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(valueHeads, valueDim, keyDim);
  const scan = deltaScan(keyHeads, keyDim);
  return (x, step, { norm, residual } = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const read = step.scan(state, { x: mixed, gates: { raw, columns } }, scan);
    return outProj(read, { residual });
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
  const project = weights.linear(`${name}.in_proj`, dims, values + channels + heads);
  const unscaled = convolution(weights, `${name}.conv1d`, channels, taps, "silu");
  const scaled = factors
    ? scaledInputs(weights, unscaled, [
        [values, factors.values],
        [keys, factors.keys],
        [keys, factors.queries],
      ])
    : unscaled;
  const convolved = { ...scaled, column: values };
  const columns: RawColumns = {
    ...decayRule(weights, name, heads),
    steps: values + channels,
    factor: factors?.steps,
    limits,
  };
  const outProj = weights.linear(`${name}.out_proj`, values, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(heads, headDim, stateSize);
  const scan: Scan = {
    keyHeads: groups,
    columns: { values: 0, keys: values, queries: values + keys },
    deltaRule: false,
    skip: weights.tensor(`${name}.D`, [heads], "float32"),
  };
  return (x, step, { norm, residual }: Pick<Fused, "norm" | "residual"> = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const y = step.scan(state, { x: mixed, gates: { raw, columns } }, scan);
    return outProj(gatedNorm(y, slice(raw, 1, 0, values)), { residual });
  };
}
