// Implements pipeline parallelism: each rank has consecutive layers and sends hidden states to the next rank. The
// first rank embeds tokens, receives the last rank's hidden states and samples, so it has the output matrix.

import { LoadError } from "../../files/load-error.ts";
import { asyncEvaluate, evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import { astype } from "../../mlx/ops.ts";

/** How a model is divided among ranks: each has a part of every layer, or all of some layers. */
export type Parallel = "tensor" | "pipeline";

/** Layers from `first` to `end`, without `end`. */
export type LayerRange = { first: number; end: number };

/** How layers are divided among ranks: by given ranges, or in proportion to each rank's memory. */
export type LayerSplit = { ranges: readonly LayerRange[] } | { memory: readonly number[] };

/** One rank's part of a model divided by layers. */
export type Stage = {
  readonly isFirst: boolean;
  readonly isLast: boolean;
  /** Returns the rank's part of `count` layers. `vocabulary`: embedding and output matrix, as a number of layers. */
  layersOf(count: number, vocabulary: number): LayerRange;
  /** Receives the hidden states (T, D) from the previous rank. */
  receive(tokens: number, dims: number): MlxArray;
  /** Sends hidden states to the next rank. The last rank sends them to the first, where `pass` returns them. */
  pass(hidden: MlxArray, tokens: number, dims: number): MlxArray;
};

export function rankStage(group: Group, dtype: Dtype, split: LayerSplit): Stage {
  const { rank, size } = group;
  const [before, after] = [(rank + size - 1) % size, (rank + 1) % size];
  const isFirst = rank === 0;
  const receive = (tokens: number, dims: number) => group.receive([tokens, dims], dtype, before);
  return {
    isFirst,
    isLast: rank === size - 1,
    layersOf: (count, vocabulary) => layerRanges(count, split, vocabulary)[rank]!,
    receive,
    pass(hidden, tokens, dims) {
      const sent = astype(hidden, dtype);
      evaluate(sent);
      // Sends without waiting: ranks that all wait for their receiver would deadlock.
      asyncEvaluate(group.send(sent, after));
      return isFirst ? receive(tokens, dims) : hidden;
    },
  };
}

/** Returns the layers of every rank. Throws unless the ranges cover all layers in order. */
export function layerRanges(
  count: number,
  split: LayerSplit,
  vocabulary: number,
): readonly LayerRange[] {
  if ("ranges" in split) return checked(count, split.ranges);
  return byMemory(count, split.memory, vocabulary);
}

export function evenly(ranks: number): LayerSplit {
  return { memory: Array<number>(ranks).fill(1) };
}

function checked(count: number, ranges: readonly LayerRange[]): readonly LayerRange[] {
  const isRight =
    ranges.at(-1)?.end === count &&
    ranges.every(({ first, end }, i) => first === (ranges[i - 1]?.end ?? 0) && end > first);
  if (isRight) return ranges;
  const given = ranges.map(({ first, end }) => `${first}-${end - 1}`).join(",");
  throw new LoadError(`config.json: layers 0-${count - 1}, but --layers gives ${given}`);
}

/** Divides layers by memory. The first rank also has the vocabulary, so it gets fewer layers for the same memory. */
function byMemory(
  count: number,
  memory: readonly number[],
  vocabulary: number,
): readonly LayerRange[] {
  const ranks = memory.length;
  if (count < ranks) {
    const found = `${count} layers for ${ranks} ranks`;
    throw new LoadError(`config.json: ${found}: divide it by --parallel tensor`);
  }
  let first = 0;
  return memory.map((own, rank) => {
    const after = memory.slice(rank + 1);
    const beside = rank === 0 ? vocabulary : 0;
    const left = own + after.reduce((sum, each) => sum + each, 0);
    const fair = Math.ceil(((count - first + beside) * own) / left - beside - 0.5);
    // Gives each rank at least one layer.
    const end = Math.min(first + Math.max(fair, 1), count - after.length);
    const range = { first, end };
    first = end;
    return range;
  });
}
