// Sequences of models whose layers keep something else than all keys and values: windows and recurrent states.
import { describe, expect, test } from "bun:test";
import { readGauges } from "../../src/kv/blocks.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { expectedTokens } from "../support/block-model.ts";
import { output, range, setUpScheduler } from "../support/scheduler.ts";

const recurrent = { groups: [{ blocks: 400 }], slots: 12 };

/** Tokens that look like no other's. */
const text = (length: number, seed: number) => range(length).map((i) => (i * 7 + seed * 131) % 991);

function setUp(layout: Parameters<typeof setUpScheduler>[0] = { layout: recurrent }) {
  const parts = setUpScheduler({ tokenBudget: 512, ...layout });
  const computedFor = (
    prompt: number[],
    maxTokens = 1,
    heads: number[] = [],
  ): { computed: number; sequence: Sequence } => {
    const before = parts.model.computed;
    const sequence = parts.one({ prompt, maxTokens, heads });
    parts.run();
    expect(output(sequence)).toEqual(expectedTokens(prompt, maxTokens));
    // What is generated is computed too, but for the last.
    return { computed: parts.model.computed - before - (maxTokens - 1), sequence };
  };
  return { ...parts, computedFor };
}

describe("recurrent layers", () => {
  test("the second turn of a long conversation computes what is new and at most one block", () => {
    const { computedFor } = setUp();
    const first = text(4000, 1);
    const { sequence } = computedFor(first, 70);
    const added = text(50, 2);
    const second = computedFor([...sequence.tokens(), ...added], 40);
    // The answer's last token was never computed.
    expect(second.computed).toBeLessThanOrEqual(added.length + 1 + 32);
    const third = computedFor([...second.sequence.tokens(), ...text(10, 3)]);
    expect(third.computed).toBeLessThanOrEqual(10 + 1 + 32);
  });

  test("an answer that is left out of the next turn costs no more than a block", () => {
    const { computedFor } = setUp();
    const first = text(4000, 1);
    computedFor(first, 100);
    const { computed } = computedFor([...first, ...text(60, 2)]);
    expect(computed).toBeLessThanOrEqual(60 + 32);
  });

  test("a head that is known to be shared is computed once, whatever follows it", () => {
    const { computedFor, cache } = setUp();
    const head = text(3000, 1);
    const first = computedFor([...head, ...text(210, 2)], 1, [3000]);
    expect(first.computed).toBe(3210);
    // At 2,048, at the end of the head and at that of the prompt.
    expect(readGauges(cache.slots!.gauges)).toMatchObject({ held: 0, cached: 3 });
    for (const [i, seed] of [3, 4, 5].entries()) {
      const { computed } = computedFor([...head, ...text(10 + 100 * i, seed)], 1, [3000]);
      expect(computed).toBe(10 + 100 * i + (3000 % 32));
    }
  });

  test("so is the head of a conversation's last turn, behind that of all conversations", () => {
    const { computedFor } = setUp();
    const [system, turns] = [text(500, 1), text(700, 2)];
    computedFor([...system, ...turns, ...text(60, 3)], 1, [500, 1200]);
    const asked = computedFor([...system, ...turns, ...text(60, 4)], 1, [500, 1200]);
    expect(asked.computed).toBe(60 + (1200 % 32));
    expect(computedFor([...system, ...text(90, 5)], 1, [500]).computed).toBe(90 + (500 % 32));
  });

  test("heads take no slots where they are short, or hardly longer than another", () => {
    const { computedFor, cache } = setUp();
    computedFor(text(900, 1), 1, [63, 640, 700]);
    // At 640, and at the end of the prompt.
    expect(readGauges(cache.slots!.gauges)).toMatchObject({ held: 0, cached: 2 });
    expect(computedFor([...text(700, 1), ...text(20, 2)]).computed).toBe(20 + 60);
  });

  test("a common head is computed twice at most, whatever follows it", () => {
    const { computedFor } = setUp();
    const head = text(3000, 1);
    computedFor([...head, ...text(200, 2)]);
    // Where the two part was not known before.
    expect(computedFor([...head, ...text(200, 3)]).computed).toBeLessThanOrEqual(200 + 3000 - 2048);
    for (const seed of [4, 5]) {
      const { computed } = computedFor([...head, ...text(200, seed)]);
      expect(computed).toBeLessThanOrEqual(200 + 32);
    }
  });

  test("a prompt that was cancelled goes on where its last step ended", () => {
    const { one, step, scheduler, computedFor } = setUp();
    const prompt = text(3000, 1);
    const cancelled = one({ prompt });
    for (let i = 0; i < 3; i++) step();
    expect(cancelled.computed).toBe(3 * 512);
    scheduler.abort(cancelled);
    expect(computedFor(prompt).computed).toBe(3000 - 3 * 512);
  });

  test("a preempted sequence goes on behind the last block of its answer", () => {
    const { one, step, run, scheduler, model } = setUp({ layout: recurrent, maxBatch: 1 });
    const low = one({ prompt: text(1000, 1), maxTokens: 90, priority: "LOW" });
    while (low.generated < 80) step();
    const before = model.computed;
    one({ prompt: text(10, 2), maxTokens: 1, priority: "HIGH" });
    run();
    expect(scheduler.preemptions).toBe(1);
    expect(model.computed - before).toBeLessThanOrEqual(10 + 32 + 11);
    expect(output(low)).toEqual(expectedTokens(text(1000, 1), 90));
  });

  test("a running answer keeps one snapshot of itself, and one of its prompt", () => {
    const { one, step, cache } = setUp();
    const sequence = one({ prompt: text(1000, 1), maxTokens: 500 });
    while (sequence.generated < 400) step();
    expect(readGauges(cache.slots!.gauges)).toMatchObject({ held: 1, cached: 2 });
  });

  test("where all slots are in use there are no snapshots, and all else goes on", () => {
    const { one, run, cache } = setUp({ layout: { groups: [{ blocks: 400 }], slots: 2 } });
    const asked = [1, 2].map((seed) => one({ prompt: text(100, seed), maxTokens: 90 }));
    run();
    for (const [i, sequence] of asked.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(text(100, i + 1), 90));
    }
    expect(readGauges(cache.slots!.gauges)).toMatchObject({ held: 0 });
  });

  test("more sequences than slots take turns", () => {
    const { one, run } = setUp({ layout: { groups: [{ blocks: 400 }], slots: 3 } });
    const asked = range(9).map((seed) => one({ prompt: text(100, seed), maxTokens: 40 }));
    run();
    for (const [seed, sequence] of asked.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(text(100, seed), 40));
    }
  });

  test("what a sequence that failed has computed is never hit", () => {
    const { one, step, scheduler, model, cache, computedFor } = setUp();
    const prompt = text(2100, 1);
    const failing = one({ prompt, maxTokens: 100 });
    while (failing.generated < 70) step();
    const batch = scheduler.next()!;
    model.run(batch);
    scheduler.fail(batch);
    scheduler.check();
    expect(readGauges(cache.slots!.gauges)).toMatchObject({ held: 0, cached: 0 });
    expect(computedFor(prompt).computed).toBe(prompt.length);
  });

  test("a beginning that differs, or another salt, is never a hit", () => {
    const { one, run, computedFor } = setUp();
    const prompt = text(500, 1);
    computedFor(prompt);
    expect(computedFor([7, ...prompt.slice(1)]).computed).toBe(500);
    const other = one({ prompt, salt: "another", maxTokens: 1 });
    run();
    expect(other.cachedTokens).toBe(0);
  });
});

describe("layers with a window", () => {
  const windowed = { groups: [{ blocks: 400 }, { blocks: 40, window: 100 }] };

  test("give back blocks that no token sees any more", () => {
    const { one, step, cache } = setUp({ layout: windowed, tokenBudget: 64 });
    const sequence = one({ prompt: text(3000, 1), maxTokens: 300 });
    let most = 0;
    while (sequence.state !== "finished") {
      step();
      most = Math.max(most, readGauges(cache.pools[1]!.gauges).held);
    }
    expect(output(sequence)).toEqual(expectedTokens(text(3000, 1), 300));
    // The window, and the tokens of a step.
    expect(most).toBeLessThanOrEqual(Math.ceil((100 + 64) / 32) + 2);
  });

  test("a prefix is hit as far as the blocks of its window are there", () => {
    const { computedFor } = setUp({ layout: windowed, tokenBudget: 64 });
    const { sequence } = computedFor(text(3000, 1), 40);
    const { computed } = computedFor([...sequence.tokens(), ...text(30, 2)]);
    expect(computed).toBeLessThanOrEqual(30 + 1 + 32);
    // The blocks at its beginning were taken for others.
    expect(computedFor([...text(600, 1), ...text(30, 3)]).computed).toBe(630);
  });

  test("a prompt longer than all blocks of the window is computed", () => {
    const { computedFor } = setUp({
      layout: { groups: [{ blocks: 400 }, { blocks: 8, window: 100 }] },
    });
    expect(computedFor(text(3000, 1), 50).computed).toBe(3000);
  });
});
