// Samples a token for each row of logits, on the device. Each row has its own parameters. Rows are grouped by kind, so
// that greedy rows cost only an argmax.
//
// A row uses one random number in [0, 1), hashed on the host from the request's seed and its number of output tokens:
// it draws the first token whose cumulative probability exceeds that number. So a seeded request draws the same tokens
// alone, in a batch, and when it is recomputed after a preemption.
import type { Compute, HostTransfer } from "../../device/device.ts";
import type { MlxArray } from "../../mlx/array.ts";
import {
  add,
  arange,
  argsort,
  astype,
  concatenate,
  cumsum,
  divide,
  greater,
  greaterEqual,
  less,
  lessEqual,
  logicalAnd,
  max,
  minimum,
  multiply,
  negative,
  putAlongAxis,
  scatterAddAxis,
  slice,
  squeeze,
  subtract,
  sum,
  take,
  takeAlongAxis,
  where,
} from "../../mlx/ops.ts";
import { pickLogits, type Score, scoreTokens } from "./logprobs.ts";
import type { TokenCounts } from "./token-counts.ts";

export type Sampling = {
  /** Temperature; 0 means greedy. */
  temperature: number;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  /** Seed of the random numbers; random by default. */
  seed?: number | undefined;
  /** Penalty on tokens of prompt and output; 1 for none. */
  repetitionPenalty?: number | undefined;
  /** Penalties on tokens of the output. */
  presencePenalty?: number | undefined;
  frequencyPenalty?: number | undefined;
  logitBias?: ReadonlyMap<number, number> | undefined;
  /** Number of most likely tokens to return the log-probability of, in addition to the drawn token. */
  logprobs?: number | undefined;
  /** Tokens whose unchanged logits are returned with each drawn token. */
  logitsOf?: readonly number[] | undefined;
};

export type SampleRow = {
  sampling: Sampling & { seed: number };
  /** Number of output tokens before this one, read or not. */
  index: number;
  /** Whether the row has penalties or a grammar, and is drawn with a `Lookback` at all previous tokens. */
  looksBack?: boolean | undefined;
};

/** Token counts and token mask of a row, derived from its previous tokens. */
export type Lookback = {
  counts?: Pick<TokenCounts, "tokens" | "outputCounts"> | undefined;
  /** One bit per token, set if the grammar allows the token; "late" if the mask did not arrive in time. */
  mask?: Uint32Array | "late" | undefined;
};

/** A drawn token: undefined if logits were NaN, nothing was allowed, or the mask was late (then drawn again). */
export type Sampled = {
  token: number | undefined;
  isLate?: boolean;
  logits?: number[];
} & Partial<Score>;

/** Tokens that are being drawn. Evaluate `pending`, then call `read` for the results. */
export type Draw = {
  /** One token per row, arbitrary if the row is not drawn; tokens of padding rows may follow. */
  tokens: MlxArray;
  pending: readonly MlxArray[];
  read(): Sampled[];
};

type SamplerDevice = Compute & HostTransfer;

/** Argmax of each row of logits, and the logit there. */
export type Best = ReturnType<Compute["best"]>;

export type DrawRow = SampleRow & Lookback;

/**
 * Draws a token for each of `rows`: for rows[i] by row at[i] of logits (R, V). `best` has the argmax, for greedy
 * rows. Rows with a late mask are not drawn. Call it in a scope: it makes arrays.
 */
export function draw(
  device: SamplerDevice,
  logits: MlxArray,
  rows: readonly DrawRow[],
  at: readonly number[],
  best: Best,
): Draw {
  if (areFirst(at) && rows.every(isMostLikely)) return mostLikely(rows.length, best);
  const isLate = rows.map(({ mask }) => mask === "late");
  const kinds = rows.map((row, i) => (isLate[i] ? PLAIN : kindOf(row)));
  const groups = Map.groupBy(rows.keys(), (i) => kinds[i]!);
  const draws = [...groups].map(([kind, members]) => {
    const all = members.map((i) => at[i]!);
    if (kind === PLAIN) {
      // Returns the first rows without copying. Padding after them may stay: the next recorded step is padded too.
      if (areFirst(all)) return { members, tokens: best.indices, highest: best.highest };
      const own = (each: MlxArray) => device.fetch(rowsOf(device, each, all));
      return { members, tokens: own(best.indices), highest: own(best.highest) };
    }
    const x = astype(rowsOf(device, logits, all), "float32"); // (G, V)
    const group = members.map((i) => rows[i]!);
    return { members, ...drawGroup(device, x, group) };
  });
  const tokens = inOrder(device, draws);
  const asking = (key: "logprobs" | "logitsOf") =>
    [...rows.keys()].filter((i) => rows[i]!.sampling[key] !== undefined && !isLate[i]);
  const placesOf = (members: readonly number[]) => members.map((i) => at[i]!);
  const logitsAt = (members: readonly number[]) => rowsOf(device, logits, placesOf(members));
  const scored = asking("logprobs");
  const tops = scored.map((i) => rows[i]!.sampling.logprobs!);
  const scoring =
    scored.length > 0
      ? scoreTokens(device, logitsAt(scored), rowsOf(device, tokens, scored), tops)
      : undefined;
  const picked = asking("logitsOf");
  const wanted = picked.map((i) => rows[i]!.sampling.logitsOf!);
  const picking = picked.length > 0 ? pickLogits(device, logitsAt(picked), wanted) : undefined;
  return {
    tokens,
    pending: [
      tokens,
      ...draws.map(({ highest }) => highest),
      ...(scoring?.pending ?? []),
      ...(picking?.pending ?? []),
    ],
    read() {
      const sampled: Sampled[] = rows.map(() => ({ token: undefined }));
      const ids = tokens.numbers();
      for (const { members, highest } of draws) {
        const values = highest.numbers();
        members.forEach((i, at) => {
          if (isLate[i]) sampled[i]!.isLate = true;
          else if (Number.isFinite(values[at])) sampled[i]!.token = ids[i]!;
        });
      }
      const scores = scoring?.read() ?? [];
      for (const [at, i] of scored.entries()) {
        if (sampled[i]!.token !== undefined) Object.assign(sampled[i]!, scores[at]!);
      }
      const values = picking?.read() ?? [];
      for (const [at, i] of picked.entries()) {
        if (sampled[i]!.token !== undefined) sampled[i]!.logits = values[at]!;
      }
      return sampled;
    },
  };
}

/** Whether the row needs only its argmax. */
function isMostLikely(row: DrawRow): boolean {
  const { logprobs, logitsOf } = row.sampling;
  if (logprobs !== undefined || logitsOf !== undefined || row.mask === "late") return false;
  return kindOf(row) === PLAIN;
}

/**
 * Makes a draw for the common case of greedy rows. The general case's bookkeeping would evict the step's data from a
 * CPU's caches.
 */
function mostLikely(count: number, { indices, highest }: Best): Draw {
  return {
    tokens: indices,
    pending: [indices, highest],
    read() {
      const [ids, values] = [indices.numbers(), highest.numbers()];
      return Array.from({ length: count }, (_, i) => ({
        token: Number.isFinite(values[i]) ? ids[i]! : undefined,
      }));
    },
  };
}

function rowsOf({ stage }: HostTransfer, x: MlxArray, at: readonly number[]): MlxArray {
  if (!areFirst(at)) return take(x, stage(Int32Array.from(at)), 0);
  return x.shape[0] === at.length ? x : slice(x, 0, 0, at.length);
}

function areFirst(at: readonly number[]): boolean {
  return at.every((row, i) => row === i);
}

/** Joins tokens that were drawn in groups of rows, in the order of the rows. */
export function inOrder(
  { stage, fetch }: HostTransfer,
  groups: readonly { members: readonly number[]; tokens: MlxArray }[],
): MlxArray {
  if (groups.length === 1) return groups[0]!.tokens;
  const parts = groups.map(({ members, tokens }) =>
    astype(slice(tokens, 0, 0, members.length), "uint32"),
  );
  const places = new Int32Array(groups.reduce((count, { members }) => count + members.length, 0));
  let place = 0;
  for (const { members } of groups) for (const row of members) places[row] = place++;
  return fetch(take(concatenate(parts), stage(places)));
}

// ---- How a row is drawn

/** Kind of rows that are greedy, with unchanged logits. */
const PLAIN = "greedy";

/** Minimum temperature; rows below are greedy, because the divided logits could overflow float32. */
const COLDEST = 1e-5;

/** Returns a row's kind: rows of the same kind are drawn together. */
function kindOf({ sampling, counts, mask }: DrawRow): string {
  const { logitBias } = sampling;
  const isBiased = logitBias !== undefined && logitBias.size > 0;
  return `${methodOf(sampling)}${counts ? " penalized" : ""}${isBiased ? " biased" : ""}${mask ? " masked" : ""}`;
}

function methodOf({ temperature, topK = 0, topP = 1, minP = 0 }: Sampling) {
  if (temperature < COLDEST) return "greedy";
  return topK > 0 || topP < 1 || minP > 0 ? "truncated" : "whole";
}

/** Whether the row has penalties, which need token counts. */
export function isPenalized(sampling: Sampling): boolean {
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = sampling;
  return repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
}

/** Draws tokens for rows of one kind from their logits (G, V). */
function drawGroup(device: SamplerDevice, logits: MlxArray, rows: readonly DrawRow[]) {
  const { sampling, counts, mask } = rows[0]!;
  let x = logits;
  if (counts) x = penalize(device, x, rows);
  if (sampling.logitBias?.size) x = bias(device, x, rows);
  if (mask) x = device.mask(x, sideBySide(rows.map((row) => row.mask as Uint32Array)));
  const { indices, highest } = device.best(x);
  const method = methodOf(sampling);
  const tokens = method === "greedy" ? indices : methods[method](device, x, rows);
  return { tokens: device.fetch(tokens), highest: device.fetch(highest) };
}

// ---- Changes to the logits

/** Applies penalties as vLLM does: repetition for prompt and output, presence and frequency for the output. */
function penalize(device: SamplerDevice, x: MlxArray, rows: readonly DrawRow[]): MlxArray {
  const counted = rows.map(({ counts }) => counts!);
  // Pads rows with their first token, which is then written several times with the same value.
  const { indices, values: output } = perToken(
    device,
    counted.map(({ tokens, outputCounts }) => ({ tokens, values: outputCounts })),
    ({ tokens, values }) => [tokens[0]!, values[0]!],
  );
  const column = (value: (sampling: Sampling) => number) => columnOf(device, rows, value);
  const repetition = column(({ repetitionPenalty = 1 }) => repetitionPenalty);
  const presence = column(({ presencePenalty = 0 }) => presencePenalty);
  const frequency = column(({ frequencyPenalty = 0 }) => frequencyPenalty);
  const before = takeAlongAxis(x, indices);
  const repeated = where(
    greater(before, 0),
    divide(before, repetition),
    multiply(before, repetition),
  );
  const present = astype(greater(output, 0), "float32");
  const penalty = add(multiply(frequency, output), multiply(presence, present));
  return putAlongAxis(x, indices, subtract(repeated, penalty));
}

function bias(device: SamplerDevice, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const biases = rows.map(({ sampling: { logitBias } }) => ({
    tokens: Int32Array.from(logitBias!.keys()),
    values: Float32Array.from(logitBias!.values()),
  }));
  const { indices, values } = perToken(device, biases, () => [0, 0]);
  return scatterAddAxis(x, indices, values);
}

type TokenValues = { tokens: Int32Array; values: Float32Array };

/** Stages tokens and their values as (rows, maximum tokens); shorter rows are padded. */
function perToken(
  { stage }: HostTransfer,
  rows: readonly TokenValues[],
  padding: (row: TokenValues) => [token: number, value: number],
): { indices: MlxArray; values: MlxArray } {
  const width = Math.max(...rows.map(({ tokens }) => tokens.length));
  const indices = new Int32Array(rows.length * width);
  const values = new Float32Array(rows.length * width);
  rows.forEach((row, i) => {
    const [from, end, to] = [i * width, i * width + row.tokens.length, (i + 1) * width];
    const [token, value] = padding(row);
    indices.set(row.tokens, from);
    indices.fill(token, end, to);
    values.set(row.values, from);
    values.fill(value, end, to);
  });
  const shape = [rows.length, width];
  return { indices: stage(indices, shape), values: stage(values, shape) };
}

/** Stages one number per row: (rows, 1). */
function columnOf(
  { stage }: HostTransfer,
  rows: readonly SampleRow[],
  value: (sampling: Sampling) => number,
): MlxArray {
  const values = Float32Array.from(rows, ({ sampling }) => value(sampling));
  return stage(values, [rows.length, 1]);
}

function sideBySide(masks: readonly Uint32Array[]): Uint32Array {
  const words = masks[0]!.length;
  const all = new Uint32Array(masks.length * words);
  for (const [i, mask] of masks.entries()) all.set(mask, i * words);
  return all;
}

// ---- Drawing a token

const methods = {
  whole: (device: SamplerDevice, x: MlxArray, rows: readonly SampleRow[]) =>
    squeeze(indexAbove(device, device.softmax(heated(device, x, rows)), rows), 1),
  truncated: drawTruncated,
};

function heated(device: SamplerDevice, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const temperatures = columnOf(device, rows, ({ temperature }) => temperature);
  return divide(x, temperatures);
}

/** Draws after three cuts: top_k tokens, the top_p share of their sum, and at least min_p of the top probability. */
function drawTruncated(device: SamplerDevice, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const scaled = heated(device, x, rows);
  const order = argsort(negative(scaled)); // (G, V)
  const likely = device.softmax(takeAlongAxis(scaled, order));
  const vocabulary = x.shape[1]!;
  const column = (value: (sampling: Sampling) => number) => columnOf(device, rows, value);
  const topK = column(({ topK }) => (topK && topK > 0 ? topK : vocabulary));
  const topP = column(({ topP = 1 }) => topP);
  const minP = column(({ minP = 0 }) => minP);
  const ranks = arange(0, vocabulary, 1, "float32");
  const first = where(less(ranks, topK), likely, 0);
  const before = subtract(cumsum(first), first);
  const enough = less(before, multiply(topP, sum(first, -1, true)));
  const isLikely = greaterEqual(first, multiply(minP, max(first, -1, true)));
  // Keeps the first token even if top_p is tiny.
  const kept = where(logicalAnd(enough, isLikely), first, where(less(ranks, 1), first, 0));
  return squeeze(takeAlongAxis(order, indexAbove(device, kept, rows)), 1);
}

/** Returns the first index whose cumulative weight exceeds the row's random number times the total: (G, 1). */
function indexAbove(
  { stage }: HostTransfer,
  weights: MlxArray,
  rows: readonly SampleRow[],
): MlxArray {
  const numbers = Float32Array.from(rows, ({ sampling, index }) =>
    unitNumber(sampling.seed, index),
  );
  const cumulative = cumsum(weights);
  const total = slice(cumulative, 1, -1); // (G, 1)
  const threshold = multiply(stage(numbers, [rows.length, 1]), total);
  const index = sum(lessEqual(cumulative, threshold), -1, true);
  return minimum(astype(index, "int32"), weights.shape[1]! - 1);
}

/** Returns the random number for output token `index`: a multiple of 2^-23 in [0, 1), exact in float32. */
export function unitNumber(seed: number, index: number): number {
  const low = mix(seed >>> 0, index);
  const high = mix(Math.floor(seed / 2 ** 32) >>> 0, low);
  return (high >>> 9) / 2 ** 23;
}

/** Hashes both numbers to one, by Murmur3's finalizer. */
function mix(a: number, b: number): number {
  let hash = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
