// Draws a token for each row of logits, on the device, all rows of a kind at once. Every row has its own
// parameters. Rows are grouped by what they need, so that a greedy row costs an argmax and nothing else.
//
// A draw takes one number between 0 and 1, hashed on the host from the request's seed and how many tokens
// it has: the token is the first whose cumulative probability exceeds it. So a seeded request draws the
// same alone, in a batch, and when it is recomputed after it was preempted.
import type { Device } from "../../device/device.ts";
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
  /** 0 is greedy. */
  temperature: number;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  /** By default a random one. */
  seed?: number | undefined;
  /** Over the prompt and the output; 1 is none. */
  repetitionPenalty?: number | undefined;
  /** Over the output. */
  presencePenalty?: number | undefined;
  frequencyPenalty?: number | undefined;
  logitBias?: ReadonlyMap<number, number> | undefined;
  /** Log-probabilities of each token and of so many others. */
  logprobs?: number | undefined;
  /** Tokens whose logits are returned with each token, as the model gave them. */
  logitsOf?: readonly number[] | undefined;
};

/** A row to draw for. */
export type SampleRow = {
  sampling: Sampling & { seed: number };
  /** How many tokens of output come before the one that is drawn, known or not. */
  index: number;
  /** It has penalties or a grammar: it is drawn with a `Lookback`, once all tokens before are known. */
  looksBack?: boolean | undefined;
};

/** What follows from the tokens before the one that is drawn. */
export type Lookback = {
  /** With penalties. */
  counts?: Pick<TokenCounts, "tokens" | "outputCounts"> | undefined;
  /** With a grammar: a bit for each token that is allowed, or that the mask did not arrive in time. */
  mask?: Uint32Array | "late" | undefined;
};

/** No token: the logits were NaN, or nothing was allowed; or the mask was late, and it is drawn again. */
export type Sampled = {
  token: number | undefined;
  isLate?: boolean;
  /** Of `logitsOf`. */
  logits?: number[];
} & Partial<Score>;

/** Tokens of some rows in the making. Evaluate `pending`, then `read`. */
export type Draw = {
  /** One a row, in order, any where nothing is drawn; behind them may be those of padding. */
  tokens: MlxArray;
  pending: readonly MlxArray[];
  read(): Sampled[];
};

/** Of each row of logits the highest, and its token. */
export type Best = ReturnType<Device["best"]>;

/** A row with what it is drawn with. */
export type DrawRow = SampleRow & Lookback;

/**
 * logits (R, V), of which rows[i] is row at[i]. `best` spares greedy rows their argmax. A row whose mask is late
 * stays undrawn. In a scope: it makes arrays.
 */
export function draw(
  device: Device,
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
      // Those of padding may stay behind them: a recorded step takes them as they are.
      if (areFirst(all)) return { members, tokens: best.indices, highest: best.highest };
      const [tokens, highest] = [best.indices, best.highest].map((each) =>
        device.fetch(rowsOf(device, each, all)),
      );
      return { members, tokens: tokens!, highest: highest! };
    }
    const x = astype(rowsOf(device, logits, all), "float32"); // (G, V)
    const group = members.map((i) => rows[i]!);
    return { members, ...drawGroup(device, x, group) };
  });
  const tokens = inOrder(device, draws);
  const scored = [...rows.keys()].filter(
    (i) => rows[i]!.sampling.logprobs !== undefined && !isLate[i],
  );
  const tops = scored.map((i) => rows[i]!.sampling.logprobs!);
  const scoring =
    scored.length > 0
      ? scoreTokens(
          device,
          rowsOf(
            device,
            logits,
            scored.map((i) => at[i]!),
          ),
          rowsOf(device, tokens, scored),
          tops,
        )
      : undefined;
  const picked = [...rows.keys()].filter(
    (i) => rows[i]!.sampling.logitsOf !== undefined && !isLate[i],
  );
  const picking =
    picked.length > 0
      ? pickLogits(
          device,
          rowsOf(
            device,
            logits,
            picked.map((i) => at[i]!),
          ),
          picked.map((i) => rows[i]!.sampling.logitsOf!),
        )
      : undefined;
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
      scored.forEach((i, at) => {
        if (sampled[i]!.token !== undefined) Object.assign(sampled[i]!, scores[at]!);
      });
      const values = picking?.read() ?? [];
      picked.forEach((i, at) => {
        if (sampled[i]!.token !== undefined) sampled[i]!.logits = values[at]!;
      });
      return sampled;
    },
  };
}

/** Whether nothing but its most likely token is wanted of a row. */
function isMostLikely(row: DrawRow): boolean {
  const { logprobs, logitsOf } = row.sampling;
  if (logprobs !== undefined || logitsOf !== undefined || row.mask === "late") return false;
  return kindOf(row) === PLAIN;
}

/** What most steps draw. It goes without all that others need: on a CPU a step leaves none of it in the caches. */
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

function rowsOf({ stage }: Device, x: MlxArray, at: readonly number[]): MlxArray {
  if (!areFirst(at)) return take(x, stage(Int32Array.from(at)), 0);
  return x.shape[0] === at.length ? x : slice(x, 0, 0, at.length);
}

function areFirst(at: readonly number[]): boolean {
  return at.every((row, i) => row === i);
}

/** Tokens that were drawn group by group, in the order of their rows. */
export function inOrder(
  { stage, fetch }: Device,
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

// ---- What a row needs

/** Greedy, and nothing changes the logits. */
const PLAIN = "greedy";

/** Below it a row is greedy: logits divided by less may be too large for float32. */
const COLDEST = 1e-5;

/** Rows of one kind are drawn together. */
function kindOf({ sampling, counts, mask }: DrawRow): string {
  const { logitBias } = sampling;
  const isBiased = logitBias !== undefined && logitBias.size > 0;
  return `${methodOf(sampling)}${counts ? " penalized" : ""}${isBiased ? " biased" : ""}${mask ? " masked" : ""}`;
}

function methodOf({ temperature, topK = 0, topP = 1, minP = 0 }: Sampling) {
  if (temperature < COLDEST) return "greedy";
  return topK > 0 || topP < 1 || minP > 0 ? "truncated" : "whole";
}

/** Whether there are penalties, for which tokens must be counted. */
export function isPenalized(sampling: Sampling): boolean {
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = sampling;
  return repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
}

/** logits (G, V) of rows of one kind. */
function drawGroup(
  device: Device,
  logits: MlxArray,
  rows: readonly DrawRow[],
): { tokens: MlxArray; highest: MlxArray } {
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

// ---- What changes the logits

/** vLLM's and OpenAI's: repetition over prompt and output, presence and frequency over the output. */
function penalize(device: Device, x: MlxArray, rows: readonly DrawRow[]): MlxArray {
  const counted = rows.map(({ counts }) => counts!);
  // Rows are padded with their first token again: it gets the same value twice.
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

function bias(device: Device, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const biases = rows.map(({ sampling: { logitBias } }) => ({
    tokens: Int32Array.from(logitBias!.keys()),
    values: Float32Array.from(logitBias!.values()),
  }));
  const { indices, values } = perToken(device, biases, () => [0, 0]);
  return scatterAddAxis(x, indices, values);
}

type TokenValues = { tokens: Int32Array; values: Float32Array };

/** Tokens and their values (rows, the most there are), shorter rows padded. */
function perToken(
  { stage }: Device,
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

/** One number a row (rows, 1). */
function columnOf(
  { stage }: Device,
  rows: readonly SampleRow[],
  value: (sampling: Sampling) => number,
): MlxArray {
  return stage(
    Float32Array.from(rows, ({ sampling }) => value(sampling)),
    [rows.length, 1],
  );
}

function sideBySide(masks: readonly Uint32Array[]): Uint32Array {
  const words = masks[0]!.length;
  const all = new Uint32Array(masks.length * words);
  masks.forEach((mask, i) => {
    all.set(mask, i * words);
  });
  return all;
}

// ---- How a token is drawn from them

const methods = {
  whole: (device: Device, x: MlxArray, rows: readonly SampleRow[]) =>
    squeeze(indexAbove(device, device.softmax(heated(device, x, rows)), rows), 1),
  truncated: drawTruncated,
};

function heated(device: Device, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  return divide(
    x,
    columnOf(device, rows, ({ temperature }) => temperature),
  );
}

/** Of the most probable: top_k of them, then top_p of their sum, then min_p of the first's own. */
function drawTruncated(device: Device, x: MlxArray, rows: readonly SampleRow[]): MlxArray {
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
  // The first is always kept, whatever a tiny top_p says.
  const kept = where(logicalAnd(enough, isLikely), first, where(less(ranks, 1), first, 0));
  return squeeze(takeAlongAxis(order, indexAbove(device, kept, rows)), 1);
}

/** (G, 1): the first index whose cumulative weight exceeds the row's number, of all the weight. */
function indexAbove({ stage }: Device, weights: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const numbers = Float32Array.from(rows, ({ sampling, index }) =>
    unitNumber(sampling.seed, index),
  );
  const cumulative = cumsum(weights);
  const total = slice(cumulative, 1, -1); // (G, 1)
  const threshold = multiply(stage(numbers, [rows.length, 1]), total);
  const index = sum(lessEqual(cumulative, threshold), -1, true);
  return minimum(astype(index, "int32"), weights.shape[1]! - 1);
}

/** From 0 up to but without 1, in steps that float32 holds: what token number `index` draws with. */
export function unitNumber(seed: number, index: number): number {
  const low = mix(seed >>> 0, index);
  const high = mix(Math.floor(seed / 2 ** 32) >>> 0, low);
  return (high >>> 9) / 2 ** 23;
}

/** Murmur3's finalizer over both. */
function mix(a: number, b: number): number {
  let hash = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
