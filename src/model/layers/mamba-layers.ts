// Builds Mamba's first mixer: a recurrent state per channel, whose decays, keys and queries depend on all channels.
import { z } from "zod";
import type { MlxArray } from "../../mlx/array.ts";
import { concatenate, exp, negative, reshape, slice, split } from "../../mlx/ops.ts";
import { type BaseConfig, count } from "../checkpoint/config.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent, times } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import type { AnyNorm, AttentionBlock } from "./layers.ts";
import { convolution, decayRule } from "./recurrent-layers.ts";

/** Configuration keys of Mamba. */
export const mambaKeys = {
  state_size: count,
  conv_kernel: count,
  time_step_rank: z.union([count, z.literal("auto")]),
};

type MambaConfig = Pick<BaseConfig, "hidden_size"> & z.infer<z.ZodObject<typeof mambaKeys>>;

export function mambaSizes(config: MambaConfig, channels: number): MambaSizes {
  const { hidden_size: dims, time_step_rank: rank, state_size: stateSize } = config;
  return {
    dims,
    channels,
    stateSize,
    rank: rank === "auto" ? Math.ceil(dims / 16) : rank,
    taps: config.conv_kernel,
  };
}

export type MambaSizes = {
  dims: number;
  channels: number;
  /** Number of heads, if channels are grouped so that a head has one step size and one decay. */
  heads?: number | undefined;
  stateSize: number;
  /** Size of the vector that step sizes are projected from. */
  rank: number;
  /** Number of taps of the convolution. */
  taps: number;
};

/** Norms of step sizes before their projection, of keys (B) and of queries (C), in models that have them. */
export type MambaNorms = { steps: AnyNorm; keys: AnyNorm; queries: AnyNorm };

/** Builds a mixer from in_proj, conv1d, x_proj, dt_proj, A_log, D, out_proj, and with heads dt_bias. */
export function mambaMixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  { dims, channels: width, heads, stateSize, rank, taps }: MambaSizes,
  norms?: MambaNorms,
): AttentionBlock {
  const headDim = heads ? width / heads : 1;
  const inputOf = [`${name}.x_proj`, `${name}.out_proj`];
  const own = weights.ranks.divide(width, { unit: headDim, inputOf });
  const [channels, ownHeads] = [countOf(own), times(own, 1 / headDim)];
  const project = weights.linear(`${name}.in_proj`, dims, [own, own]);
  const convolved = { ...convolution(weights, `${name}.conv1d`, own, taps, "silu"), column: 0 };
  // Steps, keys and queries depend on all channels, so the ranks' partial products are summed.
  const narrow = weights.linear(`${name}.x_proj`, own, rank + 2 * stateSize);
  const toSteps = weights.linear(`${name}.dt_proj`, rank, ownHeads);
  const rule = heads
    ? decayRule(weights, name, ownHeads)
    : channelRule(weights, name, own, stateSize);
  const columns = { steps: 0, ...rule };
  const outProj = weights.linear(`${name}.out_proj`, own, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(countOf(ownHeads), headDim, stateSize);
  const scan = {
    keyHeads: 1,
    columns: { values: 0, keys: channels, queries: channels + stateSize },
    deltaRule: false,
    skip: weights.part(`${name}.D`, ownHeads, [], "float32"),
  };
  return (x, step, { norm, residual } = {}) => {
    const raw = project(x, { norm });
    const mixed = step.convolve(inputs, raw, convolved);
    const parts = split(narrow(mixed), [rank, rank + stateSize]);
    const [steps, keys, queries] = parts as [MlxArray, MlxArray, MlxArray];
    const sized = toSteps(norms ? norms.steps(steps) : steps);
    const all = norms ? [mixed, norms.keys(keys), norms.queries(queries)] : [mixed, keys, queries];
    const gates = { raw: sized, columns };
    const y = step.scan(state, { x: concatenate(all, -1), gates }, scan);
    const gate = slice(raw, 1, channels, 2 * channels);
    return outProj(weights.device.gate("swiglu", gate, y), { residual });
  };
}

/** Loads the rate and the bias that turn step sizes into decays, per channel and state feature. */
function channelRule(weights: Weights, name: string, channels: Extent, stateSize: number) {
  const stored = weights.part(`${name}.A_log`, channels, [stateSize], "float32");
  return {
    rate: weights.arrays.computed(() => reshape(negative(exp(stored)), [stored.size])),
    // The bias is 0, because dt_proj has already added it.
    bias: weights.arrays.constant(new Float32Array(countOf(channels))),
  };
}
