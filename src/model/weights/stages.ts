// A model whose layers are divided among ranks: each has some that follow each other, and passes hidden states on to the
// next. The first embeds tokens, and gets the last one's hidden states back: it has the output matrix, and draws.

import { LoadError } from "../../files/load-error.ts";
import { asyncEvaluate, evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Group } from "../../mlx/distributed.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import { astype } from "../../mlx/ops.ts";

/** Layers from the first on, before the end. */
export type LayerRange = { first: number; end: number };

/** Which layers each rank has: these, or as many as its part of the memory. */
export type LayerSplit = { ranges: readonly LayerRange[] } | { memory: readonly number[] };

/** What a rank has of a model whose layers are divided. */
export type Stage = {
  readonly isFirst: boolean;
  readonly isLast: boolean;
  /** Which of so many layers it has; `vocabulary`: what that takes, in layers. */
  layersOf(count: number, vocabulary: number): LayerRange;
  /** The hidden states (T, D) that the rank before has made. */
  receive(tokens: number, dims: number): MlxArray;
  /** Sends them to the next rank, or the last rank's to the first; what the first rank gets back are the last one's. */
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
      // It is not waited for: ranks that all wait for their receiver would do so for ever.
      asyncEvaluate(group.send(sent, after));
      return isFirst ? receive(tokens, dims) : hidden;
    },
  };
}

/** Of every rank; throws where they are not all of so many layers. */
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
  throw new LoadError(`config.json: layers 0-${count - 1}, and --layers says ${given}`);
}

/** The first rank also has the vocabulary, and so fewer layers than others with as much memory. */
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
    // Everyone has a layer.
    const end = Math.min(first + Math.max(fair, 1), count - after.length);
    const range = { first, end };
    first = end;
    return range;
  });
}
