// Builds parts that recurrent architectures share.
import type { Convolution, Scan } from "../../kernels/recurrence/recurrence.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { contiguous, exp, multiply, negative, reshape, swapAxes } from "../../mlx/ops.ts";
import { joined } from "../checkpoint/stored/arrangement.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent, type Extents, partsOf, sumOf, wholeOf } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { type AnyNorm, dividedNorm } from "./layers.ts";

/** Loads a convolution over each channel's last `taps` inputs: (channels, taps, 1) or (channels, 1, taps). */
export function convolution(
  weights: Weights,
  name: string,
  own: Extents,
  taps: number,
  activation?: "silu",
): Convolution {
  const channels = sumOf(partsOf(own).map(wholeOf));
  const shape = [channels, taps];
  weights.stored.arrange([`${name}.weight`], ([stored]) => {
    const [first, ...rest] = stored!.shape;
    const fits = rest.length === 2 && first === channels && rest[0]! * rest[1]! === taps;
    return { ...stored!, name: `${name}.taps`, shape: fits ? shape : stored!.shape };
  });
  const stored = weights.part(`${name}.taps`, own, [taps], "float32");
  const bias = weights.stored.has(`${name}.bias`)
    ? weights.part(`${name}.bias`, own, [], "float32")
    : undefined;
  const weight = weights.arrays.computed(() => contiguous(swapAxes(stored, 0, 1)));
  return { weight, bias, activation };
}

/** Returns a function that delays each channel of x by `delay` tokens, with 0 before a sequence begins. */
export function delayed(weights: Weights, states: LayerStates, delays: readonly number[]) {
  const [channels, most] = [delays.length, Math.max(...delays)];
  const taps = new Float32Array((most + 1) * channels);
  for (const [channel, delay] of delays.entries()) taps[(most - delay) * channels + channel] = 1;
  const convolution = { weight: weights.arrays.constant(taps, [most + 1, channels]) };
  const state = states.slot(most, channels);
  return (x: MlxArray, step: Step) => step.convolve(state, x, convolution);
}

/** Joins `name`.q_conv1d, k_conv1d and v_conv1d to one `name`.conv1d over all their channels. */
export function joinConvolutions({ stored }: Weights, name: string): void {
  if (stored.has(`${name}.conv1d.weight`)) return;
  const parts = ["q", "k", "v"].map((part) => `${name}.${part}_conv1d.weight`);
  stored.arrange(parts, (all) => joined(`${name}.conv1d.weight`, all));
}

/** Loads the rate and the bias that turn step sizes into decays: (heads) each, float32. */
export function decayRule(weights: Weights, name: string, heads: Extent) {
  const stored = weights.part(`${name}.A_log`, heads, [], "float32");
  return {
    rate: weights.arrays.computed(() => negative(exp(stored))),
    bias: weights.part(`${name}.dt_bias`, heads, [], "float32"),
  };
}

/** Describes a scan whose queries and keys are scaled to L2 norm 1, then queries by keyDim ** -0.5. */
export function deltaScan(keyHeads: number, keyDim: number): Scan {
  const [keys, scale] = [keyHeads * keyDim, keyDim ** -0.5];
  return {
    keyHeads,
    columns: { queries: 0, keys, values: 2 * keys },
    norm: { eps: 1e-6 * scale ** 2, queryScale: scale ** 2, keyScale: scale },
    deltaRule: true,
  };
}

/** Loads an RMS norm per group, with one weight vector. A rank has whole groups, or a part of one. */
export function groupedNorm(
  weights: Weights,
  name: string,
  dims: Extent,
  eps: number,
  groups: number,
): AnyNorm {
  const [width, own] = [wholeOf(dims) / groups, countOf(dims)];
  // With fewer groups than ranks, ranks have parts of groups, and all must take part in the sums.
  const isShared = typeof dims !== "number" && groups < weights.ranks.group!.size;
  if (groups === 1 || isShared) return dividedNorm(weights, name, dims, eps, groups);
  const weight = weights.part(`${name}.weight`, dims);
  return (x) => {
    const grouped = reshape(x, [-1, own / width, width]);
    return multiply(reshape(weights.device.rmsNorm(grouped, undefined, eps), [-1, own]), weight);
  };
}
