// The reference is the definition, in plain numbers of 64 bits. A token that was drawn is right where its
// share of the reference's cumulative probabilities holds the number that the row drew with.
import { describe, expect, test } from "bun:test";
import { array, evaluate } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import {
  type DrawRow,
  draw,
  isPenalized,
  type Sampled,
  type Sampling,
  unitNumber,
} from "../../../src/model/run/sampler.ts";
import { TokenCounts } from "../../../src/model/run/token-counts.ts";
import { deviceOf } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";

useMlx();

/** Not a multiple of 32: the last word of a mask has bits that mean nothing. */
const VOCABULARY = 40;

/** Between what float32 and float64 make of the same probabilities. */
const SLACK = 1e-5;

type Ask = Partial<Sampling> & { prompt?: number[]; output?: number[]; allowed?: number[] };

/** With what the reference makes of it. */
type AskedRow = DrawRow & { ask: Ask };

function rowOf(ask: Ask): AskedRow {
  const { prompt = [0], output = [], allowed, seed = 1, ...rest } = ask;
  const sampling = { temperature: 1, seed, ...rest };
  const counts = new TokenCounts(prompt.length);
  counts.update(Uint32Array.from([...prompt, ...output]));
  return {
    ask,
    sampling,
    index: output.length,
    counts: isPenalized(sampling) ? counts : undefined,
    mask: allowed && bitsOf(allowed),
  };
}

function bitsOf(tokens: readonly number[]): Uint32Array {
  const words = new Uint32Array(Math.ceil(VOCABULARY / 32));
  for (const token of tokens) words[token >> 5]! |= 1 << (token & 31);
  return words;
}

/** Logits from -6 to 6 with no two alike. */
function logitsOf(seed: number): number[] {
  const random = makeRandom(seed);
  return Array.from({ length: VOCABULARY }, (_, i) =>
    Math.fround(random.below(12_000) / 1000 - 6 + i * 1e-5),
  );
}

function drawAll(
  logits: readonly (readonly number[])[],
  rows: readonly DrawRow[],
  dtype: Dtype = "float32",
): Sampled[] {
  using _ = new Scope();
  const device = deviceOf("cpu");
  const x = array(logits.flat(), [rows.length, logits[0]!.length], dtype);
  const drawn = draw(device, x, rows, [...rows.keys()], device.best(x));
  evaluate(...drawn.pending);
  return drawn.read();
}

const drawOne = (logits: readonly number[], ask: Ask) => drawAll([logits], [rowOf(ask)])[0]!;

// ---- The reference

function softmaxOf(x: readonly number[]): number[] {
  const most = Math.max(...x);
  const weights = x.map((value) => Math.exp(value - most));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

function logSoftmaxOf(x: readonly number[]): number[] {
  const most = Math.max(...x);
  const sum = x.reduce((total, value) => total + Math.exp(value - most), 0);
  return x.map((value) => value - most - Math.log(sum));
}

/** The logits after penalties, bias and mask. */
function adjusted(logits: readonly number[], { sampling, ask }: AskedRow): number[] {
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = sampling;
  const { prompt = [0], output = [], allowed } = ask;
  const all = [...prompt, ...output];
  return logits.map((logit, token) => {
    let x = logit;
    if (all.includes(token)) x = x > 0 ? x / repetitionPenalty : x * repetitionPenalty;
    const count = output.filter((each) => each === token).length;
    x -= count * frequencyPenalty + (count > 0 ? presencePenalty : 0);
    x += sampling.logitBias?.get(token) ?? 0;
    return allowed === undefined || allowed.includes(token) ? x : -Infinity;
  });
}

/** Tokens in the order they are drawn in, with their probabilities. */
function distribution(logits: readonly number[], row: AskedRow) {
  const { temperature, topK = 0, topP = 1, minP = 0 } = row.sampling;
  const x = adjusted(logits, row);
  if (temperature === 0) return [{ token: x.indexOf(Math.max(...x)), probability: 1 }];
  const all = softmaxOf(x.map((value) => value / temperature)).map((probability, token) => ({
    token,
    probability,
  }));
  if (topK === 0 && topP === 1 && minP === 0) return all;
  const sorted = all.toSorted((a, b) => b.probability - a.probability);
  const first = topK > 0 ? sorted.slice(0, topK) : sorted;
  const sum = first.reduce((total, { probability }) => total + probability, 0);
  let before = 0;
  const kept = first.filter(({ probability }, rank) => {
    const enough = before < topP * sum && probability >= minP * first[0]!.probability;
    before += probability;
    return enough || rank === 0;
  });
  const rest = kept.reduce((total, { probability }) => total + probability, 0);
  return kept.map(({ token, probability }) => ({ token, probability: probability / rest }));
}

function probabilitiesOf(logits: readonly number[], ask: Ask): number[] {
  const probabilities: number[] = Array(logits.length).fill(0);
  for (const { token, probability } of distribution(logits, rowOf(ask))) {
    probabilities[token] = probability;
  }
  return probabilities;
}

/** The tokens that the row's number may mean: one, or two where it falls on the edge between them. */
function mayDraw(logits: readonly number[], row: AskedRow): number[] {
  const number = unitNumber(row.sampling.seed, row.index);
  let end = 0;
  return distribution(logits, row).flatMap(({ token, probability }) => {
    const start = end;
    end += probability;
    return probability > 0 && number >= start - SLACK && number < end + SLACK ? [token] : [];
  });
}

/** Draws with these parameters from many logits with many seeds, all of it in one batch. */
function expectReference(ask: Ask, dtype: Dtype = "float32"): void {
  const draws = 60;
  const logits = Array.from({ length: draws }, (_, i) => roundedTo(dtype, logitsOf(i % 5)));
  const rows = logits.map((_, i) => rowOf({ ...ask, seed: 1000 + i }));
  const drawn = drawAll(logits, rows, dtype).map(({ token }) => token);
  const wrong = drawn.flatMap((token, i) => {
    const expected = mayDraw(logits[i]!, rows[i]!);
    return token !== undefined && expected.includes(token) ? [] : [{ i, token, expected }];
  });
  expect(wrong).toEqual([]);
}

function roundedTo(dtype: Dtype, values: readonly number[]): number[] {
  using _ = new Scope();
  return array(values, [values.length], dtype).numbers();
}

/** Sum of (found - expected)^2 / expected. */
function chiSquare(found: readonly number[], probabilities: readonly number[]): number {
  const all = found.reduce((a, b) => a + b, 0);
  return probabilities.reduce((sum, probability, i) => {
    const expected = probability * all;
    return expected === 0 ? sum : sum + (found[i]! - expected) ** 2 / expected;
  }, 0);
}

// ---- What is drawn

describe("a token is the one that the reference draws with", () => {
  const penalties = { prompt: [1, 2, 3, 3], output: [3, 4, 4, 4, 5] };
  const cases: Record<string, Ask> = {
    "no parameters": {},
    "a temperature below one": { temperature: 0.3 },
    "a temperature above one": { temperature: 2.5 },
    "top-k": { topK: 5 },
    "top-k of one": { topK: 1 },
    "top-k larger than the vocabulary": { topK: 1000 },
    "top-p": { topP: 0.7, temperature: 2 },
    "top-p of nearly nothing, which keeps the first": { topP: 1e-9 },
    "top-p of nothing, which keeps the first": { topP: 0 },
    "min-p": { minP: 0.2, temperature: 2 },
    "min-p of one, which keeps the first": { minP: 1 },
    "top-k, top-p and min-p at once": { topK: 12, topP: 0.9, minP: 0.1, temperature: 3 },
    "top-k and top-p, which is of what top-k left": { topK: 4, topP: 0.6, temperature: 4 },
    "top-p and min-p": { topP: 0.8, minP: 0.3, temperature: 3 },
    "a repetition penalty": { repetitionPenalty: 1.8, ...penalties },
    "a repetition penalty below one": { repetitionPenalty: 0.6, ...penalties },
    "a presence penalty": { presencePenalty: 3, ...penalties },
    "a frequency penalty": { frequencyPenalty: 1.5, ...penalties },
    "a frequency penalty below zero": { frequencyPenalty: -2, ...penalties },
    "all penalties": {
      ...{ repetitionPenalty: 1.3, presencePenalty: 0.7, frequencyPenalty: 0.4 },
      ...penalties,
    },
    "a bias": { logitBias: new Map([[3, 4]]) },
    "a bias on several tokens": {
      logitBias: new Map([
        [0, -100],
        [7, 2.5],
        [20, -3],
        [39, 5],
      ]),
    },
    "a mask": { allowed: [0, 5, 31, 32, 39] },
    everything: {
      temperature: 1.7,
      topK: 9,
      topP: 0.95,
      minP: 0.02,
      repetitionPenalty: 1.2,
      presencePenalty: 0.5,
      frequencyPenalty: 0.3,
      logitBias: new Map([
        [4, 3],
        [38, 2],
      ]),
      allowed: [1, 2, 3, 4, 5, 10, 11, 12, 30, 31, 32, 33, 38, 39],
      ...penalties,
    },
  };
  for (const [name, ask] of Object.entries(cases)) {
    test(name, () => expectReference(ask));
    test(`${name}, greedily`, () => expectReference({ ...ask, temperature: 0 }));
  }

  test("logits of 16 bits", () => {
    for (const dtype of ["float16", "bfloat16"] as const) {
      expectReference({ temperature: 0.8 }, dtype);
      expectReference({ topK: 7, topP: 0.9 }, dtype);
    }
  });

  test("a temperature so small that logits divided by it are no numbers", () => {
    for (const temperature of [1e-6, 1e-39, Number.MIN_VALUE]) {
      for (const topK of [undefined, 3]) {
        const logits = logitsOf(1);
        const best = logits.indexOf(Math.max(...logits));
        expect(drawOne(logits, { temperature, topK }).token).toBe(best);
      }
    }
  });
});

test("the order is top-k, top-p of what is left, min-p of the most probable", () => {
  // Of 0.4, 0.3, 0.2 and 0.1, top-k keeps three with the sum 0.9. 0.75 of that is 0.675: the first two.
  const logits = [0.4, 0.3, 0.2, 0.1].map(Math.log);
  const drawn = (ask: Ask) => {
    const rows = Array.from({ length: 200 }, (_, seed) => rowOf({ ...ask, seed }));
    const tokens = drawAll(
      rows.map(() => logits),
      rows,
    );
    return [...new Set(tokens.map(({ token }) => token))].toSorted();
  };
  expect(drawn({ topK: 3, topP: 0.75 })).toEqual([0, 1]);
  // Of the whole, 0.75 would be three.
  expect(drawn({ topP: 0.75 })).toEqual([0, 1, 2]);
  expect(drawn({ topK: 3 })).toEqual([0, 1, 2]);
  // 0.6 of the most probable is 0.24, whatever the sum of those that are left.
  expect(drawn({ minP: 0.6 })).toEqual([0, 1]);
  expect(drawn({ minP: 0.45, topP: 0.6 })).toEqual([0, 1]);
  expect(drawn({ minP: 0.45 })).toEqual([0, 1, 2]);
});

test("tokens as probable as the first are kept with a min-p of one", () => {
  const rows = Array.from({ length: 50 }, (_, seed) => rowOf({ minP: 1, seed }));
  const drawn = drawAll(
    rows.map(() => [1, 0, 1]),
    rows,
  );
  expect(new Set(drawn.map(({ token }) => token))).toEqual(new Set([0, 2]));
});

describe("a penalty", () => {
  const logits = Array.from({ length: VOCABULARY }, (_, i) => (i === 3 ? 4 : i === 9 ? 3 : -i));

  test("for repetition looks at the prompt, those for presence and frequency do not", () => {
    const seen = { prompt: [3], temperature: 0 };
    expect(drawOne(logits, { ...seen, repetitionPenalty: 2 }).token).toBe(9);
    expect(drawOne(logits, { ...seen, presencePenalty: 2 }).token).toBe(3);
    expect(drawOne(logits, { ...seen, frequencyPenalty: 2 }).token).toBe(3);
    const said = { output: [3], temperature: 0 };
    expect(drawOne(logits, { ...said, repetitionPenalty: 2 }).token).toBe(9);
    expect(drawOne(logits, { ...said, presencePenalty: 2 }).token).toBe(9);
    expect(drawOne(logits, { ...said, frequencyPenalty: 2 }).token).toBe(9);
  });

  test("for frequency grows with each time, that for presence does not", () => {
    const said = { output: [3, 3, 3], temperature: 0 };
    expect(drawOne(logits, { ...said, frequencyPenalty: 0.5 }).token).toBe(9);
    expect(drawOne(logits, { ...said, presencePenalty: 0.5 }).token).toBe(3);
  });

  test("for repetition divides what is positive and multiplies what is negative", () => {
    // Divided, -1 would become the best.
    const negative = Array.from({ length: VOCABULARY }, (_, i) => (i === 3 ? -1 : -0.9));
    const token = drawOne(negative, { prompt: [3], temperature: 0, repetitionPenalty: 2 }).token;
    expect(token).not.toBe(3);
  });

  test("costs each row its own tokens, however many another row of the batch has", () => {
    // The first token is the best, so that what is filled up with it would be noticed.
    const best = logits.with(0, 5);
    const said = [[3], [0, 2, 9, 30, 31, 32], [9, 9, 9], [0, 3]];
    const rows = said.map((output) =>
      rowOf({ temperature: 0, presencePenalty: 5, prompt: [7], output }),
    );
    const drawn = drawAll(
      rows.map(() => best),
      rows,
    );
    expect(drawn.map(({ token }) => token)).toEqual([0, 3, 0, 9]);
  });
});

describe("a bias", () => {
  const drawn = (ask: Ask) => {
    const rows = Array.from({ length: 100 }, (_, seed) => rowOf({ ...ask, seed }));
    const logits = rows.map(() => logitsOf(3));
    return [...new Set(drawAll(logits, rows).map(({ token }) => token))].toSorted();
  };

  test("of 100 forces a token", () => {
    expect(drawn({ logitBias: new Map([[17, 100]]) })).toEqual([17]);
    expect(drawn({ logitBias: new Map([[17, 100]]), topK: 5 })).toEqual([17]);
  });

  test("of -100 bans tokens, as many as it names", () => {
    const all = Array.from({ length: VOCABULARY }, (_, token) => token);
    const banned = all.filter((token) => token !== 5 && token !== 39);
    const logitBias = new Map(banned.map((token) => [token, -100]));
    expect(drawn({ logitBias, temperature: 5 })).toEqual([39, 5]);
  });

  test("leaves the first token of a row alone that has fewer of them than another", () => {
    const logits = Array.from({ length: VOCABULARY }, (_, i) => (i === 0 ? 1 : i === 8 ? 0.5 : -5));
    const rows = [
      rowOf({ temperature: 0, logitBias: new Map([[0, -0.4]]) }),
      rowOf({
        temperature: 0,
        logitBias: new Map([
          [1, -100],
          [0, -0.6],
          [2, 0.1],
        ]),
      }),
    ];
    const tokens = drawAll([logits, logits], rows).map(({ token }) => token);
    expect(tokens).toEqual([0, 8]);
  });
});

describe("a mask", () => {
  test("of each single token gives that token, however it is drawn", () => {
    for (const ask of [{ temperature: 0 }, {}, { topP: 0.9 }]) {
      const rows = Array.from({ length: VOCABULARY }, (_, token) =>
        rowOf({ ...ask, allowed: [token] }),
      );
      const drawn = drawAll(
        rows.map(() => logitsOf(2)),
        rows,
      );
      expect(drawn.map(({ token }) => token)).toEqual(rows.map((_, token) => token));
    }
  });

  test("that allows nothing gives no token, and other rows theirs", () => {
    for (const ask of [{ temperature: 0 }, {}, { topK: 4 }]) {
      const rows = [[3], [], [39]].map((allowed) => rowOf({ ...ask, allowed, logprobs: 1 }));
      const drawn = drawAll(
        rows.map(() => logitsOf(2)),
        rows,
      );
      expect(drawn.map(({ token }) => token)).toEqual([3, undefined, 39]);
      expect(drawn[1]!.logprob).toBeUndefined();
    }
  });
});

// ---- Chance

describe("the number that a token is drawn with", () => {
  // 63 degrees of freedom: random numbers exceed this once in a thousand.
  const BOUND = 103.4;
  const uniform = Array(64).fill(1 / 64);
  const binned = (numbers: number[]) => {
    const bins: number[] = Array(64).fill(0);
    for (const number of numbers) bins[Math.floor(number * 64)]! += 1;
    return bins;
  };
  const many = <T>(make: (i: number) => T) => Array.from({ length: 20_000 }, (_, i) => make(i));

  test("is the same for the same seed and place, and another for another", () => {
    const numbers = [0, 1, 2, 3].flatMap((seed) => [0, 1, 2, 3].map((at) => unitNumber(seed, at)));
    expect(new Set(numbers).size).toBe(16);
    expect(unitNumber(5, 7)).toBe(unitNumber(5, 7));
    // Seeds that differ above 32 bits, and below zero.
    expect(unitNumber(2 ** 40 + 1, 0)).not.toBe(unitNumber(1, 0));
    expect(unitNumber(-1, 0)).not.toBe(unitNumber(1, 0));
  });

  test("is at least 0 and less than 1, and float32 holds it", () => {
    const numbers = many((i) => unitNumber(i * 7919, i % 50));
    expect(numbers.every((number) => number >= 0 && number < 1)).toBe(true);
    expect(numbers.every((number) => Math.fround(number) === number)).toBe(true);
  });

  test("is uniform over places, over seeds, and over seeds beyond 32 bits", () => {
    expect(chiSquare(binned(many((i) => unitNumber(42, i))), uniform)).toBeLessThan(BOUND);
    expect(chiSquare(binned(many((i) => unitNumber(i, 0))), uniform)).toBeLessThan(BOUND);
    const large = many((i) => unitNumber(2 ** 32 * i + 3, 5));
    expect(chiSquare(binned(large), uniform)).toBeLessThan(BOUND);
  });

  test("tells nothing about the next place's, nor about the next seed's", () => {
    const eighth = (number: number) => Math.floor(number * 8);
    const pair = (a: number, b: number) => (eighth(a) * 8 + eighth(b)) / 64;
    const places = many((i) => pair(unitNumber(42, i), unitNumber(42, i + 1)));
    expect(chiSquare(binned(places), uniform)).toBeLessThan(BOUND);
    const seeds = many((i) => pair(unitNumber(i, 3), unitNumber(i + 1, 3)));
    expect(chiSquare(binned(seeds), uniform)).toBeLessThan(BOUND);
  });
});

describe("seeds", () => {
  test("give the same tokens again, and other tokens at other places", () => {
    const logits = Array(VOCABULARY).fill(0);
    const outputs = Array.from({ length: 30 }, (_, i) => Array(i).fill(0));
    const tokens = (seed: number) =>
      outputs.map((output) => drawOne(logits, { seed, output }).token);
    expect(tokens(1)).toEqual(tokens(1));
    expect(tokens(1)).not.toEqual(tokens(2));
    expect(new Set(tokens(1)).size).toBeGreaterThan(10);
  });

  test("count the place from the end of the prompt, so that a longer prompt draws the same", () => {
    const logits = Array(VOCABULARY).fill(0);
    const [short, long] = [[1], [1, 2, 3, 4, 5]].map((prompt) =>
      [0, 1, 2, 3].map((count) => drawOne(logits, { prompt, output: Array(count).fill(9) }).token),
    );
    expect(long).toEqual(short!);
  });

  test("draw tokens as often as they are probable", () => {
    const logits = [2, 1.5, 1, 0.5, 0, -0.5, -1, -2];
    const cases: Ask[] = [{}, { temperature: 2 }, { topK: 5, temperature: 1.5 }, { topP: 0.8 }];
    for (const ask of cases) {
      const rows = Array.from({ length: 4000 }, (_, seed) => rowOf({ ...ask, seed }));
      const drawn = drawAll(
        rows.map(() => logits),
        rows,
      );
      const counts: number[] = Array(logits.length).fill(0);
      for (const { token } of drawn) counts[token!]! += 1;
      const expected = probabilitiesOf(logits, ask);
      // 7 degrees of freedom at most: true draws exceed this once in a thousand.
      expect(chiSquare(counts, expected)).toBeLessThan(24.3);
      expect(counts.filter((count, token) => count > 0 && expected[token] === 0)).toEqual([]);
    }
  });
});

test("no token without probability is drawn, not even with the least and the largest number", () => {
  const [least, largest] = [4909261, 5211135] as const;
  expect([unitNumber(least, 0), unitNumber(largest, 0)]).toEqual([0, 1 - 2 ** -23]);
  // Nothing has weight but tokens 3, 4 and 36.
  const logits = Array.from({ length: VOCABULARY }, (_, i) =>
    [3, 4, 36].includes(i) ? i / 40 : -Infinity,
  );
  const drawn = (ask: Ask) =>
    [least, largest].map((seed) => drawOne(logits, { ...ask, seed }).token);
  expect(drawn({})).toEqual([3, 36]);
  expect(drawn({ topP: 0.999 })).toEqual([36, 3]);
  expect(drawn({ topK: 2 })).toEqual([36, 4]);
  expect(drawn({ minP: 1e-9 })).toEqual([36, 3]);
  const allowed = [3, 4];
  const finite = logitsOf(1);
  for (const seed of [least, largest]) {
    expect(allowed).toContain(drawOne(finite, { allowed, seed }).token!);
    expect(allowed).toContain(drawOne(finite, { allowed, seed, topP: 0.99 }).token!);
  }
});

// ---- Rows together

describe("a row of a batch", () => {
  const asks: Ask[] = [
    { temperature: 0 },
    { temperature: 0, logprobs: 3 },
    { temperature: 0.7, seed: 11 },
    { temperature: 1.3, seed: 12, logprobs: 0 },
    { topK: 3, seed: 13, temperature: 2 },
    { topP: 0.6, seed: 14, temperature: 3, logprobs: 5 },
    { minP: 0.1, seed: 15, temperature: 2 },
    { topK: 20, topP: 0.9, minP: 0.01, seed: 16 },
    { repetitionPenalty: 1.5, prompt: [1, 2, 3], output: [4, 4], seed: 17 },
    { presencePenalty: 1, prompt: [1], output: [4, 7, 9, 9, 12], seed: 18 },
    { temperature: 0, frequencyPenalty: 1, output: [5, 5, 5] },
    { logitBias: new Map([[2, 3]]), seed: 19 },
    {
      logitBias: new Map([
        [5, -100],
        [6, 2],
        [39, 4],
      ]),
      seed: 20,
    },
    { allowed: [1, 33, 38], seed: 21 },
    { allowed: [0, 2, 4, 31], topK: 2, seed: 22 },
    { seed: 23, output: [1, 2, 3] },
  ];
  const logits = asks.map((_, i) => logitsOf(100 + i));
  const rows = asks.map(rowOf);
  const alone = rows.map((row, i) => () => drawAll([logits[i]!], [row])[0]!);

  test("gets bit by bit what it gets alone, wherever it stands", () => {
    const expected = alone.map((draw) => draw());
    const random = makeRandom(5);
    const forwards = [...rows.keys()];
    const orders = [forwards, forwards.toReversed(), forwards.filter((i) => i % 2 === 0)];
    for (let i = 0; i < 4; i++) {
      orders.push(
        forwards
          .map((at) => ({ at, key: random.below(1e9) }))
          .toSorted((a, b) => a.key - b.key)
          .map(({ at }) => at),
      );
    }
    for (const order of orders) {
      const drawn = drawAll(
        order.map((i) => logits[i]!),
        order.map((i) => rows[i]!),
      );
      expect(drawn).toEqual(order.map((i) => expected[i]!));
    }
  });

  test("gets its own though another's logits are NaN, which gets no token", () => {
    const expected = alone.map((draw) => draw());
    for (const bad of [
      logitsOf(1).fill(Number.NaN),
      logitsOf(1).with(20, Number.NaN),
      logitsOf(1).with(20, Infinity),
      logitsOf(1).fill(-Infinity),
    ]) {
      // One of each way to draw: greedy, plain and truncated.
      const spoiled = [0, 2, 4];
      const drawn = drawAll(
        logits.map((row, i) => (spoiled.includes(i) ? bad : row)),
        rows,
      );
      spoiled.forEach((i) => {
        expect(drawn[i]!.token).toBeUndefined();
      });
      const others = [...rows.keys()].filter((i) => !spoiled.includes(i));
      expect(others.map((i) => drawn[i]!)).toEqual(others.map((i) => expected[i]!));
    }
  });
});

// ---- Log-probabilities

describe("log-probabilities", () => {
  const logits = logitsOf(7);
  const expected = logSoftmaxOf(logits);
  const best = expected
    .map((logprob, token) => ({ token, logprob }))
    .toSorted((a, b) => b.logprob - a.logprob);
  const asks: Record<string, Ask> = {
    "greedy draws": { temperature: 0 },
    temperatures: { temperature: 0.2, seed: 3 },
    truncation: { topK: 2, topP: 0.5, seed: 4 },
    penalties: { temperature: 0, presencePenalty: 20, output: [best[0]!.token] },
    biases: { temperature: 0, logitBias: new Map([[best[9]!.token, 100]]) },
    masks: { temperature: 0, allowed: [best[5]!.token] },
  };
  for (const [name, ask] of Object.entries(asks)) {
    test(`are those of the model's own logits, whatever ${name} make of them`, () => {
      const { token, logprob, top } = drawOne(logits, { ...ask, logprobs: 4 });
      expect(logprob).toBeCloseTo(expected[token!]!, 4);
      expect(top!.map((each) => each.token)).toEqual(best.slice(0, 4).map((each) => each.token));
      top!.forEach((each, i) => {
        expect(each.logprob).toBeCloseTo(best[i]!.logprob, 4);
      });
    });
  }

  test("are there for a token that is none of the best", () => {
    const { token, logprob } = drawOne(logits, { allowed: [best[30]!.token], logprobs: 2 });
    expect(token).toBe(best[30]!.token);
    expect(logprob).toBeCloseTo(best[30]!.logprob, 4);
  });

  test("are as many as each row asks for, and the best first", () => {
    const counts = [undefined, 0, 1, 5, undefined, 20, VOCABULARY, VOCABULARY + 10];
    const rows = counts.map((logprobs) => rowOf({ temperature: 0, logprobs }));
    const drawn = drawAll(
      rows.map((_, i) => logitsOf(i)),
      rows,
    );
    const found = drawn.map(({ top }) => top?.length);
    expect(found).toEqual([undefined, 0, 1, 5, undefined, 20, VOCABULARY, VOCABULARY]);
    drawn.forEach(({ top = [], token, logprob }, i) => {
      expect(logprob === undefined).toBe(counts[i] === undefined);
      if (top.length > 0) expect(top[0]).toEqual({ token: token!, logprob: logprob! });
      expect(top.every((each, j) => j === 0 || each.logprob <= top[j - 1]!.logprob)).toBe(true);
      const all = logSoftmaxOf(logitsOf(i));
      expect(top.every((each) => Math.abs(each.logprob - all[each.token]!) < 1e-4)).toBe(true);
    });
  });

  test("of 16-bit logits are computed in 32", () => {
    for (const dtype of ["float16", "bfloat16"] as const) {
      const rounded = logSoftmaxOf(roundedTo(dtype, logits));
      const [drawn] = drawAll([logits], [rowOf({ temperature: 0, logprobs: 1 })], dtype);
      expect(drawn!.logprob).toBeCloseTo(rounded[drawn!.token!]!, 4);
    }
  });
});

// ---- Tokens that are counted

test("counts of tokens keep up with a sequence that grows, and tell the prompt from the output", () => {
  const random = makeRandom(3);
  const sequence = Uint32Array.from({ length: 500 }, () => random.below(150));
  const counts = new TokenCounts(100);
  for (const length of [100, 101, 101, 260, 500]) {
    counts.update(sequence.subarray(0, length));
    const known = [...sequence.subarray(0, length)];
    const found = new Map([...counts.tokens].map((token, i) => [token, counts.outputCounts[i]!]));
    const expected = new Map(
      known.map((token) => [token, known.slice(100).filter((each) => each === token).length]),
    );
    expect(found).toEqual(expected);
  }
});

test("a sequence is counted once: a step reads only the tokens that it adds", () => {
  const counts = new TokenCounts(1000);
  let reads = 0;
  const watched = (length: number) =>
    new Proxy(new Uint32Array(length), {
      get: (target, key) => {
        if (typeof key === "string" && /^\d+$/.test(key)) reads += 1;
        return Reflect.get(target, key, target);
      },
    });
  counts.update(watched(1000));
  expect(reads).toBe(1000);
  counts.update(watched(1001));
  counts.update(watched(1002));
  expect(reads).toBe(1002);
});
