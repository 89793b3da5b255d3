// The engine with a runner that has no tensors: it keeps tokens in the blocks of its tables, and the next
// token of a sequence is a hash of those that its table leads to and of its seed.
import { describe, expect, test } from "bun:test";
import {
  defaultEngineOptions,
  type EngineOptions,
  type EngineRequest,
  type RequestEvent,
} from "../../src/engine/protocol.ts";
import { BLOCK_TOKENS, readGauges } from "../../src/kv/blocks.ts";
import { KvCache } from "../../src/kv/kv-cache.ts";
import type { Sampled } from "../../src/model/run/sampler.ts";
import type { Launched, StepInputs, StepOutputs } from "../../src/model/run/step.ts";
import { ModelEngine, type StepResult } from "../../src/worker/model-engine.ts";
import { nextToken } from "../support/block-model.ts";

const VOCABULARY = 1000;

class HashRunner {
  forwards = 0;
  readonly depth: number = 1;
  readonly steps: StepInputs[] = [];
  /** What goes wrong at the next step: it throws, or gives no token to those with these seeds. */
  fault: { throws: string } | { seeds: number[] } | undefined;
  readonly #slots: Uint32Array;

  constructor(blocks: number) {
    this.#slots = new Uint32Array(blocks * BLOCK_TOKENS);
  }

  launch(inputs: StepInputs): Launched {
    const outputs = this.#run(inputs);
    return { draw() {}, read: () => outputs };
  }

  #run(inputs: StepInputs): StepOutputs {
    this.forwards += 1;
    this.steps.push(inputs);
    const { fault } = this;
    this.fault = undefined;
    if (fault && "throws" in fault) throw new Error(fault.throws);
    for (const { from, to } of inputs.copies) {
      const start = from * BLOCK_TOKENS;
      this.#slots.copyWithin(to * BLOCK_TOKENS, start, start + BLOCK_TOKENS);
    }
    const ends = this.#write(inputs);
    const sampled = inputs.samples.map(({ at, row: { sampling } }): Sampled => {
      if (fault?.seeds.includes(sampling.seed)) return { token: undefined };
      const { table, length } = ends.get(at)!;
      const context = Array.from({ length }, (_, i) => this.#slots[slotOf(table, i)]!);
      const token = nextToken(context, sampling.seed);
      const wanted = sampling.logprobs;
      if (wanted === undefined) return { token };
      return { token, logprob: -token, top: [{ token, logprob: -token }] };
    });
    return { sampled, scored: [], sums: [] };
  }

  /** The row that ends at each place of the step's tokens. */
  #write({ rows, tokens }: StepInputs) {
    const ends = new Map<number, { table: readonly number[]; length: number }>();
    let at = 0;
    for (const { start, count, tables } of rows) {
      const table = tables[0]!;
      for (let i = 0; i < count; i++) this.#slots[slotOf(table, start + i)] = tokens[at++]!;
      ends.set(at - 1, { table, length: start + count });
    }
    return ends;
  }
}

const slotOf = (table: readonly number[], at: number) =>
  table[Math.floor(at / BLOCK_TOKENS)]! * BLOCK_TOKENS + (at % BLOCK_TOKENS);

/** What the runner must come to. */
function answerTo(prompt: readonly number[], count: number, seed: number): number[] {
  const context = [...prompt];
  for (let i = 0; i < count; i++) context.push(nextToken(context, seed));
  return context.slice(prompt.length);
}

type Ask = Omit<Partial<EngineRequest>, "prompt" | "sampling"> & {
  prompt?: number[];
  sampling?: Partial<EngineRequest["sampling"]>;
};

type SetUp = Partial<EngineOptions> & { maxLength?: number };

const setUp = (options?: SetUp) => setUpWith(HashRunner, options);

function setUpWith<R extends HashRunner>(
  Runner: new (blocks: number) => R,
  { blocks = 40, maxLength = 2000, ...options }: SetUp = {},
) {
  const runner = new Runner(blocks);
  const cache = new KvCache({ groups: [{ blocks }] });
  const pool = cache.pools[0]!;
  const clock = { ms: 0 };
  const engine = new ModelEngine({
    name: "mock",
    cache,
    runner,
    vocabulary: VOCABULARY,
    maxLength,
    lookback: 1000,
    tokenBudget: 64,
    stepMs: 250,
    options: { ...defaultEngineOptions, maxBatch: 8, tokenBudget: 64, ...options },
    nowMs: () => clock.ms,
    onStep: (result) => {
      events.push(...result.events);
      results.push(result);
    },
  });
  const events: RequestEvent[] = [];
  const results: StepResult[] = [];
  const submit = (id: number, { prompt = range(10), sampling, ...ask }: Ask = {}) =>
    engine.submit(id, {
      prompt: Uint32Array.from(prompt),
      maxTokens: 5,
      sampling: { temperature: 1, seed: id, ...sampling },
      ...ask,
    });
  const step = () => {
    const before = results.length;
    const hasStepped = engine.step();
    expect(results.length - before).toBe(hasStepped ? 1 : 0);
    engine.check();
    return results[before];
  };
  const run = () => {
    for (let i = 0; i < 1000 && !engine.scheduler.idle; i++) step();
    expect(engine.scheduler.idle).toBe(true);
  };
  const abort = (id: number, index?: number) => {
    const aborted = [...engine.abort(id, index)];
    events.push(...aborted);
    engine.check();
    return aborted;
  };
  /** One answer's events, and the tokens in them. */
  const answer = (id: number, index = 0) => {
    const own = events.filter((each) => each.id === id && each.event.index === index);
    const tokens = own.flatMap(({ event }) => (event.token === undefined ? [] : [event.token]));
    const ends = own.flatMap(({ event }) => (event.finished ? [event.finished] : []));
    return { tokens, ends, events: own.map(({ event }) => event) };
  };
  return { engine, runner, pool, clock, events, results, submit, step, run, abort, answer };
}

const range = (length: number, from = 0) => Array.from({ length }, (_, i) => from + i);

describe("a step", () => {
  test("is one forward pass with a row for each who runs", () => {
    const { runner, submit, step, run, answer } = setUp();
    const prompts = [4, 7, 9].map((length, i) => range(length, 100 * i));
    prompts.forEach((prompt, id) => {
      submit(id, { prompt, maxTokens: 4 });
    });
    step();
    expect(runner.steps[0]!.rows.map(({ count }) => count)).toEqual([4, 7, 9]);
    step();
    const rows = runner.steps[1]!.rows.map(({ start, count }) => `${count} at ${start}`);
    expect(rows).toEqual(["1 at 4", "1 at 7", "1 at 9"]);
    run();
    expect(runner.forwards).toBe(4);
    prompts.forEach((prompt, id) => {
      expect(answer(id)).toMatchObject({ tokens: answerTo(prompt, 4, id), ends: ["length"] });
    });
  });

  test("is none where there is nothing to do", () => {
    const { runner, submit, step, run } = setUp();
    expect(step()).toBeUndefined();
    submit(1);
    run();
    expect(step()).toBeUndefined();
    expect(runner.forwards).toBe(5);
  });

  test("gives each row its token though the inputs stand in another order", () => {
    const { runner, submit, step, run, answer } = setUp({ tokenBudget: 16 });
    submit(1, { prompt: range(60), maxTokens: 9 });
    step();
    step();
    submit(2, { prompt: range(3, 500), maxTokens: 9 });
    submit(3, { prompt: range(40, 600), maxTokens: 9 });
    run();
    // Rows in another order than the scheduler's: the longer of the two comes later.
    expect(
      runner.steps.some(({ rows }) => rows.length > 1 && rows[0]!.start < rows[1]!.start),
    ).toBe(true);
    expect(answer(1).tokens).toEqual(answerTo(range(60), 9, 1));
    expect(answer(2).tokens).toEqual(answerTo(range(3, 500), 9, 2));
    expect(answer(3).tokens).toEqual(answerTo(range(40, 600), 9, 3));
  });

  test("has the keys of a prompt's blocks made before it is read", () => {
    const { CryptoHasher } = Bun;
    let isRead = false;
    const late: string[] = [];
    class ReadRunner extends HashRunner {
      override launch(inputs: StepInputs): Launched {
        const launched = super.launch(inputs);
        const read = () => {
          isRead = true;
          return launched.read();
        };
        return { ...launched, read };
      }
    }
    const { engine, submit, pool } = setUpWith(ReadRunner, { tokenBudget: 96 });
    submit(1, { prompt: range(90), maxTokens: 3 });
    submit(2, { prompt: range(70, 100), maxTokens: 3 });
    Bun.CryptoHasher = class extends CryptoHasher {
      override update(...given: Parameters<InstanceType<typeof CryptoHasher>["update"]>) {
        if (isRead) late.push(String(given[0]));
        return super.update(...given);
      }
    };
    try {
      while (!engine.scheduler.idle) {
        isRead = false;
        engine.step();
      }
    } finally {
      Bun.CryptoHasher = CryptoHasher;
    }
    // 64 tokens of the one and 64 of the other.
    expect(readGauges(pool.gauges).cached).toBe(4);
    expect(late).toEqual([]);
  });

  test("reports its rows, and the tokens of prompts apart from those of answers", () => {
    const { clock, submit, step, results, runner } = setUp();
    submit(1, { prompt: range(100) });
    const launch = runner.launch.bind(runner);
    runner.launch = (inputs) => {
      const { draw, read } = launch(inputs);
      return {
        draw,
        read: () => {
          clock.ms += 7;
          return read();
        },
      };
    };
    step();
    step();
    submit(2, { prompt: range(20, 500) });
    step();
    step();
    expect(results.map(({ report }) => report)).toEqual([
      {
        model: "mock",
        step: 0,
        ms: 7,
        rows: 1,
        prefillTokens: 64,
        decodeTokens: 0,
        preempted: 0,
        running: 1,
        waiting: 0,
        blocks: { total: 40, free: 38, cached: 0, held: 2, shared: 0 },
        snapshots: { hits: 0, misses: 0 },
      },
      expect.objectContaining({ step: 1, rows: 1, prefillTokens: 36, decodeTokens: 0 }),
      expect.objectContaining({ step: 2, rows: 2, prefillTokens: 20, decodeTokens: 1, running: 2 }),
      expect.objectContaining({ step: 3, rows: 2, prefillTokens: 0, decodeTokens: 2 }),
    ]);
  });

  test("reports who had how many tokens of a step, also of those who have ended", () => {
    const { submit, run, results, engine } = setUp({ debug: true });
    submit(1, { name: "first", prompt: range(70), maxTokens: 2 });
    submit(2, { name: "second", n: 2, prompt: range(20, 500), maxTokens: 2 });
    run();
    const [first, second] = [
      { id: 1, index: 0, name: "first" },
      { id: 2, index: 0, name: "second" },
    ];
    expect(results.map(({ report }) => report.batch)).toEqual([
      [{ ...first, tokens: 64 }],
      [
        { ...first, tokens: 6 },
        { ...second, tokens: 20 },
      ],
      [
        { ...first, tokens: 1 },
        { ...second, tokens: 1 },
        { ...second, index: 1, tokens: 1 },
      ],
    ]);
    // The second's prompt, until its answers go on in blocks of their own.
    expect(results.map(({ report }) => report.blocks.shared)).toEqual([0, 1, 0]);
    engine.check();
  });

  test("reports those who wait and those who gave their blocks back", () => {
    const { submit, run, results, answer, engine } = setUp({ blocks: 4, maxBatch: 2 });
    [1, 2, 3].forEach((id) => {
      submit(id, { prompt: range(30, id * 100), maxTokens: 50 });
    });
    run();
    expect(results[0]!.report).toMatchObject({ running: 2, waiting: 1 });
    const preempted = results.reduce((sum, { report }) => sum + report.preempted, 0);
    expect(preempted).toBeGreaterThan(0);
    expect(engine.stats().preemptions).toBe(preempted);
    for (const id of [1, 2, 3]) {
      expect(answer(id).tokens).toEqual(answerTo(range(30, id * 100), 50, id));
    }
  });
});

/** Two steps under way, each computed when it is drawn, as on a device for rows that look back. */
test("a model that a rank refuses ends what waits for it, and takes no more until the ranks are there", () => {
  class RefusedRunner extends HashRunner {
    isRefused = false;
    loss: string | undefined;
    isReady = () => this.loss === undefined && !this.isRefused;
    takeLoss() {
      const { loss } = this;
      this.loss = undefined;
      return loss;
    }
  }
  const { engine, runner, submit, step, run, answer } = setUpWith(RefusedRunner, { maxBatch: 2 });
  submit(1, { n: 2 });
  step();
  submit(2, { n: 3 });
  runner.loss = "rank 1 is gone";
  step();
  expect([answer(1).ends, answer(2).ends]).toEqual([["error"], []]);
  runner.isRefused = true;
  runner.loss = "rank 1 refuses";
  expect(step()!.report.error).toBe("rank 1 refuses");
  expect(range(3).map((index) => answer(2, index).ends)).toEqual(Array(3).fill(["error"]));
  expect(engine.scheduler.idle).toBe(true);
  expect(step()).toBeUndefined();
  expect(submit(3)).toBe("ranks_refuse");
  runner.isRefused = false;
  expect(submit(4)).toBeUndefined();
  run();
  expect(answer(4).tokens).toEqual(answerTo(range(10), 5, 4));
});

class AheadRunner extends HashRunner {
  override readonly depth = 2;
  readonly log: string[] = [];
  /** How many tokens the samples had, when a step was launched and again when it was drawn. */
  readonly indices: number[][] = [];
  /** The next launch throws, or the next draw. */
  refuses = false;
  drops = false;
  #launches = 0;
  #drawn: Sampled[] = [];

  override launch(inputs: StepInputs): Launched {
    const step = this.#launches++;
    this.log.push(`launch ${step}`);
    if (this.refuses) {
      this.refuses = false;
      throw new Error("refused");
    }
    const count = () => this.indices.push(inputs.samples.map(({ row }) => row.index));
    count();
    let outputs: StepOutputs | undefined;
    return {
      draw: () => {
        if (outputs) return;
        this.log.push(`draw ${step}`);
        if (this.drops) throw new Error("dropped");
        count();
        inputs.fed?.forEach((sample, at) => {
          if (sample >= 0) inputs.tokens[at] = this.#drawn[sample]!.token!;
        });
        outputs = super.launch(inputs).read();
        this.#drawn = outputs.sampled;
      },
      read: () => {
        this.log.push(`read ${step}`);
        if (!outputs) throw new Error("dropped");
        return outputs;
      },
    };
  }
}

describe("a step that is launched before the one before it was read", () => {
  test("is launched after that one was drawn, and drawn after it was read", () => {
    const { runner, submit, run } = setUpWith(AheadRunner);
    submit(1, { maxTokens: 3 });
    run();
    expect(runner.log).toEqual([
      "launch 0",
      "draw 0",
      "launch 1",
      "read 0",
      "draw 1",
      "launch 2",
      "read 1",
      "draw 2",
      "read 2",
    ]);
    expect(runner.indices).toEqual([[0], [0], [1], [1], [2], [2]]);
  });

  test("takes each sequence's token from the sample that is its own, whatever the order", () => {
    const { runner, submit, step, run, answer } = setUpWith(AheadRunner);
    submit(1, { prompt: range(60), maxTokens: 40 });
    for (let i = 0; i < 5; i++) step();
    submit(2, { prompt: range(3, 500), n: 3, maxTokens: 40 });
    submit(3, { prompt: range(70, 600), maxTokens: 9 });
    run();
    expect(runner.steps.some(({ fed }) => fed?.some((sample, at) => sample !== at))).toBe(true);
    expect(answer(1).tokens).toEqual(answerTo(range(60), 40, 1));
    for (const index of [0, 1, 2]) {
      expect(answer(2, index).tokens).toEqual(answerTo(range(3, 500), 40, 2 + index));
    }
    expect(answer(3).tokens).toEqual(answerTo(range(70, 600), 9, 3));
  });

  test("does not follow on one that could not be launched", () => {
    const { runner, submit, step, run, answer } = setUpWith(AheadRunner);
    submit(1, { maxTokens: 20 });
    step();
    submit(2, { prompt: range(70), maxTokens: 20 });
    runner.refuses = true;
    step();
    const launches = runner.log.length;
    expect(step()!.report.error).toContain("refused");
    expect(runner.log).toHaveLength(launches);
    run();
    expect(answer(1).ends).toEqual(["error"]);
    expect(answer(2).ends).toEqual(["error"]);
  });

  test("does not follow on one that could not be drawn: it would have no tokens to go on with", () => {
    const { runner, submit, step, run, answer } = setUpWith(AheadRunner);
    submit(1, { maxTokens: 20 });
    step();
    runner.drops = true;
    const before = runner.log.length;
    expect(step()!.report.error).toContain("dropped");
    expect(runner.log.slice(before)).toEqual(["draw 1", "read 1"]);
    runner.drops = false;
    expect(answer(1).ends).toEqual(["error"]);
    submit(2, { maxTokens: 3 });
    run();
    expect(answer(2).tokens).toEqual(answerTo(range(10), 3, 2));
  });
});

/** Each launch takes so long that the steps before it come to their end. */
class LongRunner extends AheadRunner {
  override launch(inputs: StepInputs, landOthers?: () => void): Launched {
    const launched = super.launch(inputs);
    landOthers?.();
    this.log.push("launched");
    return launched;
  }
}

describe("a step whose launch takes longer than the one before it", () => {
  test("lets that one land meanwhile, whose answers are told before it is launched", () => {
    const { runner, submit, step, run, results, answer } = setUpWith(LongRunner);
    submit(1, { maxTokens: 3 });
    expect(step()!.report.step).toBe(0);
    expect(runner.log.join(", ")).toBe("launch 0, launched, draw 0, launch 1, read 0, launched");
    runner.log.length = 0;
    expect(step()!.report.step).toBe(1);
    expect(runner.log).toEqual(["draw 1", "launch 2", "read 1", "launched"]);
    run();
    expect(results).toHaveLength(3);
    expect(answer(1).tokens).toEqual(answerTo(range(10), 3, 1));
  });
});

describe("a request", () => {
  test("ends at its stop token, and its events say so", () => {
    const { submit, run, answer, engine } = setUp();
    const expected = answerTo(range(10), 5, 1);
    submit(1, { stopTokens: [expected[2]!] });
    expect(engine.has(1)).toBe(true);
    run();
    expect(answer(1).tokens).toEqual(expected.slice(0, 3));
    const ends = answer(1).events.map(({ finished }) => finished);
    expect(ends).toEqual([undefined, undefined, "stop"]);
    expect(engine.has(1)).toBe(false);
  });

  test("does not end before its least number of tokens", () => {
    const { submit, run, answer } = setUp();
    const expected = answerTo(range(10), 5, 1);
    submit(1, { stopTokens: [expected[0]!, expected[3]!], minTokens: 2 });
    run();
    expect(answer(1)).toMatchObject({ tokens: expected.slice(0, 4), ends: ["stop"] });
  });

  test("hands on what the sampler needs and what it says", () => {
    const { runner, submit, run, answer } = setUp();
    const logitBias = new Map([[3, 1]]);
    submit(1, { prompt: [7, 8], maxTokens: 3, sampling: { topK: 4, logprobs: 1, logitBias } });
    run();
    const expected = answerTo([7, 8], 3, 1);
    const sampling = { temperature: 1, seed: 1, topK: 4, logprobs: 1, logitBias };
    const rows = runner.steps.map(({ samples }) => samples[0]!.row);
    expect(rows.map((row) => row.sampling)).toEqual([sampling, sampling, sampling]);
    expect(rows.map(({ looksBack }) => looksBack)).toEqual([false, false, false]);
    expect(answer(1).events).toEqual(
      expected.map((token, i) => ({
        index: 0,
        token,
        logprob: -token,
        top: [{ token, logprob: -token }],
        finished: i === 2 ? "length" : undefined,
        cachedTokens: 0,
        ...(i === 0 && { queueMs: 0, promptLogprobs: undefined, vector: undefined }),
      })),
    );
  });

  test("without a seed gets one, and two get different ones", () => {
    const { runner, submit, step } = setUp();
    submit(1, { sampling: { seed: undefined } });
    submit(2, { sampling: { seed: undefined } });
    step();
    const seeds = runner.steps[0]!.samples.map(({ row }) => row.sampling.seed);
    expect(seeds.every(Number.isSafeInteger)).toBe(true);
    expect(seeds[0]).not.toBe(seeds[1]!);
  });

  test("reports the prompt tokens that it found computed", () => {
    const { submit, run, answer, engine } = setUp();
    const prompt = range(80);
    submit(1, { prompt });
    run();
    submit(2, { prompt });
    submit(3, { prompt, salt: "another" });
    run();
    const found = [1, 2, 3].map((id) => answer(id).events.map(({ cachedTokens }) => cachedTokens));
    expect(found).toEqual([Array(5).fill(0), Array(5).fill(64), Array(5).fill(0)]);
    expect(answer(2).tokens).toEqual(answerTo(prompt, 5, 2));
    const counts = { promptTokens: 240, cachedTokens: 64, generatedTokens: 15 };
    expect(engine.stats()).toMatchObject(counts);
  });
});

describe("a request is refused", () => {
  test("that has no tokens, or one that the model does not know", () => {
    const { submit, step, engine } = setUp();
    expect(submit(1, { prompt: [] })).toBe("bad_token");
    expect(submit(2, { prompt: [1, 2, VOCABULARY] })).toBe("bad_token");
    expect(submit(3, { prompt: [2 ** 32 - 1] })).toBe("bad_token");
    expect([1, 2, 3].some((id) => engine.has(id))).toBe(false);
    expect(step()).toBeUndefined();
    expect(submit(4, { prompt: [VOCABULARY - 1] })).toBeUndefined();
  });

  test("whose bias is on a token that the model does not know", () => {
    const { submit, engine } = setUp();
    const biased = (token: number) => ({ sampling: { logitBias: new Map([[token, 1]]) } });
    expect(submit(1, biased(VOCABULARY))).toBe("bad_token");
    expect(submit(2, biased(-1))).toBe("bad_token");
    expect(submit(3, biased(0.5))).toBe("bad_token");
    expect(engine.has(1)).toBe(false);
    expect(submit(4, biased(VOCABULARY - 1))).toBeUndefined();
  });

  test("that is longer than the model takes", () => {
    const { submit, run, answer } = setUp({ maxLength: 50 });
    expect(submit(1, { prompt: range(50) })).toBe("too_long");
    expect(submit(2, { prompt: range(49) })).toBeUndefined();
    run();
    expect(answer(2)).toMatchObject({ tokens: answerTo(range(49), 1, 2), ends: ["length"] });
  });

  test("that finds the queue full", () => {
    const { submit, run, answer } = setUp({ maxBatch: 1, maxWaiting: 2 });
    expect([1, 2, 3].map((id) => submit(id))).toEqual([undefined, undefined, "queue_full"]);
    run();
    expect(submit(4)).toBeUndefined();
    run();
    expect([1, 2, 4].map((id) => answer(id).ends)).toEqual([["length"], ["length"], ["length"]]);
    expect(answer(3).events).toEqual([]);
  });

  test("whose prompt is too much for the queue, unless the queue is empty", () => {
    const { submit } = setUp({ maxWaitingTokens: 30 });
    expect(submit(1, { prompt: range(40) })).toBeUndefined();
    expect(submit(2, { prompt: range(1) })).toBe("queue_full");
  });
});

describe("several answers to a request", () => {
  test("have each its index and a seed of its own, and share the prompt", () => {
    const { runner, submit, run, answer, engine, step } = setUp();
    const prompt = range(40);
    submit(7, { prompt, n: 3, sampling: { seed: 100 } });
    step();
    expect(runner.steps[0]!.rows).toHaveLength(1);
    const seeds = runner.steps[0]!.samples.map(({ row }) => row.sampling.seed);
    expect(seeds).toEqual([100, 101, 102]);
    run();
    for (const index of [0, 1, 2]) {
      const tokens = answerTo(prompt, 5, 100 + index);
      expect(answer(7, index)).toMatchObject({ tokens, ends: ["length"] });
    }
    expect(new Set([0, 1, 2].map((index) => answer(7, index).tokens.join())).size).toBe(3);
    expect(runner.forwards).toBe(5);
    expect(engine.has(7)).toBe(false);
  });

  test("are all answered where the batch has fewer places", () => {
    const { submit, run, answer } = setUp({ maxBatch: 2 });
    const prompt = range(40);
    submit(7, { prompt, n: 5, sampling: { seed: 100 } });
    run();
    for (const index of range(5)) {
      expect(answer(7, index).tokens).toEqual(answerTo(prompt, 5, 100 + index));
    }
  });
});

describe("an abort", () => {
  test("ends a request that waits and one that runs, and gives their blocks back", () => {
    const { submit, step, run, abort, answer, engine, pool } = setUp({ maxBatch: 1 });
    submit(1, { maxTokens: 100 });
    submit(2);
    step();
    step();
    const event = { index: 0, token: undefined, finished: "abort", cachedTokens: 0 };
    expect(abort(1)).toEqual([{ id: 1, event: expect.objectContaining(event) }]);
    expect(abort(2)).toEqual([{ id: 2, event: expect.objectContaining(event) }]);
    expect([engine.has(1), engine.has(2)]).toEqual([false, false]);
    expect(step()).toBeUndefined();
    expect(answer(1)).toMatchObject({ tokens: answerTo(range(10), 2, 1), ends: ["abort"] });
    expect(pool.available).toBe(pool.count);
    submit(3);
    run();
    expect(answer(3).tokens).toEqual(answerTo(range(10), 5, 3));
  });

  test("of a request that is not there, or has ended, does nothing", () => {
    const { submit, run, abort } = setUp();
    expect(abort(1)).toEqual([]);
    submit(1);
    run();
    expect(abort(1)).toEqual([]);
  });

  test("of one answer lets the others go on", () => {
    const { submit, step, run, abort, answer, engine } = setUp();
    submit(1, { n: 3, sampling: { seed: 100 } });
    step();
    step();
    expect(abort(1, 1)).toHaveLength(1);
    expect(abort(1, 1)).toHaveLength(0);
    expect(engine.has(1)).toBe(true);
    run();
    const ends = [0, 1, 2].map((index) => answer(1, index).ends.join());
    expect(ends).toEqual(["length", "abort", "length"]);
    expect(answer(1, 1).tokens).toHaveLength(2);
    expect(answer(1, 2).tokens).toEqual(answerTo(range(10), 5, 102));
    expect(engine.has(1)).toBe(false);
  });

  test("of one answer before the prompt is computed lets the others go on", () => {
    for (const index of [0, 1, 2]) {
      for (const steps of [0, 1]) {
        const { submit, step, run, abort, answer, engine, pool } = setUp();
        const prompt = range(100);
        submit(1, { n: 3, prompt, sampling: { seed: 100 } });
        for (let i = 0; i < steps; i++) step();
        expect(abort(1, index)).toHaveLength(1);
        run();
        for (const other of [0, 1, 2]) {
          const tokens = other === index ? [] : answerTo(prompt, 5, 100 + other);
          const ends = [other === index ? "abort" : "length"];
          expect(answer(1, other)).toMatchObject({ tokens, ends });
        }
        expect(engine.has(1)).toBe(false);
        expect(pool.available).toBe(pool.count);
      }
    }
  });

  test("of a whole request ends all its answers", () => {
    const { submit, step, abort, engine, pool } = setUp();
    submit(1, { n: 3 });
    step();
    const ends = abort(1).map(({ event }) => `${event.index}: ${event.finished}`);
    expect(ends).toEqual(["0: abort", "1: abort", "2: abort"]);
    expect(engine.scheduler.idle).toBe(true);
    expect(engine.has(1)).toBe(false);
    expect(pool.available).toBe(pool.count);
  });
});

describe("a step that fails", () => {
  test("ends those who took part in it, and the next requests are answered", () => {
    const { runner, submit, step, run, answer, engine, pool } = setUp();
    submit(1, { prompt: range(40) });
    submit(2, { prompt: range(20), n: 2 });
    step();
    runner.fault = { throws: "out of memory" };
    const result = step()!;
    const failed = [...result.events];
    expect(failed.map(({ id, event }) => [id, event.index, event.finished])).toEqual([
      [1, 0, "error"],
      [2, 0, "error"],
      [2, 1, "error"],
    ]);
    expect(failed.every(({ event }) => event.token === undefined)).toBe(true);
    expect(result.report.error).toContain("out of memory");
    expect(engine.scheduler.idle).toBe(true);
    expect([engine.has(1), engine.has(2)]).toEqual([false, false]);
    expect(pool.available).toBe(pool.count);
    submit(3, { prompt: range(40) });
    run();
    expect(answer(3)).toMatchObject({ tokens: answerTo(range(40), 5, 3), ends: ["length"] });
    // Nothing of those who failed is found by others.
    expect(answer(3).events[0]!.cachedTokens).toBe(0);
  });

  test("leaves alone those who only wait", () => {
    const { runner, submit, step, run, answer } = setUp({ maxBatch: 1 });
    submit(1);
    submit(2);
    runner.fault = { throws: "once" };
    step();
    run();
    expect(answer(1)).toMatchObject({ tokens: [], ends: ["error"] });
    expect(answer(2)).toMatchObject({ tokens: answerTo(range(10), 5, 2), ends: ["length"] });
  });

  test("still counts as one, and is reported", () => {
    const { runner, submit, step, engine } = setUp();
    submit(1);
    runner.fault = { throws: "once" };
    expect(step()!.report).toMatchObject({ step: 0, rows: 1, prefillTokens: 10, running: 0 });
    expect(engine.stats()).toMatchObject({ steps: 1, forwards: 1, generatedTokens: 0 });
  });
});

test("an answer without a token ends with an error, and the others go on", () => {
  const { runner, submit, step, run, answer, pool } = setUp();
  submit(1);
  submit(2, { n: 2, sampling: { seed: 20 } });
  step();
  runner.fault = { seeds: [20] };
  run();
  expect(answer(1)).toMatchObject({ tokens: answerTo(range(10), 5, 1), ends: ["length"] });
  expect(answer(2, 0).ends).toEqual(["error"]);
  expect(answer(2, 0).tokens).toHaveLength(1);
  expect(answer(2, 1)).toMatchObject({ tokens: answerTo(range(10), 5, 21), ends: ["length"] });
  expect(pool.available).toBe(pool.count);
});

describe("the statistics", () => {
  test("tell of each request its state, priority, standing, age, tokens and blocks", () => {
    const { clock, submit, step, engine } = setUp({ maxBatch: 2, blocks: 40 });
    clock.ms = 1000;
    submit(1, { prompt: range(40), priority: "HIGH", maxTokens: 50 });
    clock.ms = 2000;
    submit(2, { prompt: range(8), maxTokens: 50 });
    step();
    step();
    clock.ms = 5000;
    submit(3, { prompt: range(64), priority: "LOW" });
    clock.ms = 11_000;
    const common = { index: 0, name: undefined, cachedTokens: 0, preemptions: 0 };
    const { requests, ...rest } = engine.stats();
    expect(requests).toEqual([
      {
        ...common,
        id: 1,
        state: "running",
        priority: "HIGH",
        ageMs: 10_000,
        standing: 3,
        promptTokens: 40,
        generated: 2,
        blocks: 2,
      },
      {
        ...common,
        id: 2,
        state: "running",
        priority: "NORMAL",
        ageMs: 9000,
        standing: 1.9,
        promptTokens: 8,
        generated: 2,
        blocks: 1,
      },
      {
        ...common,
        id: 3,
        state: "waiting",
        priority: "LOW",
        ageMs: 6000,
        standing: 0.6,
        promptTokens: 64,
        generated: 0,
        blocks: 0,
      },
    ]);
    expect(rest).toMatchObject({
      model: "mock",
      steps: 2,
      forwards: 2,
      promptTokens: 48,
      cachedTokens: 0,
      generatedTokens: 4,
      last: { step: 1, decodeTokens: 2 },
    });
  });

  test("are empty before the first request and without requests after the last", () => {
    const { submit, run, engine } = setUp();
    expect(engine.stats()).toMatchObject({ steps: 0, last: undefined, requests: [] });
    submit(1);
    run();
    expect(engine.stats()).toMatchObject({ steps: 5, requests: [] });
  });
});
