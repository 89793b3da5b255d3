// What recurrent layers do with the tokens of a step, all sequences in one launch: short convolutions, and scans of
// a state. States are in slots of pools that are written to in place, as keys and values are.
import type { MlxArray } from "../../mlx/array.ts";

/** Each channel by itself over its last inputs: weight (taps, channels), the oldest first; bias (channels). */
export type Convolution = {
  weight: MlxArray;
  bias?: MlxArray | undefined;
  activation?: "silu" | undefined;
  /** Where in a row its channels begin, if a row has more. */
  column?: number | undefined;
};

/**
 * A state (value heads, value features, key features) that each token changes:
 *
 *     state = decay * state + beta * (value - found) x key        output = state * query
 *
 * where found = state * key with the delta rule, and 0 without. Heads of values share the keys and queries of fewer.
 */
export type Scan = {
  keyHeads: number;
  /** Where in a row each begins. */
  columns: { queries: number; keys: number; values: number };
  /** Queries and keys are divided by their root mean square and scaled. */
  norm?: { eps: number; queryScale: number; keyScale: number } | undefined;
  deltaRule: boolean;
  /**
   * In place of the delta rule, where in a row two more vectors (key features) begin: what is found with the one is
   * taken away along the other. With a decay for each feature.
   */
  erasing?: { find: number; put: number } | undefined;
  /** (heads) float32: by this factor a value is added to its output. */
  skip?: MlxArray | undefined;
};

export type ScanInputs = {
  /** (T, columns): queries, keys and values side by side. */
  x: MlxArray;
  gates: GivenGates | RawGates;
};

export type GivenGates = {
  /** (T, heads), or (T, heads * key features); float32. */
  decays: MlxArray;
  /** (T, heads) float32 */
  betas: MlxArray;
};

/** Rows (T, columns) as a product makes them, and what the scan makes of their columns. */
export type RawGates = { raw: MlxArray; columns: RawColumns };

/**
 * A head has a column of steps, and one of betas:
 *
 *     size = softplus(factor * step + bias), within the limits        decay = exp(rate * size)
 *
 * and beta is the sigmoid of its column times a factor, or the size where there are no such columns. With a rate for each key feature
 * there is a decay for each.
 */
export type RawColumns = {
  /** Where in a row each begins. */
  steps: number;
  betas?: number | undefined;
  /** (heads) or (heads * key features), float32 */
  rate: MlxArray;
  /** (heads) float32 */
  bias: MlxArray;
  factor?: number | undefined;
  betaFactor?: number | undefined;
  limits?: readonly [least: number, most: number] | undefined;
  output?: OutputGate | undefined;
};

/** An RMS norm over the output of each head, times the silu of as many columns as there are outputs. */
export type OutputGate = { column: number; norm: { weight: MlxArray; eps: number } };

/** What the slot store needs: kernels, or plain arithmetic in tests. */
export interface Recurrence {
  /** x (T, channels or more), pool (slots, taps - 1, channels) -> (T, channels) */
  convolve(x: MlxArray, pool: MlxArray, moves: MlxArray, convolution: Convolution): MlxArray;
  /** pool (slots, heads, value features, key features) float32 -> (T, heads * value features) */
  scan(inputs: ScanInputs, pool: MlxArray, moves: MlxArray, scan: Scan): MlxArray;
  free(): void;
}

/** Consecutive tokens of a sequence, and the slots of its state before them, below 0 for none, and after them. */
export type RowMove = { first: number; count: number; from: number; to: number };

/**
 * Four integers a row, behind a header of as many: the first says how many rows there are. A kernel could not know
 * otherwise, unless it was compiled anew for each number of them.
 */
export function packMoves(rows: readonly RowMove[]): Int32Array {
  const packed = new Int32Array(4 * (1 + rows.length));
  packed[0] = rows.length;
  for (const [i, { first, count, from, to }] of rows.entries()) {
    packed.set([first, count, from, to], 4 * (1 + i));
  }
  return packed;
}
