// Answers that are held to a grammar, with a runner that draws the first token that a row is allowed.
import { expect, test } from "bun:test";
import { defaultEngineOptions, type RequestEvent } from "../../src/engine/protocol.ts";
import type { Grammar } from "../../src/grammar/grammar.ts";
import type { Matcher } from "../../src/grammar/matchers.ts";
import { BlockPool } from "../../src/kv/blocks.ts";
import type { Launched, StepInputs } from "../../src/model/runner.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";

const FREE = 7;
const grammar: Grammar = {
  vocabulary: { path: "", size: 64, stopTokens: [], markers: [] },
  format: "",
  strict: [],
};

/** Allows the token whose number is how many it has accepted, plus ten. */
class CountingMatcher implements Matcher {
  readonly accepted: number[] = [];
  isLate = false;
  isClosed = false;

  allowed(): Uint32Array {
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

function setUp(depth: 1 | 2) {
  const opened: CountingMatcher[] = [];
  const matchers = {
    isCompiling: false,
    open: () => {
      const matcher = new CountingMatcher();
      opened.push(matcher);
      return matcher;
    },
  };
  const steps: StepInputs[] = [];
  const launch = (inputs: StepInputs): Launched => {
    steps.push(inputs);
    let tokens: (number | undefined)[] | undefined;
    const draw = () => {
      tokens ??= inputs.samples.map(({ row }) => (row.allowed ? firstOf(row.allowed()) : FREE));
    };
    // As a device does it: who need not look back is drawn at once.
    if (inputs.samples.every(({ row }) => !row.allowed)) draw();
    return {
      draw,
      read: () => ({ sampled: tokens!.map((token) => ({ token })), scored: [], sums: [] }),
    };
  };
  const engine = new ModelEngine({
    name: "mock",
    pool: new BlockPool(40),
    runner: { forwards: 0, depth, launch },
    vocabulary: 64,
    maxLength: 500,
    lookback: 1000,
    options: { ...defaultEngineOptions, maxBatch: 8 },
    matchers: () => matchers,
  });
  const events: RequestEvent[] = [];
  const submit = (id: number, isHeld: boolean, maxTokens = 6) =>
    engine.submit(id, {
      prompt: Uint32Array.of(1, 2, 3),
      maxTokens,
      sampling: { temperature: 0 },
      ...(isHeld && { grammar }),
    });
  const step = () => {
    const result = engine.step();
    events.push(...(result?.events ?? []));
    engine.check();
    return result;
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
    // The last one ends it: nobody asks what would come after it.
    expect(opened.map(({ accepted }) => accepted.length)).toEqual([5, 2]);
    expect(opened.every(({ isClosed }) => isClosed)).toBe(true);
  });

  test(`each of several answers has a matcher of its own, and lets go of it when aborted, ${how}`, () => {
    const { engine, opened, step, tokens } = setUp(depth);
    engine.submit(1, {
      prompt: Uint32Array.of(1, 2, 3),
      maxTokens: 9,
      n: 3,
      sampling: { temperature: 0 },
      grammar,
    });
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
    opened[0]!.allowed = () => new Uint32Array(2);
    run();
    expect(tokens(1)).toEqual([]);
    expect(tokens(2)).toHaveLength(6);
    expect(engine.has(1)).toBe(false);
  });

  test(`while a grammar is compiled nobody waits for a mask that is late, ${how}`, () => {
    const { submit, step, run, matchers, opened, tokens } = setUp(depth);
    submit(1, true, 30);
    submit(2, false, 30);
    step();
    step();
    const before = tokens(1).length;
    matchers.isCompiling = true;
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

  test(`when all wait for a grammar there is nothing to do, and then there is, ${how}`, () => {
    const { submit, step, run, matchers, opened, tokens } = setUp(depth);
    matchers.isCompiling = true;
    submit(1, true);
    opened[0]!.isLate = true;
    expect(step()).toBeUndefined();
    matchers.isCompiling = false;
    run();
    expect(tokens(1)).toHaveLength(6);
  });
}
