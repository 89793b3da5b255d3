// Recurrent layers, all sequences of a step in one launch: causal depthwise convolutions, and linear recurrences
// (scans). States are in slots of pools that are written in place, like keys and values.
import type { MlxArray } from "../../mlx/array.ts";

/** Causal depthwise convolution: weight (taps, channels), oldest input first; bias (channels). */
export type Convolution = {
  weight: MlxArray;
  bias?: MlxArray | undefined;
  activation?: "silu" | undefined;
  /** First column of the channels, if rows have more. */
  column?: number | undefined;
};

/**
 * A linear recurrence. Each token updates the state (value heads, value features, key features):
 *
 *     state = decay * state + beta * (value - found) x key        output = state * query
 *
 * where found = state * key with the delta rule, otherwise 0. Several value heads may share a key
 * head.
 */
export type Scan = {
  keyHeads: number;
  /** First column of each in a row. */
  columns: { queries: number; keys: number; values: number };
  /** Queries and keys are divided by their root mean square and scaled. */
  norm?: { eps: number; queryScale: number; keyScale: number } | undefined;
  deltaRule: boolean;
  /**
   * RWKV 7's update in place of the delta rule: subtracts (state * find) x put from the state, where `find` and `put`
   * are columns of two more vectors (key features). Requires decays per feature.
   */
  erasing?: { find: number; put: number } | undefined;
  /** (heads) float32: output += skip * value (Mamba 2's D). */
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

/** Rows (T, columns) of the input projection; the scan computes decays and betas itself. */
export type RawGates = { raw: MlxArray; columns: RawColumns };

/**
 * Per head a column of step sizes, and one of betas:
 *
 *     size = softplus(factor * step + bias), within the limits        decay = exp(rate * size)
 *
 * beta = betaFactor * sigmoid(column), or the size if there are no beta columns. A rate per key
 * feature gives a decay per key feature.
 */
export type RawColumns = {
  /** First column of each in a row. */
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

/** Gated RMSNorm: the norm of each head's output, times silu(gate); the gates begin at `column`. */
export type OutputGate = { column: number; norm: { weight: MlxArray; eps: number } };

/** Recurrent layers as the slot store uses them: kernels, or plain arithmetic in tests. */
export interface Recurrence {
  /** x (T, channels or more), pool (slots, taps - 1, channels) -> (T, channels) */
  convolve(x: MlxArray, pool: MlxArray, moves: MlxArray, convolution: Convolution): MlxArray;
  /** pool (slots, heads, value features, key features) float32 -> (T, heads * value features) */
  scan(inputs: ScanInputs, pool: MlxArray, moves: MlxArray, scan: Scan): MlxArray;
  free(): void;
}

/** Consecutive tokens of a sequence; source (negative: none) and destination slot of its state. */
export type RowMove = { first: number; count: number; from: number; to: number };

/**
 * Four integers per row, after a header of four whose first is the number of rows. As a template
 * argument the number would need a compiled kernel for each value.
 */
export function packMoves(rows: readonly RowMove[]): Int32Array {
  const packed = new Int32Array(4 * (1 + rows.length));
  packed[0] = rows.length;
  for (const [i, { first, count, from, to }] of rows.entries()) {
    packed.set([first, count, from, to], 4 * (1 + i));
  }
  return packed;
}
