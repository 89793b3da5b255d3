// How likely the tokens of a prompt were, the vector made of its hidden states, and the logits behind it: the
// same however the prompt was cut, shared, or begun again.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { EngineRequest } from "../../src/engine/protocol.ts";
import { readLoad } from "../../src/engine/protocol.ts";
import { array } from "../../src/mlx/array.ts";
import { logSumExp, subtract } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import type { LoadedModel } from "../../src/model/load.ts";
import { ContiguousKv, contiguousStep } from "../support/contiguous-kv.ts";
import { deviceOf } from "../support/devices.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";
import { loadTinyModel, tinyCase } from "../support/tiny-models.ts";

let model: LoadedModel;
afterAll(() => model.free());
useMlx();
beforeAll(() => {
  model = loadTinyModel(tinyCase("llama"), { device: deviceOf("cpu") });
});

const random = makeRandom(11);
const prompt = Uint32Array.from({ length: 100 }, () => random.below(200));

/** All of the prompt in one pass, without blocks. */
function whole(): { logits: number[][]; logprobs: number[][]; hidden: number[][] } {
  using _ = new Scope();
  const kv = new ContiguousKv();
  const states = model.forward(array(prompt), contiguousStep([{ kv, count: prompt.length }]));
  const logits = model.logits(states);
  const normalized = subtract(logits, logSumExp(logits, -1, true));
  const rows = (values: readonly number[], width: number) =>
    Array.from(prompt, (_, i) => values.slice(i * width, (i + 1) * width));
  const result = {
    logits: rows([...logits.numbers()], logits.shape[1]!),
    logprobs: rows([...normalized.numbers()], logits.shape[1]!),
    hidden: rows([...states.numbers()], states.shape[1]!),
  };
  kv.free();
  return result;
}

const request = (more: Partial<EngineRequest>): EngineRequest => ({
  prompt,
  maxTokens: 4,
  sampling: { temperature: 0 },
  ...more,
});

/** Prompts in small pieces, in a crowd, after the same prompt has been computed. */
const cuts = { tokenBudget: 24, maxBatch: 8, blocks: 32 };

describe("the prompt's own log-probabilities", () => {
  test("are those of one pass over it, in pieces and where its beginning is cached", () => {
    const engine = makeEngine(model, cuts);
    const { logprobs } = whole();
    engine.submit(request({}));
    engine.run();
    const [[found, fork]] = [engine.submit(request({ promptLogprobs: 3, n: 2 }))];
    engine.submit(request({ prompt: prompt.slice(0, 70) }));
    engine.run();
    const scores = found!.first!.promptLogprobs!;
    expect(scores.length).toBe(prompt.length - 1);
    for (const [i, { logprob, top }] of scores.entries()) {
      expect(logprob).toBeCloseTo(logprobs[i]![prompt[i + 1]!]!, 3);
      const best = logprobs[i]!.toSorted((a, b) => b - a).slice(0, 3);
      expect(top.length).toBe(3);
      for (const [j, each] of top.entries()) expect(each.logprob).toBeCloseTo(best[j]!, 3);
    }
    expect(found!.first!.cachedTokens).toBe(0);
    expect(fork!.first!.promptLogprobs).toBeUndefined();
    engine.free();
  });

  test("of a prompt that was given up and begun again are whole", () => {
    // Two that cannot both stay: the later one gives its blocks back while it reads its prompt.
    const engine = makeEngine(model, { tokenBudget: 24, maxBatch: 4, blocks: 5 });
    engine.submit(request({ prompt: prompt.slice(0, 60), maxTokens: 60 }));
    const [found] = engine.submit(request({ promptLogprobs: 0, maxTokens: 2 }));
    engine.run();
    expect(engine.engine.stats().preemptions).toBeGreaterThan(0);
    const scores = found!.first!.promptLogprobs!;
    const { logprobs } = whole();
    expect(scores.length).toBe(prompt.length - 1);
    expect(scores[40]!.logprob).toBeCloseTo(logprobs[40]![prompt[41]!]!, 3);
    expect(scores[98]!.logprob).toBeCloseTo(logprobs[98]![prompt[99]!]!, 3);
    engine.free();
  });
});

describe("the vector of a prompt", () => {
  for (const pooling of ["last", "mean"] as const) {
    test(`is the ${pooling} hidden state, in pieces and where its beginning is cached`, () => {
      const engine = makeEngine(model, cuts);
      const { hidden } = whole();
      engine.submit(request({}));
      engine.run();
      const [found] = engine.submit(request({ pooling, maxTokens: 1 }));
      engine.run();
      const expected = hidden[0]!.map((_, d) => {
        if (pooling === "last") return hidden.at(-1)![d]!;
        return hidden.reduce((sum, row) => sum + row[d]!, 0) / hidden.length;
      });
      const vector = found!.first!.vector!;
      expect(vector.length).toBe(expected.length);
      for (const [d, value] of expected.entries()) expect(vector[d]).toBeCloseTo(value, 3);
      // The last token's state alone needs no more than the last piece.
      expect(found!.first!.cachedTokens).toBe(pooling === "last" ? 96 : 0);
      engine.free();
    });
  }
});

describe("the logits of given tokens behind a prompt", () => {
  const asking = (logitsOf: number[]) => ({ maxTokens: 1, sampling: { temperature: 0, logitsOf } });

  test("are the model's own, each row's for its tokens, where the prompt's beginning is cached too", () => {
    const engine = makeEngine(model, cuts);
    const last = whole().logits.at(-1)!;
    const [computed] = engine.submit(request(asking([9, 200, 9])));
    engine.run();
    const [plain] = engine.submit(request({}));
    const [one] = engine.submit(request(asking([3])));
    const [two] = engine.submit(request(asking([1, 7])));
    engine.run();
    for (const [found, tokens] of [
      [computed, [9, 200, 9]],
      [one, [3]],
      [two, [1, 7]],
    ] as const) {
      const { logits } = found!.first!;
      expect(logits).toHaveLength(tokens.length);
      for (const [i, token] of tokens.entries()) expect(logits![i]).toBeCloseTo(last[token]!, 3);
    }
    expect([computed, one, two].map((each) => each!.cachedTokens)).toEqual([0, 96, 96]);
    expect(plain!.first!.logits).toBeUndefined();
    engine.free();
  });

  test("are refused for a token outside the vocabulary", () => {
    const engine = makeEngine(model, cuts);
    for (const token of [model.shape.vocabulary, -1, 0.5]) {
      expect(() => engine.submit(request(asking([1, token])))).toThrow("bad_token");
    }
    engine.free();
  });
});

test("with prefix caching off nothing is found, and the load is seen from outside", () => {
  const engine = makeEngine(model, { ...cuts, prefixCaching: false, maxBatch: 2 });
  engine.submit(request({}));
  engine.run();
  const [again] = engine.submit(request({ n: 3 }));
  expect(readLoad(engine.engine.load)).toEqual({ running: 0, waiting: 3 });
  engine.step();
  expect(readLoad(engine.engine.load)).toEqual({ running: 1, waiting: 2 });
  engine.run();
  expect(again!.first!.cachedTokens).toBe(0);
  expect(again!.first!.queueMs).toBeGreaterThanOrEqual(0);
  expect(readLoad(engine.engine.load)).toEqual({ running: 0, waiting: 0 });
  engine.free();
});
