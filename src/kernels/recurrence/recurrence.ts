// Recurrent layers, for all sequences of a step in one launch: causal depthwise convolutions, and linear recurrences
// (scans). States are in slots of pools, which are written in place, like keys and values.
import type { MlxArray } from "../../mlx/array.ts";

/** Causal depthwise convolution: weight (taps, channels), oldest input first; bias (channels). */
export type Convolution = {
  weight: MlxArray;
  bias?: MlxArray | undefined;
  activation?: "silu" | undefined;
  /** First column of the channels, if rows have other columns too. */
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
  /** First column of the queries, keys and values in a row. */
  columns: { queries: number; keys: number; values: number };
  /** Norm of queries and keys, if any: each is divided by its root mean square and scaled. */
  norm?: { eps: number; queryScale: number; keyScale: number } | undefined;
  deltaRule: boolean;
  /**
   * RWKV 7's update instead of the delta rule: subtracts (state * find) x put from the state, where `find` and `put`
   * are columns of two more vectors (key features). Requires decays per feature.
   */
  erasing?: { find: number; put: number } | undefined;
  /** Skip weights (heads) in float32: output += skip * value (Mamba 2's D). */
  skip?: MlxArray | undefined;
};

export type ScanInputs = {
  /** Rows (T, columns) with queries, keys and values side by side. */
  x: MlxArray;
  gates: GivenGates | RawGates;
};

export type GivenGates = {
  /** Decays (T, heads), or (T, heads * key features), in float32. */
  decays: MlxArray;
  /** Betas (T, heads) in float32. */
  betas: MlxArray;
};

/** Rows (T, columns) of the input projection, from which the scan computes decays and betas. */
export type RawGates = { raw: MlxArray; columns: RawColumns };

/**
 * Columns of raw gates: per head one of step sizes, and one of betas.
 *
 *     size = softplus(factor * step + bias), within the limits        decay = exp(rate * size)
 *
 * beta = betaFactor * sigmoid(column), or the size if there are no beta columns. A rate per key
 * feature gives a decay per key feature.
 */
export type RawColumns = {
  /** First column of the step sizes and, if present, of the betas in a row. */
  steps: number;
  betas?: number | undefined;
  /** Decay rates, per head (heads) or per key feature (heads * key features), in float32. */
  rate: MlxArray;
  /** Biases of the step sizes, (heads) in float32. */
  bias: MlxArray;
  factor?: number | undefined;
  betaFactor?: number | undefined;
  limits?: readonly [least: number, most: number] | undefined;
  output?: OutputGate | undefined;
};

/** Gated RMSNorm: the norm of each head's output, times silu(gate). The gates begin at column `column`. */
export type OutputGate = { column: number; norm: { weight: MlxArray; eps: number } };

/** Recurrent layers as the slot store calls them: implemented by kernels, or in tests by plain arithmetic. */
export interface Recurrence {
  /** Convolves x (T, channels or more) with kept inputs in pool (slots, taps - 1, channels) -> (T, channels). */
  convolve(x: MlxArray, pool: MlxArray, moves: MlxArray, convolution: Convolution): MlxArray;
  /** Scans with float32 states in pool (slots, heads, value features, key features) -> (T, heads * value features). */
  scan(inputs: ScanInputs, pool: MlxArray, moves: MlxArray, scan: Scan): MlxArray;
  free(): void;
}

/** Consecutive tokens of a sequence, and the slots that its state is read from (negative: none) and written to. */
export type RowMove = { first: number; count: number; from: number; to: number };

/**
 * Packs four integers per row (a sequence's tokens of the step), after a header of four whose first is the number of
 * rows. As a template argument the number would need a compiled kernel for each value.
 */
export function packMoves(rows: readonly RowMove[]): Int32Array {
  const packed = new Int32Array(4 * (1 + rows.length));
  packed[0] = rows.length;
  for (const [i, { first, count, from, to }] of rows.entries()) {
    packed.set([first, count, from, to], 4 * (1 + i));
  }
  return packed;
}
