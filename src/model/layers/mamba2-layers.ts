// Builds Mamba 2's mixer: a decay per head and step; groups of heads share keys and queries.
import type { z } from "zod";
import type { Fused } from "../../device/device.ts";
import type { Convolution, RawColumns, Scan } from "../../kernels/recurrence/recurrence.ts";
import { array, type MlxArray } from "../../mlx/array.ts";
import { multiply, slice } from "../../mlx/ops.ts";
import { type BaseConfig, count, type Keys, StepLimits } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import type { Extent } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { type AttentionBlock, headFeatures, kvFeatures, ownHeads } from "./layers.ts";
import { convolution, decayRule, groupedNorm } from "./recurrent-layers.ts";

/** Configuration keys of Mamba 2. */
export const mamba2Keys = {
  mamba_num_heads: count,
  mamba_head_dim: count,
  n_groups: count,
  ssm_state_size: count,
  conv_kernel: count,
  time_step_limit: StepLimits.nullish(),
};

/** Names of Mamba 2's keys in other families. */
export const shortMamba2Keys: Keys = {
  mamba_num_heads: "mamba_n_heads",
  mamba_head_dim: "mamba_d_head",
  n_groups: "mamba_n_groups",
  ssm_state_size: "mamba_d_state",
  conv_kernel: "mamba_d_conv",
};

type Mamba2Config = Pick<BaseConfig, "hidden_size"> & z.infer<z.ZodObject<typeof mamba2Keys>>;

export function mamba2Sizes(config: Mamba2Config): Mamba2Sizes {
  return {
    dims: config.hidden_size,
    heads: config.mamba_num_heads,
    headDim: config.mamba_head_dim,
    groups: config.n_groups,
    stateSize: config.ssm_state_size,
    taps: config.conv_kernel,
    limits: config.time_step_limit ?? [0, Infinity],
  };
}

export type Mamba2Sizes = {
  dims: number;
  heads: number;
  headDim: number;
  groups: number;
  stateSize: number;
  taps: number;
  /** Lower and upper limit of step sizes. */
  limits: readonly [number, number];
};

/** Combines y (T, heads * headDim) and its gate to the input of the output projection. */
export type GatedNorm = (y: MlxArray, gate: MlxArray) => MlxArray;

/** Builds a mixer with the usual norm: applies the gate, then an RMS norm per group. */
export function mamba2Layer(
  config: Mamba2Config & Pick<BaseConfig, "rms_norm_eps">,
  weights: Weights,
  name: string,
  states: LayerStates,
): AttentionBlock {
  const sizes = mamba2Sizes(config);
  return mamba2Mixer(weights, name, states, sizes, (values) => {
    const norm = groupedNorm(weights, `${name}.norm`, values, config.rms_norm_eps, sizes.groups);
    return (y, gate) => norm(weights.device.gate("swiglu", gate, y));
  });
}

/** Factors on parts of the mixer's projected input. */
export type Mamba2Factors = { values: number; keys: number; queries: number; steps: number };

/** Builds a mixer from in_proj, conv1d, A_log, D, dt_bias, out_proj. `makeNorm` gets this rank's output features. */
export function mamba2Mixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  sizes: Mamba2Sizes,
  makeNorm: (values: Extent) => GatedNorm,
  factors?: Mamba2Factors,
): AttentionBlock {
  const { dims, headDim, stateSize, taps, limits } = sizes;
  const own = ownHeads(weights, name, { ...sizes, kvHeads: sizes.groups }, "out_proj");
  const { heads, kvHeads: groups } = own;
  const steps = headFeatures(own, 1);
  const outputs = headFeatures(own);
  const [values, keys] = [heads * headDim, groups * stateSize];
  const ownKeys = kvFeatures(own, stateSize);
  const ownChannels = [outputs, ownKeys, ownKeys];
  const channels = values + 2 * keys;
  const project = weights.linear(`${name}.in_proj`, dims, [outputs, ...ownChannels, steps]);
  const unscaled = convolution(weights, `${name}.conv1d`, ownChannels, taps, "silu");
  const scaled = factors
    ? scaledInputs(weights, unscaled, [
        [values, factors.values],
        [keys, factors.keys],
        [keys, factors.queries],
      ])
    : unscaled;
  const convolved = { ...scaled, column: values };
  const columns: RawColumns = {
    ...decayRule(weights, name, steps),
    steps: values + channels,
    factor: factors?.steps,
    limits,
  };
  const gatedNorm = makeNorm(outputs);
  const outProj = weights.linear(`${name}.out_proj`, outputs, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(heads, headDim, stateSize);
  const scan: Scan = {
    keyHeads: groups,
    columns: { values: 0, keys: values, queries: values + keys },
    deltaRule: false,
    skip: weights.part(`${name}.D`, steps, [], "float32"),
  };
  return (x, step, { norm, residual }: Pick<Fused, "norm" | "residual"> = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const y = step.scan(state, { x: mixed, gates: { raw, columns } }, scan);
    return outProj(gatedNorm(y, slice(raw, 1, 0, values)), { residual });
  };
}

/** Folds factors on the convolution's inputs into its weights. `runs`: consecutive channels that share a factor. */
function scaledInputs(
  weights: Weights,
  { weight, ...rest }: Convolution,
  runs: readonly (readonly [channels: number, factor: number])[],
): Convolution {
  const factors = runs.flatMap(([channels, factor]) => Array<number>(channels).fill(factor));
  const scale = () => multiply(weight, array(Float32Array.from(factors)));
  return { ...rest, weight: weights.arrays.computed(scale) };
}
