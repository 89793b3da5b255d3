// Draws a token for each row of logits, on the device, all rows of a kind at once. Every row has its own
// parameters. Rows are grouped by what they need, so that a greedy row costs an argmax and nothing else.
//
// A draw takes one number between 0 and 1, hashed on the host from the request's seed and how many tokens
// it has: the token is the first whose cumulative probability exceeds it. So a seeded request draws the
// same alone, in a crowd, and when it is computed again after it was preempted.
import { array, type MlxArray } from "../mlx/array.ts";
import {
  best,
  isOwn,
  logSumExp as ownLogSumExp,
  mask as ownMask,
  softmax as ownSoftmax,
} from "../mlx/cpu.ts";
import {
  add,
  arange,
  argmax,
  argpartition,
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
  logSumExp,
  max,
  minimum,
  multiply,
  negative,
  putAlongAxis,
  reshape,
  scatterAddAxis,
  slice,
  softmax,
  squeeze,
  subtract,
  sum,
  take,
  takeAlongAxis,
  where,
} from "../mlx/ops.ts";

export type Sampling = {
  /** 0 is greedy. */
  temperature: number;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  seed: number;
  /** Over the prompt and the output; 1 is none. */
  repetitionPenalty?: number | undefined;
  /** Over the output. */
  presencePenalty?: number | undefined;
  frequencyPenalty?: number | undefined;
  logitBias?: ReadonlyMap<number, number> | undefined;
  /** Log-probabilities of the token and of so many others. */
  logprobs?: number | undefined;
};

/** A row to draw for. */
export type SampleRow = {
  sampling: Sampling;
  /** The prompt and the output so far; looked at only where there are penalties. */
  tokens(): Uint32Array;
  promptLength: number;
  /** How many tokens of output came before the one that is drawn, known or not. */
  index: number;
  /** A bit a token of the vocabulary: those that may be drawn. It may have to wait for them. */
  allowed?: (() => Uint32Array) | undefined;
};

export type TokenLogprob = { token: number; logprob: number };

/** How likely a token was, and which were the most likely. */
export type Score = { logprob: number | undefined; top: TokenLogprob[] };

/** Undefined token: the logits were no numbers, or allowed nothing. */
export type Sampled = { token: number | undefined } & Partial<Score>;

/** A draw in the making. Evaluate `pending`, then `read`. */
export type Draw = {
  pending: readonly MlxArray[];
  read(): Sampled[];
  /** (R): the tokens, for those who need them before they are read. */
  tokens(): MlxArray;
};

/** logits (R, vocabulary), one row each. In a scope: it makes arrays. */
export function sample(logits: MlxArray, rows: readonly SampleRow[]): Draw {
  const float = astype(logits, "float32");
  const groups = groupBy(
    rows.map((_, i) => i),
    (i) => kindOf(rows[i]!),
  );
  const draws = groups.map((indices) => drawGroup(float, rows, indices));
  const wanted = rows.flatMap(({ sampling: { logprobs: top } }, row) =>
    top === undefined ? [] : [{ row, top }],
  );
  const scores = scoreRows(float, wanted);
  return {
    tokens() {
      if (draws.length === 1) return draws[0]!.tokens;
      const order = draws.flatMap(({ indices }) => indices);
      const places = rows.map((_, row) => order.indexOf(row));
      return take(
        concatenate(draws.map(({ tokens }) => astype(tokens, "uint32"))),
        intArray(places),
      );
    },
    pending: [...draws.flatMap((draw) => [draw.tokens, draw.scores]), ...scores.pending],
    read() {
      const sampled: Sampled[] = rows.map(() => ({ token: undefined }));
      for (const { indices, tokens, scores } of draws) {
        const [ids, values] = [tokens.numbers(), scores.numbers()];
        indices.forEach((row, i) => {
          if (Number.isFinite(values[i])) sampled[row]!.token = ids[i]!;
        });
      }
      const scored = scores.read(wanted.map(({ row }) => sampled[row]!.token));
      wanted.forEach(({ row }, i) => {
        Object.assign(sampled[row]!, scored[i]);
      });
      return sampled;
    },
  };
}

// ---- What a row needs

type Kind = {
  penalized: boolean;
  biased: boolean;
  masked: boolean;
  draw: "greedy" | "plain" | "truncated";
};

function kindOf(row: SampleRow): string {
  return JSON.stringify(needsOf(row));
}

/** Below it is greedy: what is divided by less may be too large for float32. */
const COLDEST = 1e-5;

function needsOf({ sampling, allowed }: Pick<SampleRow, "sampling" | "allowed">): Kind {
  const { temperature, topK, topP, minP } = sampling;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0, logitBias } = sampling;
  const truncated = (topK ?? 0) > 0 || (topP ?? 1) < 1 || (minP ?? 0) > 0;
  return {
    penalized: repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0,
    biased: (logitBias?.size ?? 0) > 0,
    masked: allowed !== undefined,
    draw: temperature < COLDEST ? "greedy" : truncated ? "truncated" : "plain",
  };
}

/** Whether nothing but the likeliest token is asked for. */
export function isPlain(row: SampleRow): boolean {
  const { penalized, biased, masked, draw } = needsOf(row);
  const isGreedy = draw === "greedy" && row.sampling.logprobs === undefined;
  return isGreedy && !penalized && !biased && !masked;
}

/** Whether the token before must be known when one is drawn. */
export function looksBack(row: SampleRow): boolean {
  const { penalized, masked } = needsOf(row);
  return penalized || masked;
}

function groupBy(indices: readonly number[], key: (index: number) => string): number[][] {
  const groups = new Map<string, number[]>();
  for (const index of indices) {
    const name = key(index);
    const group = groups.get(name) ?? [];
    group.push(index);
    groups.set(name, group);
  }
  return [...groups.values()];
}

type GroupDraw = {
  indices: readonly number[];
  tokens: MlxArray; // (G)
  /** The largest logit that each was drawn from (G): no number where one of them was none. */
  scores: MlxArray;
};

function drawGroup(
  logits: MlxArray,
  rows: readonly SampleRow[],
  indices: readonly number[],
): GroupDraw {
  const group = indices.map((index) => rows[index]!);
  const kind = needsOf(group[0]!);
  let x = indices.length === rows.length ? logits : take(logits, intArray(indices)); // (G, V)
  if (kind.penalized) x = penalize(x, group);
  if (kind.biased) x = bias(x, group);
  if (kind.masked) x = mask(x, group);
  if (isOwn(x)) {
    const { indices: highest, highest: scores } = best(x);
    const tokens = kind.draw === "greedy" ? highest : drawKinds[kind.draw](x, group);
    return { indices, tokens, scores };
  }
  return { indices, tokens: drawKinds[kind.draw](x, group), scores: max(x, -1) };
}

// ---- What changes the logits

/** vLLM's and OpenAI's: repetition over prompt and output, presence and frequency over the output. */
function penalize(x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const counts = rows.map(({ tokens, promptLength }) => {
    const seen = new Map<number, number>();
    tokens().forEach((token, i) => {
      seen.set(token, (seen.get(token) ?? 0) + (i >= promptLength ? 1 : 0));
    });
    return seen;
  });
  // Rows are filled up with their first token again: it gets the same value twice.
  const { indices, values: output } = perToken(counts, ([first]) => first!);
  const column = (value: (sampling: Sampling) => number) => columnOf(rows, value);
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

function bias(x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const biases = rows.map(({ sampling }) => sampling.logitBias!);
  const { indices, values } = perToken(biases, () => [0, 0]);
  return scatterAddAxis(x, indices, values);
}

/** Tokens and their values (rows, the most there are), rows with fewer filled up. */
function perToken(
  rows: readonly ReadonlyMap<number, number>[],
  filler: (entries: [number, number][]) => [number, number],
): { indices: MlxArray; values: MlxArray } {
  const width = Math.max(...rows.map(({ size }) => size));
  const entries = rows.flatMap((row) => {
    const own = [...row];
    return [...own, ...Array<[number, number]>(width - own.length).fill(filler(own))];
  });
  const size = [rows.length, width];
  return {
    indices: intArray(
      entries.map(([token]) => token),
      size,
    ),
    values: array(
      entries.map(([, value]) => value),
      size,
    ),
  };
}

/** One number a row (rows, 1). */
function columnOf(rows: readonly SampleRow[], value: (sampling: Sampling) => number): MlxArray {
  return array(
    rows.map(({ sampling }) => value(sampling)),
    [rows.length, 1],
  );
}

function mask(x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const masks = rows.map(({ allowed }) => allowed!());
  const words = masks[0]!.length;
  const all = new Uint32Array(rows.length * words);
  masks.forEach((mask, i) => {
    all.set(mask, i * words);
  });
  if (isOwn(x)) return ownMask(x, array(all, [rows.length, words]));
  const bytes = array(new Uint8Array(all.buffer), [rows.length, words * 4]);
  const flags = take(astype(array(bitsOfByte, [256, 8]), "bool"), bytes, 0); // (G, bytes, 8)
  const allowed = slice(reshape(flags, [rows.length, words * 32]), 1, 0, x.shape[1]!);
  return where(allowed, x, -Infinity);
}

/** The eight bits of each byte, lowest first: one look for eight tokens. */
const bitsOfByte = Uint8Array.from({ length: 256 * 8 }, (_, i) => ((i >> 3) >> (i & 7)) & 1);

// ---- How a token is drawn from them

const drawKinds: Record<Kind["draw"], (x: MlxArray, rows: readonly SampleRow[]) => MlxArray> = {
  greedy: (x) => argmax(x),
  plain: (x, rows) => squeeze(indexAbove(probabilities(heated(x, rows)), rows), 1),
  truncated: drawTruncated,
};

function probabilities(x: MlxArray): MlxArray {
  return isOwn(x) ? ownSoftmax(x) : softmax(x);
}

function heated(x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  return divide(
    x,
    columnOf(rows, ({ temperature }) => temperature),
  );
}

/** Of the most probable: so many, then so much of their sum, then so much of the first's own. */
function drawTruncated(x: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const scaled = heated(x, rows);
  const order = argsort(negative(scaled)); // (G, V)
  const likely = probabilities(takeAlongAxis(scaled, order));
  const vocabulary = x.shape[1]!;
  const column = (value: (sampling: Sampling) => number) => columnOf(rows, value);
  const topK = column(({ topK }) => (topK && topK > 0 ? topK : vocabulary));
  const topP = column(({ topP = 1 }) => topP);
  const minP = column(({ minP = 0 }) => minP);
  const ranks = arange(0, vocabulary, 1, "float32");
  const first = where(less(ranks, topK), likely, 0);
  const before = subtract(cumsum(first), first);
  const enough = less(before, multiply(topP, sum(first, -1, true)));
  const isLikely = greaterEqual(first, multiply(minP, max(first, -1, true)));
  // The first is always kept, whatever a topP of nearly nothing says.
  const kept = where(logicalAnd(enough, isLikely), first, where(less(ranks, 1), first, 0));
  return squeeze(takeAlongAxis(order, indexAbove(kept, rows)), 1);
}

/** (G, 1): the first index whose cumulative weight exceeds the row's number, of all the weight. */
function indexAbove(weights: MlxArray, rows: readonly SampleRow[]): MlxArray {
  const numbers = rows.map(({ sampling, index }) => unitNumber(sampling.seed, index));
  const cumulative = cumsum(weights);
  const total = slice(cumulative, 1, -1); // (G, 1)
  const threshold = multiply(array(numbers, [rows.length, 1]), total);
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

// ---- Log-probabilities, of the logits as the model gave them

/** How likely each of these tokens was, after the token of its row. In a scope: it makes arrays. */
export function score(logits: MlxArray, tokens: Uint32Array, top: number) {
  const wanted = Array.from(tokens, (_, row) => ({ row, top }));
  const { pending, read } = scoreRows(astype(logits, "float32"), wanted);
  return { pending, read: () => read([...tokens]) };
}

export type Scoring = {
  pending: readonly MlxArray[];
  read(tokens: readonly (number | undefined)[]): Score[];
};

/** Of the rows that are wanted, with so many of the most likely tokens each. */
function scoreRows(logits: MlxArray, wanted: readonly { row: number; top: number }[]): Scoring {
  if (wanted.length === 0) return { pending: [], read: () => [] };
  const [rows, vocabulary] = logits.shape as [number, number];
  const x = wanted.length === rows ? logits : take(logits, intArray(wanted.map(({ row }) => row)));
  const total = isOwn(x) ? ownLogSumExp(x) : logSumExp(x, -1, true); // (G, 1)
  const normalized = subtract(x, total); // (G, V)
  const most = Math.min(Math.max(...wanted.map(({ top }) => top)), vocabulary);
  const top = most > 0 ? slice(argpartition(negative(x), most - 1), 1, 0, most) : undefined;
  const values = top && takeAlongAxis(normalized, top);
  return {
    pending: [normalized, ...(top && values ? [top, values] : [])],
    read(tokens) {
      const all = new Float32Array(normalized.memory());
      const [ids, logprobs] = [top?.numbers() ?? [], values?.numbers() ?? []];
      return wanted.map(({ top: count }, i) => {
        const token = tokens[i];
        return {
          logprob: token === undefined ? undefined : all[i * vocabulary + token],
          top: ids
            .slice(i * most, (i + 1) * most)
            .map((id, j) => ({ token: id, logprob: logprobs[i * most + j]! }))
            .sort((a, b) => b.logprob - a.logprob || a.token - b.token)
            .slice(0, count),
        };
      });
    },
  };
}

function intArray(values: readonly number[], shape?: readonly number[]): MlxArray {
  return array(Int32Array.from(values), shape);
}
