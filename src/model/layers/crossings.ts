// Crossings: values that layers pass to later layers in addition to the hidden state. With pipeline parallelism a
// value travels with the hidden state, from the rank that computes it to the last one that reads it.
import type { MlxArray } from "../../mlx/array.ts";
import { concatenate, reshape, slice, split } from "../../mlx/ops.ts";

/** Value of `width` features per token that layer `from` (-1: the input) makes and layers up to `to` read. */
export type Crossing = {
  readonly from: number;
  readonly to: number;
  readonly width: number;
  /** (T, width), once the forward pass has computed it. */
  value?: MlxArray;
};

/** Returns the crossings that are made before this layer and read by this layer or later ones. */
export function crossingsAt(layer: number, all: readonly Crossing[]): Crossing[] {
  return all.filter(({ from, to }) => from < layer && layer <= to);
}

export function widthOf(crossings: readonly Crossing[]): number {
  return crossings.reduce((sum, { width }) => sum + width, 0);
}

/** Concatenates the hidden state (T, ...) and crossings along the features: (T, sum of widths) */
export function sideBySide(hidden: MlxArray, crossings: readonly Crossing[]): MlxArray {
  const flat = reshape(hidden, [hidden.shape[0]!, -1]);
  if (crossings.length === 0) return flat;
  return concatenate([flat, ...crossings.map(({ value }) => value!)], -1);
}

/** Splits what `sideBySide` concatenates: returns the hidden state (T, dims) and sets the crossings. */
export function takeApart(both: MlxArray, dims: number, crossings: Crossing[]): MlxArray {
  if (crossings.length === 0) return both;
  const ends = crossings.map((_, i) => dims + widthOf(crossings.slice(0, i)));
  const [hidden, ...values] = split(both, ends);
  for (const [i, crossing] of crossings.entries()) crossing.value = values[i]!;
  return hidden!;
}

/** Wraps a projection so that its last `width` output columns are also stored in the crossing, for later layers. */
export function handingOn<A extends unknown[]>(
  product: (...inputs: A) => MlxArray,
  width: number,
  to: Crossing,
): (...inputs: A) => MlxArray {
  return (...inputs) => {
    const made = product(...inputs);
    to.value = slice(made, 1, -width);
    return made;
  };
}

/** Wraps a projection so that an earlier layer's crossing is appended as the last columns of its output. */
export function takingOver<A extends unknown[]>(
  product: (...inputs: A) => MlxArray,
  from: Crossing,
): (...inputs: A) => MlxArray {
  return (...inputs) => concatenate([product(...inputs), from.value!], -1);
}
