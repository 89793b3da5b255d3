// What architectures with recurrent layers have in common.
import type { Convolution, Scan } from "../../kernels/recurrence/recurrence.ts";
import type { MlxArray } from "../../mlx/array.ts";
import { contiguous, exp, multiply, negative, reshape, swapAxes } from "../../mlx/ops.ts";
import { joined } from "../checkpoint/stored/arrangement.ts";
import type { Step } from "../contract/model.ts";
import type { LayerStates } from "../contract/states.ts";
import { countOf, type Extent, type Extents, partsOf, wholeOf } from "../weights/extents.ts";
import type { Weights } from "../weights/weights.ts";
import { type AnyNorm, dividedNorm } from "./layers.ts";

/** Each channel by itself, over its last `taps` inputs. Files have it as (channels, taps, 1) or (channels, 1, taps). */
export function convolution(
  weights: Weights,
  name: string,
  own: Extents,
  taps: number,
  activation?: "silu",
): Convolution {
  const channels = partsOf(own)
    .map(wholeOf)
    .reduce((a, b) => a + b);
  const shape = [channels, taps];
  weights.arrange([`${name}.weight`], ([stored]) => {
    const [first, ...rest] = stored!.shape;
    const fits = rest.length === 2 && first === channels && rest[0]! * rest[1]! === taps;
    return { ...stored!, name: `${name}.taps`, shape: fits ? shape : stored!.shape };
  });
  const stored = weights.part(`${name}.taps`, own, [taps], "float32");
  const bias = weights.has(`${name}.bias`)
    ? weights.part(`${name}.bias`, own, [], "float32")
    : undefined;
  return { weight: weights.computed(() => contiguous(swapAxes(stored, 0, 1))), bias, activation };
}

/** What each channel was so many tokens ago, in its sequence; 0 before that begins. */
export function delayed(weights: Weights, states: LayerStates, delays: readonly number[]) {
  const [channels, most] = [delays.length, Math.max(...delays)];
  const taps = new Float32Array((most + 1) * channels);
  for (const [channel, delay] of delays.entries()) taps[(most - delay) * channels + channel] = 1;
  const convolution = { weight: weights.constant(taps, [most + 1, channels]) };
  const state = states.slot(most, channels);
  return (x: MlxArray, step: Step) => step.convolve(state, x, convolution);
}

/** Three convolutions as one over the channels of all: `name`.q_conv1d and so on as `name`.conv1d. */
export function joinConvolutions(weights: Weights, name: string): void {
  if (weights.has(`${name}.conv1d.weight`)) return;
  const parts = ["q", "k", "v"].map((part) => `${name}.${part}_conv1d.weight`);
  weights.arrange(parts, (stored) => joined(`${name}.conv1d.weight`, stored));
}

/** How decays follow from steps: (heads) each, float32. */
export function decayRule(weights: Weights, name: string, heads: Extent) {
  const stored = weights.part(`${name}.A_log`, heads, [], "float32");
  return {
    rate: weights.computed(() => negative(exp(stored))),
    bias: weights.part(`${name}.dt_bias`, heads, [], "float32"),
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

/** A norm over each of the groups by itself, with one weight for all features. A rank has some groups, or a part of one. */
export function groupedNorm(
  weights: Weights,
  name: string,
  dims: Extent,
  eps: number,
  groups: number,
): AnyNorm {
  const [width, own] = [wholeOf(dims) / groups, countOf(dims)];
  // Where some ranks have a part of a group, all add up: also those that have one by themselves.
  const isShared = typeof dims !== "number" && groups < weights.group!.size;
  if (groups === 1 || isShared) return dividedNorm(weights, name, dims, eps, groups);
  const weight = weights.part(`${name}.weight`, dims);
  return (x) => {
    const grouped = reshape(x, [-1, own / width, width]);
    return multiply(reshape(weights.device.rmsNorm(grouped, undefined, eps), [-1, own]), weight);
  };
}
