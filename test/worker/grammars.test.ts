// Answers that are constrained by a grammar, with a runner that draws the first token that a mask allows.
import { expect, test } from "bun:test";
import {
  defaultEngineOptions,
  type EngineOptions,
  type RequestEvent,
} from "../../src/engine/protocol.ts";
import type { Grammar } from "../../src/grammar/grammar.ts";
import type { Matcher } from "../../src/grammar/matchers.ts";
import { KvCache } from "../../src/kv/kv-cache.ts";
import type { Lookback, Sampled } from "../../src/model/run/sampler.ts";
import type { Launched, StepInputs } from "../../src/model/run/step.ts";
import type { Priority } from "../../src/schedule/queue.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";

const FREE = 7;
const request = { prompt: Uint32Array.of(1, 2, 3), sampling: { temperature: 0 } };
const vocabulary = { path: "", size: 64, stopTokens: [], markers: [] };
const grammar: Grammar = { vocabulary, format: "", strict: [] };

/** Allows the token whose number is how many it has accepted, plus ten. */
class CountingMatcher implements Matcher {
  readonly accepted: number[] = [];
  isLate = false;
  /** How many more draws find no mask, though it was not late when their step was planned. */
  misses = 0;
  isClosed = false;
  isAtDeadEnd = false;

  mask(): Uint32Array | undefined {
    if (this.isLate || this.misses-- > 0) return undefined;
    const token = 10 + this.accepted.length;
    return Uint32Array.of(token < 32 ? 1 << token : 0, token < 32 ? 0 : 1 << (token - 32));
  }

  accept(token: number): void {
    this.accepted.push(token);
  }

  close(): void {
    this.isClosed = true;
  }
}

function setUp(depth: 1 | 2, options: Partial<EngineOptions> = {}) {
  const opened: CountingMatcher[] = [];
  const matchers = {
    open: () => {
      const matcher = new CountingMatcher();
      opened.push(matcher);
      return matcher;
    },
  };
  const steps: StepInputs[] = [];
  const launch = (inputs: StepInputs): Launched => {
    steps.push(inputs);
    let sampled: Sampled[] | undefined;
    const draw = (lookbacks: readonly Lookback[]) => {
      if (sampled) return;
      const left = [...lookbacks];
      sampled = inputs.samples.map(({ row }) => {
        const mask = row.looksBack ? left.shift()!.mask : undefined;
        if (mask === "late") return { token: undefined, isLate: true };
        return { token: mask ? firstOf(mask) : FREE };
      });
    };
    // As a device does it: rows that need not look back are drawn at once.
    if (inputs.samples.every(({ row }) => !row.looksBack)) draw([]);
    return { draw, read: () => ({ sampled: sampled!, scored: [], sums: [] }) };
  };
  const engine = new ModelEngine({
    name: "mock",
    cache: new KvCache({ groups: [{ blocks: 40 }] }),
    runner: { forwards: 0, depth, launch },
    vocabulary: 64,
    maxLength: 500,
    lookback: 1000,
    tokenBudget: 512,
    stepMs: 250,
    options: { ...defaultEngineOptions, maxBatch: 8, ...options },
    matchers: () => matchers,
    onStep: (result) => void events.push(...result.events),
  });
  const events: RequestEvent[] = [];
  const submit = (id: number, isConstrained: boolean, maxTokens = 6, priority?: Priority) =>
    engine.submit(id, {
      prompt: Uint32Array.of(1, 2, 3),
      maxTokens,
      sampling: { temperature: 0 },
      ...(priority && { priority }),
      ...(isConstrained && { grammar }),
    });
  const step = () => {
    const hasStepped = engine.step();
    engine.check();
    return hasStepped;
  };
  const run = () => {
    while (!engine.scheduler.idle) step();
  };
  const tokens = (id: number) =>
    events.flatMap(({ id: of, event }) => (of === id && event.token ? [event.token] : []));
  return { engine, matchers, opened, steps, submit, step, run, tokens };
}

function firstOf(words: Uint32Array): number | undefined {
  for (let token = 0; token < words.length * 32; token++) {
    if ((words[token >> 5]! >>> (token & 31)) & 1) return token;
  }
  return undefined;
}

for (const depth of [1, 2] as const) {
  const how = depth === 1 ? "one step at a time" : "a step launched ahead";

  test(`a row is drawn by what its grammar allows after the last token, ${how}`, () => {
    const { submit, run, tokens, opened } = setUp(depth);
    submit(1, true);
    submit(2, false);
    submit(3, true, 3);
    run();
    expect(tokens(1)).toEqual([10, 11, 12, 13, 14, 15]);
    expect(tokens(2)).toEqual(Array(6).fill(FREE));
    expect(tokens(3)).toEqual([10, 11, 12]);
    // The last one ends it: no mask is asked for after it.
    expect(opened.map(({ accepted }) => accepted.length)).toEqual([5, 2]);
    expect(opened.every(({ isClosed }) => isClosed)).toBe(true);
  });

  test(`each of several answers has a matcher of its own, which is closed when it is aborted, ${how}`, () => {
    const { engine, opened, step, tokens } = setUp(depth);
    engine.submit(1, { ...request, maxTokens: 9, n: 3, grammar });
    step();
    step();
    step();
    expect(opened).toHaveLength(3);
    expect(tokens(1).length).toBeGreaterThan(3);
    engine.abort(1, 1);
    expect(opened.map(({ isClosed }) => isClosed)).toEqual([false, true, false]);
    engine.abort(1);
    expect(opened.every(({ isClosed }) => isClosed)).toBe(true);
  });

  test(`where a grammar allows nothing, that answer fails and no other, ${how}`, () => {
    const { submit, run, opened, tokens, engine } = setUp(depth);
    submit(1, true);
    submit(2, false);
    opened[0]!.mask = () => new Uint32Array(2);
    run();
    expect(tokens(1)).toEqual([]);
    expect(tokens(2)).toHaveLength(6);
    expect(engine.has(1)).toBe(false);
  });

  test(`no other row waits for a mask that is late, ${how}`, () => {
    const { submit, step, run, opened, tokens } = setUp(depth);
    submit(1, true, 30);
    submit(2, false, 30);
    step();
    step();
    const before = tokens(1).length;
    opened[0]!.isLate = true;
    for (let i = 0; i < 6; i++) step();
    // With a step ahead one was under way already.
    expect(tokens(1).length).toBeLessThanOrEqual(before + 1);
    expect(tokens(2).length).toBeGreaterThanOrEqual(7);
    submit(3, false, 4);
    opened[0]!.isLate = false;
    step();
    step();
    step();
    expect(tokens(1).length).toBeGreaterThan(before + 1);
    run();
    expect(tokens(1)).toEqual(Array.from({ length: 30 }, (_, i) => 10 + i));
    expect(tokens(3)).toHaveLength(4);
  });

  test(`when all rows wait for their mask there is nothing to do, and then there is, ${how}`, () => {
    const { submit, step, run, opened, tokens } = setUp(depth);
    submit(1, true);
    opened[0]!.isLate = true;
    expect(step()).toBe(false);
    opened[0]!.isLate = false;
    run();
    expect(tokens(1)).toHaveLength(6);
  });

  test(`a waiting request without its mask is passed over by those behind it, ${how}`, () => {
    const { submit, step, run, opened, tokens } = setUp(depth, { maxBatch: 2 });
    submit(1, true);
    opened[0]!.isLate = true;
    submit(2, false);
    submit(3, false);
    for (let i = 0; i < 4; i++) step();
    expect(tokens(2).length).toBeGreaterThanOrEqual(3);
    expect(tokens(3).length).toBeGreaterThanOrEqual(3);
    opened[0]!.isLate = false;
    run();
    expect(tokens(1)).toEqual([10, 11, 12, 13, 14, 15]);
  });

  test(`a waiting request preempts nobody before its mask is there, ${how}`, () => {
    const { engine, submit, step, run, opened, tokens } = setUp(depth, { maxBatch: 2 });
    submit(1, false, 40, "LOW");
    submit(2, false, 40, "LOW");
    step();
    submit(3, true, 6, "HIGH");
    opened[0]!.isLate = true;
    for (let i = 0; i < 6; i++) step();
    expect(engine.scheduler.preemptions).toBe(0);
    expect([tokens(1).length, tokens(2).length]).toEqual([7, 7]);
    opened[0]!.isLate = false;
    for (let i = 0; i < 4; i++) step();
    expect(engine.scheduler.preemptions).toBe(1);
    run();
    expect(tokens(3)).toHaveLength(6);
    expect([tokens(1).length, tokens(2).length]).toEqual([40, 40]);
  });

  test(`a draw that finds no mask is drawn again, and no other row notices, ${how}`, () => {
    const { engine, submit, step, run, opened, steps, tokens } = setUp(depth);
    submit(1, true, 20);
    submit(2, false, 20);
    step();
    const before = tokens(1).length;
    opened[0]!.misses = 1;
    for (let i = 0; i < 3; i++) step();
    // It misses a step, and the one that was launched ahead; the other row has a token of each.
    expect(tokens(1)).toHaveLength(before + 3 - depth);
    expect(tokens(2)).toHaveLength(before + 3);
    // A mask is missed at the end of a block too, where the block must be given back.
    for (const at of [29, 30, 31, 32, 33]) {
      submit(100 + at, true, 3);
      opened.at(-1)!.misses = 2;
    }
    for (let i = 0; i < 30; i++) {
      if (i % 3 === 0) opened[0]!.misses = 1;
      step();
    }
    run();
    expect(tokens(1)).toEqual(Array.from({ length: 20 }, (_, i) => 10 + i));
    for (const at of [29, 30, 31, 32, 33]) expect(tokens(100 + at)).toEqual([10, 11, 12]);
    // It computes its last position again, with the same token in the same slot.
    const rows = steps.flatMap(({ rows }) => rows).filter(({ count }) => count === 1);
    expect(rows.length).toBeGreaterThan(40);
    expect(engine.scheduler.idle).toBe(true);
  });

  test(`forks that miss their masks begin one by one, ${how}`, () => {
    const { engine, opened, run, tokens } = setUp(depth);
    engine.submit(1, { ...request, maxTokens: 5, n: 4, grammar });
    opened.forEach((matcher, i) => {
      matcher.misses = i;
    });
    run();
    expect(tokens(1).toSorted()).toEqual(
      [10, 11, 12, 13, 14].flatMap((token) => Array(4).fill(token)),
    );
    engine.check();
  });
}
