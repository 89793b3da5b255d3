// Mamba's first mixer: a recurrent state for each channel, whose decays, keys and queries follow from all channels.
import type { Norm } from "../device/device.ts";
import type { MlxArray } from "../mlx/array.ts";
import { concatenate, exp, negative, reshape, slice, split } from "../mlx/ops.ts";
import type { AttentionBlock } from "./layers.ts";
import { convolution } from "./recurrent-layers.ts";
import type { LayerStates } from "./states.ts";
import type { Weights } from "./weights.ts";

export type MambaSizes = {
  dims: number;
  channels: number;
  stateSize: number;
  /** Of the vector that step sizes are products of. */
  rank: number;
  /** Of its convolution. */
  taps: number;
};

type AnyNorm = Norm | ((x: MlxArray) => MlxArray);

/** Of that vector, of keys (B) and of queries (C), in models that have them. */
export type MambaNorms = { steps: AnyNorm; keys: AnyNorm; queries: AnyNorm };

/** in_proj, conv1d, x_proj, dt_proj, A_log, D, out_proj. */
export function mambaMixer(
  weights: Weights,
  name: string,
  states: LayerStates,
  { dims, channels, stateSize, rank, taps }: MambaSizes,
  norms?: MambaNorms,
): AttentionBlock {
  const project = weights.linear(`${name}.in_proj`, dims, 2 * channels);
  const convolved = {
    ...convolution(weights, `${name}.conv1d`, channels, taps, "silu"),
    column: 0,
  };
  const narrow = weights.linear(`${name}.x_proj`, channels, rank + 2 * stateSize);
  // Its bias is that of the steps.
  const toSteps = weights.linear(`${name}.dt_proj`, rank, channels);
  const stored = weights.tensor(`${name}.A_log`, [channels, stateSize], "float32");
  const columns = {
    steps: 0,
    rate: weights.computed(() => reshape(negative(exp(stored)), [channels * stateSize])),
    bias: weights.constant(new Float32Array(channels)),
  };
  const outProj = weights.linear(`${name}.out_proj`, channels, dims);
  const inputs = states.slot(taps - 1, channels);
  const state = states.slot(channels, 1, stateSize);
  const scan = {
    keyHeads: 1,
    columns: { values: 0, keys: channels, queries: channels + stateSize },
    deltaRule: false,
    skip: weights.tensor(`${name}.D`, [channels], "float32"),
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
