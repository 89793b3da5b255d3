import { describe, expect, test } from "bun:test";
import { BLOCK_TOKENS, readGauges } from "../../src/kv/blocks.ts";
import type { Batch } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { expectedTokens } from "../support/block-model.ts";
import { output, range, rows, setUpScheduler as setUp } from "../support/scheduler.ts";

describe("a request", () => {
  test("is computed in one prefill and then a token a step", () => {
    const { one, step, scheduler } = setUp();
    const sequence = one({ prompt: range(40), maxTokens: 3 });
    expect(rows(step())).toEqual([{ id: 0, start: 0, count: 40, samples: 1 }]);
    expect(rows(step())).toEqual([{ id: 0, start: 40, count: 1, samples: 1 }]);
    expect(rows(step())).toEqual([{ id: 0, start: 41, count: 1, samples: 1 }]);
    expect(step()).toBeUndefined();
    expect(output(sequence)).toEqual(expectedTokens(range(40), 3));
    expect(sequence.finished).toBe("length");
    expect(scheduler.idle).toBe(true);
  });

  test("ends at a stop token, but not before its least number of tokens", () => {
    const prompt = range(10);
    const expected = expectedTokens(prompt, 6);
    const context = setUp();
    const first = context.one({ prompt, maxTokens: 6, stop: [expected[1]!, expected[4]!] });
    const stop = [expected[1]!, expected[4]!];
    const second = context.one({ prompt, maxTokens: 6, minTokens: 3, stop });
    context.run();
    expect(output(first)).toEqual(expected.slice(0, 2));
    expect(output(second)).toEqual(expected.slice(0, 5));
    expect([first.finished, second.finished]).toEqual(["stop", "stop"]);
  });

  test("takes blocks as it grows, never for its maximum", () => {
    const { one, step, pool } = setUp();
    one({ prompt: range(30), maxTokens: 1000 });
    const held = [1, 1, 1, 2].map((expected) => {
      step();
      return [readGauges(pool.gauges).held, expected];
    });
    expect(held.every(([found, expected]) => found === expected)).toBe(true);
  });

  test("that can never fit is refused at once, and one that fits alone is not", () => {
    const { submit, run } = setUp({ blocks: 4 });
    expect(submit({ prompt: range(4 * BLOCK_TOKENS) })).toBe("too_long");
    expect(submit({ prompt: range(4 * BLOCK_TOKENS - 1), maxTokens: 100 })).toBeArray();
    run();
  });

  test("that outgrows the pool alone ends by its length", () => {
    const { one, run } = setUp({ blocks: 2 });
    const sequence = one({ prompt: range(10), maxTokens: 1000 });
    run();
    expect(sequence.finished).toBe("length");
    expect(output(sequence)).toEqual(expectedTokens(range(10), 54));
  });

  test("longer than the model's context is refused, and one that reaches it ends there", () => {
    const { one, submit, run } = setUp({ maxLength: 50 });
    expect(submit({ prompt: range(50) })).toBe("too_long");
    const sequence = one({ prompt: range(45), maxTokens: 100 });
    run();
    expect([sequence.length, sequence.finished]).toEqual([50, "length"]);
  });

  test("whose logits are no numbers ends with an error, and its blocks are found by nobody", () => {
    const { one, scheduler, pool, model } = setUp({ tokenBudget: 128 });
    const [bad, good] = [one({ prompt: range(40) }), one({ prompt: range(40, 500) })];
    const batch = scheduler.next()!;
    const [, token] = model.run(batch);
    const outcomes = scheduler.commit(batch, [undefined, token]);
    expect(outcomes.map(({ finished }) => finished)).toEqual(["error", undefined]);
    expect(bad.finished).toBe("error");
    expect(pool.find(bad.key(0))).toBeUndefined();
    expect(pool.find(good.key(0))).toBeNumber();
    scheduler.check();
  });
});

describe("a batch", () => {
  test("advances all that run with one row each", () => {
    const { one, step, model } = setUp();
    const sequences = range(5).map((i) => one({ prompt: range(5 + i, i * 100), maxTokens: 10 }));
    for (let i = 0; i < 10; i++) step();
    expect(model.rowsPerStep).toEqual(Array(10).fill(5));
    for (const [i, sequence] of sequences.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(range(5 + i, i * 100), 10));
    }
  });

  test("takes in whoever comes at the next step, and lets go of whoever ends", () => {
    const { one, step } = setUp();
    one({ prompt: range(3), maxTokens: 2 });
    expect(rows(step())?.length).toBe(1);
    one({ prompt: range(3, 50), maxTokens: 3 });
    expect(rows(step())?.length).toBe(2);
    expect(rows(step())).toEqual([{ id: 1, start: 3, count: 1, samples: 1 }]);
  });

  test("has no more rows than it may", () => {
    const { one, run, model } = setUp({ maxBatch: 3 });
    for (let i = 0; i < 10; i++) one({ prompt: range(4, i * 10), maxTokens: 4 });
    run();
    expect(Math.max(...model.rowsPerStep)).toBe(3);
  });

  test("computes a long prompt in chunks, and everybody else gets a token at every step", () => {
    const { one, step } = setUp({ blocks: 300, tokenBudget: 64 });
    const streams = range(4).map((i) => one({ prompt: range(5, i * 100), maxTokens: 1000 }));
    step();
    const long = one({ prompt: range(8000), maxTokens: 2 });
    let steps = 0;
    while (long.generated === 0) {
      const before = streams.map(({ generated }) => generated);
      const batch = step()!;
      expect(batch.rows.reduce((sum, { count }) => sum + count, 0)).toBeLessThanOrEqual(64);
      expect(streams.map(({ generated }) => generated)).toEqual(before.map((n) => n + 1));
      steps += 1;
    }
    expect(steps).toBe(Math.ceil(8000 / 60));
    expect(output(long)).toEqual(expectedTokens(range(8000), 1));
  });

  test("has smaller chunks far into a prompt, where somebody waits for it", () => {
    const chunks = (streams: number) => {
      const { one, step } = setUp({ blocks: 300, tokenBudget: 641, lookback: 1000 });
      for (const i of range(streams)) one({ prompt: range(5, i * 100), maxTokens: 1000 });
      step();
      const long = one({ prompt: range(6000, 7), maxTokens: 2 });
      const found: { start: number; count: number }[] = [];
      while (long.generated === 0) {
        found.push(...step()!.rows.filter(({ sequence }) => sequence === long));
      }
      return found;
    };
    expect(chunks(0).map(({ count }) => count)).toEqual([...Array(9).fill(641), 6000 - 9 * 641]);
    const beside = chunks(1);
    expect(beside.reduce((sum, { count }) => sum + count, 0)).toBe(6000);
    for (const { start, count } of beside.slice(0, -1)) {
      expect(count).toBe(Math.floor(640 / (1 + start / 1000)));
    }
    expect(beside.at(-2)!.count).toBeLessThan(130);
  });

  test("has a block of a prompt at least, however far into it", () => {
    const { one, step } = setUp({ blocks: 300, tokenBudget: 64, lookback: 10 });
    one({ prompt: range(5), maxTokens: 1000 });
    step();
    const long = one({ prompt: range(3000, 7), maxTokens: 2 });
    while (long.generated === 0) {
      const { count, start } = step()!.rows.find(({ sequence }) => sequence === long)!;
      expect(count).toBe(start === 0 ? 63 : Math.min(32, 3000 - start));
    }
  });

  describe("with a limit beside streams", () => {
    /** The tokens of the steps until all prompts of 1,000 tokens are computed that come while these streams run. */
    const sizes = (
      streams: number,
      prompts: number,
      options: { besideTokens: number; tokenBudget?: number },
    ) => {
      const { one, step } = setUp({ blocks: 300, maxBatch: 16, tokenBudget: 640, ...options });
      for (const i of range(streams)) one({ prompt: range(2, i * 10), maxTokens: 1000 });
      if (streams > 0) step();
      const asked = range(prompts).map((i) =>
        one({ prompt: range(1000, 2000 + i), maxTokens: 99 }),
      );
      const found: number[] = [];
      while (asked.some(({ generated }) => generated === 0)) {
        found.push(step()!.rows.reduce((sum, { count }) => sum + count, 0));
      }
      return found;
    };

    test("has no more tokens than that, those of the streams among them", () => {
      expect(sizes(12, 1, { besideTokens: 128 })).toEqual([
        ...Array(8).fill(128),
        1000 - 8 * 116 + 12,
      ]);
    });

    test("has the whole budget where no stream runs", () => {
      expect(sizes(0, 1, { besideTokens: 128 })).toEqual([640, 360]);
    });

    test("has it where fewer streams run for each prompt that waits or is computed, and no longer", () => {
      // The first of two prompts is complete in the second step, and a stream since.
      const [first, second, ...others] = sizes(12, 2, { besideTokens: 128 });
      expect([first, second]).toEqual([640, 640]);
      expect(others.slice(0, -1)).toEqual(Array(others.length - 1).fill(128));
      expect(others.length).toBe(Math.ceil((2000 - 2 * 628) / 115));
    });

    test("has whole chunks far into one of several prompts", () => {
      const counts = (prompts: number, besideTokens: number | undefined) => {
        const { one, step } = setUp({ blocks: 300, tokenBudget: 641, lookback: 100, besideTokens });
        one({ prompt: range(5), maxTokens: 1000 });
        step();
        const [long] = range(prompts).map((i) => one({ prompt: range(2000, 7 + i), maxTokens: 9 }));
        const found: number[] = [];
        while (long!.generated === 0) {
          const own = step()!.rows.filter(({ sequence }) => sequence === long);
          found.push(...own.map(({ count }) => count));
        }
        return found;
      };
      expect(counts(2, 128)).toEqual([640, 640, 640, 80]);
      expect(counts(1, 128).slice(0, 3)).toEqual([640, 86, 77]);
      expect(counts(2, undefined).slice(0, 3)).toEqual([640, 86, 77]);
    });

    test("has a block of a prompt, however many streams run", () => {
      const blocks = Math.floor(1000 / BLOCK_TOKENS);
      const rest = 1000 - blocks * BLOCK_TOKENS;
      const expected = [...Array(blocks).fill(15 + BLOCK_TOKENS), 15 + rest];
      expect(sizes(15, 1, { besideTokens: 16 })).toEqual(expected);
    });

    test("has no more than the budget where that is smaller", () => {
      for (const [besideTokens, tokenBudget] of [
        [128, 64],
        [8, 24],
      ] as const) {
        const found = sizes(12, 1, { besideTokens, tokenBudget });
        expect(new Set(found.slice(0, -1))).toEqual(new Set([tokenBudget]));
      }
    });
  });

  test("that fails ends its sequences and no others", () => {
    const { one, scheduler, run } = setUp({ maxBatch: 2 });
    const [a, b, c] = range(3).map((i) => one({ prompt: range(40, i * 100) })) as [
      Sequence,
      Sequence,
      Sequence,
    ];
    const outcomes = scheduler.fail(scheduler.next()!);
    expect(outcomes.map(({ sequence, finished }) => [sequence.id, finished])).toEqual([
      [a.id, "error"],
      [b.id, "error"],
    ]);
    scheduler.check();
    run();
    expect(output(c)).toEqual(expectedTokens(range(40, 200), 5));
  });
});

describe("the prefix cache", () => {
  test("gives a second prompt of 1,000 tokens 992 of them, and computes the rest only", () => {
    const { one, run, model } = setUp({ tokenBudget: 512 });
    one({ prompt: range(1000), maxTokens: 1 });
    run();
    expect(model.computed).toBe(1000);
    const second = one({ prompt: range(1000), maxTokens: 1 });
    run();
    expect(second.cachedTokens).toBe(992);
    expect(model.computed).toBe(1008);
    expect(output(second)).toEqual(expectedTokens(range(1000), 1));
  });

  test("computes the last token even of a prompt that is cached whole", () => {
    const { one, run } = setUp();
    one({ prompt: range(64) });
    run();
    const second = one({ prompt: range(64) });
    run();
    expect(second.cachedTokens).toBe(32);
    expect(output(second)).toEqual(expectedTokens(range(64), 5));
  });

  test("shares blocks with a request that still runs", () => {
    const { one, step, pool } = setUp();
    const first = one({ prompt: range(64), maxTokens: 100 });
    step();
    const second = one({ prompt: [...range(32), ...range(32, 500)], maxTokens: 100 });
    step();
    expect(second.held.tables[0]![0]).toBe(first.held.tables[0]![0]!);
    expect(pool.references(first.held.tables[0]![0]!)).toBe(2);
    expect(second.held.tables[0]![1]).not.toBe(first.held.tables[0]![1]!);
  });

  test("knows generated tokens too: the next turn of a chat finds the answer", () => {
    const { one, run } = setUp();
    const first = one({ prompt: range(20), maxTokens: 80 });
    run();
    const turn = [...first.tokens(), ...range(10, 700)];
    const second = one({ prompt: turn });
    run();
    // The last token of an answer is never computed, only given.
    expect(second.cachedTokens).toBe(96);
    expect(output(second)).toEqual(expectedTokens(turn, 5));
  });

  test("never takes equal blocks after other beginnings, ids equal modulo 256, or another salt", () => {
    const { one, run } = setUp();
    const block = range(32);
    one({ prompt: [...block, ...block, 1], salt: "a" });
    run();
    const others = [
      one({ prompt: [...range(32, 900), ...block, 1], salt: "a" }),
      one({ prompt: [...block.map((id) => id + 256), ...block, 1], salt: "a" }),
      one({ prompt: [...block, ...block, 1], salt: "b" }),
    ];
    run();
    expect(others.map(({ cachedTokens }) => cachedTokens)).toEqual([0, 0, 0]);
  });

  test("evicts the end of a sequence before its beginning", () => {
    const { one, run } = setUp({ blocks: 8, watermark: 0 });
    one({ prompt: range(4 * 32 + 1), maxTokens: 1 });
    run();
    one({ prompt: range(5 * 32, 1000), maxTokens: 1 });
    run();
    const again = one({ prompt: range(4 * 32 + 1), maxTokens: 1 });
    run();
    expect(again.cachedTokens).toBe(3 * 32);
  });
});

describe("forks", () => {
  test("share the prompt's blocks, and copy the last one before they write to it", () => {
    const { submit, step, run, pool, model } = setUp();
    const forks = submit({ prompt: range(40), maxTokens: 6, n: 3 }) as Sequence[];
    expect(rows(step())).toEqual([{ id: 0, start: 0, count: 40, samples: 3 }]);
    expect(pool.references(forks[0]!.held.tables[0]![1]!)).toBe(3);
    const batch = step()!;
    expect(batch.copies).toHaveLength(2);
    expect(pool.references(forks[0]!.held.tables[0]![0]!)).toBe(3);
    expect(new Set(forks.map(({ held }) => held.tables[0]![1])).size).toBe(3);
    run();
    expect(model.computed).toBe(40 + 3 * 5);
    for (const [i, fork] of forks.entries()) {
      expect(output(fork)).toEqual(expectedTokens(range(40), 6, i));
      expect(fork.cachedTokens).toBe(0);
    }
  });

  test("that find no place in the batch wait, and find the prompt in the cache", () => {
    const { submit, run, model } = setUp({ maxBatch: 2 });
    const forks = submit({ prompt: range(40), maxTokens: 3, n: 5 }) as Sequence[];
    run();
    expect(Math.max(...model.rowsPerStep)).toBe(2);
    expect(forks.map(({ generated }) => generated)).toEqual([3, 3, 3, 3, 3]);
    expect(forks.at(-1)!.cachedTokens).toBe(32);
  });

  test("go on when the first of them is aborted, before or after the prompt is computed", () => {
    for (const steps of [0, 1, 2]) {
      const { submit, step, run, scheduler } = setUp();
      const [first, second, third] = submit({ prompt: range(40), n: 3 }) as [
        Sequence,
        Sequence,
        Sequence,
      ];
      for (let i = 0; i < steps; i++) step();
      scheduler.abort(first);
      scheduler.check();
      scheduler.abort(third);
      run();
      const ends = [first, second, third].map(({ finished }) => finished);
      expect(ends).toEqual(["abort", "length", "abort"]);
      expect(second.generated).toBe(5);
    }
  });
});

describe("preemption", () => {
  test("takes from the lowest standing, the newest first, and changes nobody's output", () => {
    const context = setUp({ blocks: 6, watermark: 0 });
    const { one, run, scheduler } = context;
    const high = one({ prompt: range(40), maxTokens: 60, priority: "HIGH" });
    const low = one({ prompt: range(40, 100), maxTokens: 60, priority: "LOW" });
    const newer = one({ prompt: range(40, 200), maxTokens: 60, priority: "LOW" });
    run();
    expect(scheduler.preemptions).toBeGreaterThan(0);
    expect(high.preemptions).toBe(0);
    expect(newer.preemptions).toBeGreaterThanOrEqual(low.preemptions);
    expect(output(high)).toEqual(expectedTokens(range(40), 60));
    expect(output(low)).toEqual(expectedTokens(range(40, 100), 60));
    expect(output(newer)).toEqual(expectedTokens(range(40, 200), 60));
  });

  test("admits nobody in the same step", () => {
    const { one, step, clock } = setUp({ blocks: 4, watermark: 0 });
    clock.ms = 2;
    one({ prompt: range(60), maxTokens: 40 });
    one({ prompt: range(60, 100), maxTokens: 40 });
    step();
    step();
    // Of the same priority, but longer there than either.
    clock.ms = 1;
    const small = one({ prompt: range(2, 500), maxTokens: 40 });
    let preempted: Batch | undefined;
    while (!preempted?.preempted) {
      expect(small.state).toBe("waiting");
      preempted = step();
    }
    expect(small.state).toBe("waiting");
    step();
    expect(small.state).toBe("running");
  });

  test("spares who was preempted too often, where another can be", () => {
    const often = setUp({ blocks: 8, watermark: 0, maxPreemptions: 1 });
    const sequences = range(6).map((i) => often.one({ prompt: range(40, i * 50), maxTokens: 90 }));
    often.run();
    expect(often.scheduler.preemptions).toBeGreaterThan(1);
    expect(Math.max(...sequences.map(({ preemptions }) => preemptions))).toBeLessThan(6);
    for (const [i, sequence] of sequences.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(range(40, i * 50), 90));
    }
  });

  test("keeps a pool going that is asked for ten times what it has", () => {
    const { one, run, scheduler, pool } = setUp({ blocks: 12, maxBatch: 8 });
    const sequences = range(30).map((i) => one({ prompt: range(60 + i, i * 7), maxTokens: 70 }));
    run();
    expect(scheduler.preemptions).toBeGreaterThan(0);
    for (const [i, sequence] of sequences.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(range(60 + i, i * 7), 70));
    }
    expect(readGauges(pool.gauges).held).toBe(0);
  });
});

describe("a step launched before the last is read", () => {
  test("goes on with the token that the device has", () => {
    const { one, scheduler, model } = setUp();
    const sequence = one({ prompt: range(10), maxTokens: 3 });
    const first = scheduler.next()!;
    const firstTokens = model.run(first);
    const second = scheduler.next()!;
    expect(rows(second)).toEqual([{ id: 0, start: 10, count: 1, samples: 1 }]);
    const secondTokens = model.run(second);
    scheduler.commit(first, firstTokens);
    scheduler.commit(second, secondTokens);
    scheduler.check();
    expect(output(sequence)).toEqual(expectedTokens(range(10), 2));
  });

  test("is not launched for a token that would be one too many", () => {
    const { one, scheduler, model } = setUp();
    one({ prompt: range(10), maxTokens: 1 });
    const batch = scheduler.next()!;
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(batch, model.run(batch));
    expect(scheduler.idle).toBe(true);
  });

  test("is not made while blocks would have to be taken from a step under way", () => {
    const { one, scheduler, model } = setUp({ blocks: 4, watermark: 0, tokenBudget: 128 });
    one({ prompt: range(63), maxTokens: 40 });
    one({ prompt: range(63, 100), maxTokens: 40 });
    const first = scheduler.next()!;
    const tokens = model.run(first);
    const second = scheduler.next()!;
    const more = model.run(second);
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(first, tokens);
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(second, more);
    expect(scheduler.next()?.preempted).toBe(1);
  });

  test("of a sequence that has just ended is ignored when it lands", () => {
    const prompt = range(10);
    const { one, scheduler, model, pool } = setUp();
    const sequence = one({ prompt, maxTokens: 9, stop: expectedTokens(prompt, 1) });
    const first = scheduler.next()!;
    const tokens = model.run(first);
    const second = scheduler.next()!;
    const late = model.run(second);
    expect(scheduler.commit(first, tokens).map(({ finished }) => finished)).toEqual(["stop"]);
    expect(readGauges(pool.gauges).held).toBe(1);
    scheduler.check([second]);
    expect(scheduler.commit(second, late)).toEqual([]);
    expect(readGauges(pool.gauges).held).toBe(0);
    expect(output(sequence)).toEqual(expectedTokens(prompt, 1));
  });
});

describe("aging", () => {
  test("starts a LOW request within the bound, however many HIGH ones keep coming", () => {
    const { one, step, clock } = setUp({ maxBatch: 1, blocks: 8 });
    // One request a second is served, and one a second comes: the queue of HIGH never empties.
    for (let i = 0; i < 3; i++) one({ prompt: range(5, i), maxTokens: 10, priority: "HIGH" });
    const low = one({ prompt: range(5, 100), maxTokens: 10, priority: "LOW" });
    while (low.state === "waiting") {
      one({ prompt: range(5, 200), maxTokens: 10, priority: "HIGH" });
      for (let i = 0; i < 10; i++) step();
      clock.ms += 1000;
    }
    // It stands above whoever comes 20 s after it; three more were there before it, and one ran.
    expect(clock.ms).toBeGreaterThanOrEqual(20_000);
    expect(clock.ms).toBeLessThanOrEqual((20 + 4) * 1000);
  });

  test("serves a level in the order of arrival", () => {
    const { one, run, finished, clock } = setUp({ maxBatch: 2 });
    for (let i = 0; i < 10; i++) {
      one({ prompt: range(3, i * 10), maxTokens: 2 });
      clock.ms += 7;
    }
    run();
    expect(finished.map(({ id }) => id)).toEqual(range(10));
  });
});

describe("the queue", () => {
  test("is bounded by requests", () => {
    const { submit } = setUp({ maxWaiting: 3 });
    const answers = range(5).map((i) => submit({ prompt: range(3, i) }));
    const types = answers.map((answer) => typeof answer).join(" ");
    expect(types).toBe("object object object string string");
    expect(answers[3]).toBe("queue_full");
  });

  test("is bounded by tokens, but takes one request of any length", () => {
    const { submit } = setUp({ maxWaitingTokens: 100 });
    expect(submit({ prompt: range(500) })).toBeArray();
    expect(submit({ prompt: range(10) })).toBe("queue_full");
  });

  test("admits nobody below the watermark, while somebody runs", () => {
    const { one, step } = setUp({ blocks: 4, watermark: 2 });
    one({ prompt: range(33), maxTokens: 50 });
    const second = one({ prompt: range(20, 100), maxTokens: 2 });
    step();
    step();
    expect(second.state).toBe("waiting");
  });
});

describe("an abort", () => {
  test("while it waits, in prefill or while it decodes frees everything at once", () => {
    const { one, step, scheduler, pool } = setUp({ tokenBudget: 16 });
    const [decoding, prefilling, waiting] = [
      one({ prompt: range(5), maxTokens: 100 }),
      one({ prompt: range(100, 100), maxTokens: 100 }),
      one({ prompt: range(50, 300), maxTokens: 100 }),
    ];
    step();
    step();
    const states = [decoding, prefilling, waiting].map(({ state }) => state);
    expect(states).toEqual(["running", "running", "waiting"]);
    for (const sequence of [waiting, prefilling, decoding]) {
      scheduler.abort(sequence);
      scheduler.abort(sequence);
      scheduler.check();
    }
    expect(scheduler.idle).toBe(true);
    expect(readGauges(pool.gauges).held).toBe(0);
  });

  test("of a sequence in a step under way keeps its blocks until the step has landed", () => {
    const { one, scheduler, pool, model } = setUp();
    const sequence = one({ prompt: range(40) });
    const batch = scheduler.next()!;
    const tokens = model.run(batch);
    scheduler.abort(sequence);
    expect(readGauges(pool.gauges).held).toBe(2);
    scheduler.check([batch]);
    expect(scheduler.commit(batch, tokens)).toEqual([]);
    expect(readGauges(pool.gauges).held).toBe(0);
    // What it computed stays findable.
    expect(pool.find(sequence.key(0))).toBeNumber();
    scheduler.check();
  });
});

test("a block that is corrupted on purpose is noticed by these tests", () => {
  const { one, step, run, model } = setUp();
  const sequence = one({ prompt: range(40), maxTokens: 5 });
  step();
  model.corrupt(sequence.held.tables[0]![0]!);
  run();
  expect(output(sequence)).not.toEqual(expectedTokens(range(40), 5));
});

describe("a higher priority", () => {
  test("takes the place of a lower one at once, which goes on later as if nothing had been", () => {
    const { one, step, run } = setUp({ maxBatch: 2 });
    const lows = [0, 1].map((i) =>
      one({ prompt: range(40, i * 100), maxTokens: 20, priority: "LOW" }),
    );
    for (let i = 0; i < 5; i++) step();
    const high = one({ prompt: range(10, 500), priority: "HIGH" });
    const batch = step();
    expect(rows(batch)!.map(({ id }) => id)).toEqual([lows[0]!.id, high.id]);
    expect(batch!.preempted).toBe(1);
    expect([lows[0]!.preemptions, lows[1]!.preemptions]).toEqual([0, 1]);
    run();
    lows.forEach((low, i) => {
      expect(output(low)).toEqual(expectedTokens(range(40, i * 100), 20));
    });
    expect(output(high)).toEqual(expectedTokens(range(10, 500), 5));
  });

  test("takes blocks too, and no more than it needs", () => {
    const { one, step, run } = setUp({ blocks: 6, watermark: 0 });
    const lows = [0, 1, 2].map((i) =>
      one({ prompt: range(40, i * 100), maxTokens: 10, priority: "LOW" }),
    );
    for (let i = 0; i < 3; i++) step();
    const high = one({ prompt: range(40, 500), priority: "HIGH" });
    step();
    expect(high.state).toBe("running");
    expect(lows.map(({ preemptions }) => preemptions)).toEqual([0, 0, 1]);
    run();
    lows.forEach((low, i) => {
      expect(output(low)).toEqual(expectedTokens(range(40, i * 100), 10));
    });
  });

  test("gives way to one that has waited for long enough", () => {
    const { one, step, clock } = setUp({ maxBatch: 1 });
    const low = one({ prompt: range(40), maxTokens: 20, priority: "LOW" });
    step();
    clock.ms = 20_001;
    const high = one({ prompt: range(10, 500), priority: "HIGH" });
    step();
    expect([low.state, high.state]).toEqual(["running", "waiting"]);
    expect(low.preemptions).toBe(0);
  });

  test("does not take the place of its equals, nor of one that gave way too often", () => {
    const { one, step } = setUp({ maxBatch: 1, maxPreemptions: 1 });
    const low = one({ prompt: range(40), maxTokens: 50, priority: "LOW" });
    step();
    const first = one({ prompt: range(10, 500), maxTokens: 2, priority: "NORMAL" });
    const second = one({ prompt: range(10, 600), priority: "NORMAL" });
    step();
    expect([first.state, second.state]).toEqual(["running", "waiting"]);
    while (low.state !== "running") step();
    const third = one({ prompt: range(10, 700), priority: "HIGH" });
    step();
    expect([low.state, third.state]).toEqual(["running", "waiting"]);
  });

  test("has its prompt computed before the rest of a lower one's", () => {
    const { one, step } = setUp({ tokenBudget: 32 });
    const low = one({ prompt: range(200), priority: "LOW" });
    step();
    const high = one({ prompt: range(20, 500), priority: "HIGH" });
    expect(rows(step())!.map(({ id, count }) => [id, count])).toEqual([
      [high.id, 20],
      [low.id, 12],
    ]);
  });

  test("waits for the step under way, whose blocks are in use", () => {
    const { one, scheduler, model } = setUp({ maxBatch: 1 });
    one({ prompt: range(40), maxTokens: 20, priority: "LOW" });
    const underWay = scheduler.next()!;
    const high = one({ prompt: range(10, 500), priority: "HIGH" });
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(underWay, model.run(underWay));
    expect(rows(scheduler.next())!.map(({ id }) => id)).toEqual([high.id]);
  });
});

describe("with stages, each of which has a step of its own,", () => {
  const drawn = ({ rows: all }: Batch) => all.flatMap(({ samples }) => samples.map(() => 1));
  const idsOf = (batch: Batch | undefined) => batch?.rows.map(({ sequence }) => sequence.id);

  test("decoding sequences are divided among the steps under way", () => {
    const { one, step, scheduler } = setUp({ stages: 2 });
    for (let i = 0; i < 5; i++) one({ prompt: range(4, 10 * i), maxTokens: 20 });
    step();
    const first = scheduler.next()!;
    const second = scheduler.next()!;
    expect([idsOf(first), idsOf(second)]).toEqual([
      [0, 1, 2],
      [3, 4],
    ]);
    // All others wait for their tokens.
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(first, drawn(first));
    const third = scheduler.next()!;
    expect(idsOf(third)).toEqual([0, 1, 2]);
    scheduler.commit(second, drawn(second));
    expect(idsOf(scheduler.next())).toEqual([3, 4]);
  });

  test("they are divided anew when some have ended", () => {
    const { one, step, scheduler } = setUp({ stages: 2 });
    const all = Array.from({ length: 4 }, (_, i) =>
      one({ prompt: range(4, 10 * i), maxTokens: 20 }),
    );
    step();
    const first = scheduler.next()!;
    const second = scheduler.next()!;
    for (const each of all.slice(0, 2)) scheduler.abort(each);
    scheduler.commit(first, drawn(first));
    expect(scheduler.next()).toBeUndefined();
    scheduler.commit(second, drawn(second));
    expect([scheduler.next(), scheduler.next()].map(idsOf)).toEqual([[2], [3]]);
  });

  test("one of them is preempted when there is no block for all, and the others go on", () => {
    const stages = 3;
    const { one, step, scheduler } = setUp({ stages, blocks: 4, watermark: 0, tokenBudget: 128 });
    const prompts = [0, 1, 2].map((i) => range(BLOCK_TOKENS - 1, 100 * i));
    const all = prompts.map((prompt) => one({ prompt, maxTokens: 9 }));
    step();
    expect(scheduler.running).toHaveLength(3);
    // All are about to fill their first block, and there is one more.
    const underWay: Batch[] = [];
    for (let i = 0; i < 12; i++) {
      while (underWay.length < stages) {
        const next = scheduler.next();
        if (!next) break;
        underWay.push(next);
      }
      const first = underWay.shift()!;
      scheduler.commit(first, drawn(first));
    }
    expect(scheduler.preemptions).toBeGreaterThan(0);
    expect(all.map(({ finished }) => finished)).not.toContain("length");
    expect(all.filter(({ generated }) => generated > 2).length).toBe(2);
  });

  test("chunks of a prompt follow each other", () => {
    const { one, scheduler } = setUp({ stages: 2, tokenBudget: 32 });
    one({ prompt: range(80), maxTokens: 20 });
    const steps = [scheduler.next()!, scheduler.next()!];
    expect(steps.flatMap((batch) => rows(batch))).toEqual([
      { id: 0, start: 0, count: 32, samples: 0 },
      { id: 0, start: 32, count: 32, samples: 0 },
    ]);
  });
});
