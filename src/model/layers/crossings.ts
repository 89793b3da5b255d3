// What layers make for later ones beside the hidden state. Where ranks have some of the layers each, it goes along with
// the hidden state, from the rank that makes it to the last one that takes it.
import type { MlxArray } from "../../mlx/array.ts";
import { concatenate, reshape, slice, split } from "../../mlx/ops.ts";

/** So many features of every token, that a layer makes, or -1 before the first, and others take up to the last of them. */
export type Crossing = {
  readonly from: number;
  readonly to: number;
  readonly width: number;
  /** (T, width), in a forward pass that has come so far. */
  value?: MlxArray;
};

/** Those that go on to this layer, made by an earlier one. */
export function crossingsAt(layer: number, all: readonly Crossing[]): Crossing[] {
  return all.filter(({ from, to }) => from < layer && layer <= to);
}

export function widthOf(crossings: readonly Crossing[]): number {
  return crossings.reduce((sum, { width }) => sum + width, 0);
}

/** Hidden states (T, ...) and what crosses with them: (T, widths of all) */
export function sideBySide(hidden: MlxArray, crossings: readonly Crossing[]): MlxArray {
  const flat = reshape(hidden, [hidden.shape[0]!, -1]);
  if (crossings.length === 0) return flat;
  return concatenate([flat, ...crossings.map(({ value }) => value!)], -1);
}

/** The hidden states (T, dims) of both: what crosses with them is set. */
export function takeApart(both: MlxArray, dims: number, crossings: Crossing[]): MlxArray {
  if (crossings.length === 0) return both;
  const ends = crossings.map((_, i) => dims + widthOf(crossings.slice(0, i)));
  const [hidden, ...values] = split(both, ends);
  for (const [i, crossing] of crossings.entries()) crossing.value = values[i]!;
  return hidden!;
}

/** A product whose last columns, so many of them, are for later layers too. */
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

/** A product with what an earlier layer has made as its last columns. */
export function takingOver<A extends unknown[]>(
  product: (...inputs: A) => MlxArray,
  from: Crossing,
): (...inputs: A) => MlxArray {
  return (...inputs) => concatenate([product(...inputs), from.value!], -1);
}
