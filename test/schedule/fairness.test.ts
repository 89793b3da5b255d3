// What one client's prompts cost another: which steps compute them, and how long those steps may be.
import { describe, expect, test } from "bun:test";
import type { Batch } from "../../src/schedule/scheduler.ts";
import { StepSizes } from "../../src/schedule/step-size.ts";
import { expectedTokens } from "../support/block-model.ts";
import { output, range, setUpScheduler } from "../support/scheduler.ts";

const setUp: typeof setUpScheduler = (options) => setUpScheduler({ blocks: 400, ...options });

/** The tokens of each sequence in a step. */
const tokens = (batch: Batch | undefined) =>
  Object.fromEntries(batch!.rows.map(({ sequence, count }) => [sequence.id, count]));

describe("a short prompt beside a long one of another client", () => {
  test("of its level is computed in the next step, and the long one gets little of that", () => {
    for (const [size, beside] of [
      [128, undefined],
      [512, 64],
    ] as const) {
      const { one, step } = setUp({ tokenBudget: 512, sizes: { plain: size, scored: size } });
      const long = one({ prompt: range(8000), client: "a" });
      for (let i = 0; i < 10; i++) expect(tokens(step())).toEqual({ [long.id]: size });
      const short = one({ prompt: range(4, 9000), client: "b", maxTokens: 1 });
      const another = one({ prompt: range(4, 9100), client: "c", maxTokens: 1 });
      const rest = beside && { [long.id]: beside - 4 };
      expect(tokens(step())).toEqual({ [short.id]: 4, [another.id]: 4, ...rest });
      expect(tokens(step())).toEqual({ [long.id]: size });
    }
  });

  test("is computed in the next step even when the long one has run for minutes at a lower level", () => {
    const { one, step, clock } = setUp();
    one({ prompt: range(10_000 - 1), client: "a", priority: "LOW" });
    for (let i = 0; i < 100; i++) {
      step();
      clock.ms += 1000;
    }
    const short = one({ prompt: range(4, 9000), client: "b", maxTokens: 1 });
    step();
    expect(short.finished).toBe("length");
  });

  test("and behind a hundred more that have waited for minutes, is computed in the next step", () => {
    const { one, step, clock } = setUp();
    for (let i = 0; i < 100; i++) one({ prompt: range(1000, i), client: "a", maxTokens: 1 });
    for (let i = 0; i < 200; i++) {
      step();
      clock.ms += 1000;
    }
    const short = one({ prompt: range(4, 9000), client: "b", maxTokens: 1 });
    step();
    expect(short.finished).toBe("length");
  });
});

describe("clients of one level", () => {
  test("are served as many tokens, however many requests each has", () => {
    const { one, step } = setUp();
    for (let i = 0; i < 20; i++) one({ prompt: range(500, i), client: "many", maxTokens: 1 });
    for (let i = 0; i < 4; i++) one({ prompt: range(500, 90 + i), client: "few", maxTokens: 1 });
    const served = { many: 0, few: 0 };
    for (let i = 0; i < 30; i++) {
      for (const { sequence, count } of step()!.rows) {
        served[sequence.flow.client.name as "many" | "few"] += count;
      }
      expect(Math.abs(served.many - served.few)).toBeLessThanOrEqual(64);
    }
  });

  test("have their answers counted too", () => {
    const { one, step } = setUp({ maxBatch: 4 });
    for (let i = 0; i < 3; i++) one({ prompt: range(5, i), client: "streams", maxTokens: 100 });
    step();
    for (let i = 0; i < 50; i++) step();
    const [stream, prompt] = [
      one({ prompt: range(100, 50), client: "streams" }),
      one({ prompt: range(100, 500), client: "prompts" }),
    ];
    step();
    expect([stream.state, prompt.state]).toEqual(["waiting", "running"]);
  });

  test("with many long prompts all finish, and with what each would have had alone", () => {
    const { one, run, scheduler } = setUp({ blocks: 40, maxBatch: 4 });
    const sequences = range(12).map((i) =>
      one({ prompt: range(300 + i, i * 7), client: `client ${i % 3}`, maxTokens: 30 }),
    );
    run();
    expect(scheduler.preemptions).toBeGreaterThan(0);
    for (const [i, sequence] of sequences.entries()) {
      expect(output(sequence)).toEqual(expectedTokens(range(300 + i, i * 7), 30));
    }
  });

  test("with one client alone are first come, first served, and share a step whole", () => {
    const { one, step } = setUp({ sizes: { plain: 64, scored: 64 } });
    const all = range(3).map((i) => one({ prompt: range(30, i * 100) }));
    expect(tokens(step())).toEqual({ [all[0]!.id]: 30, [all[1]!.id]: 30, [all[2]!.id]: 4 });
  });
});

describe("a client that fills the batch", () => {
  test("gives up a place for another of its level, and goes on later as if nothing had been", () => {
    const { one, step, run, scheduler } = setUp({ maxBatch: 4 });
    const many = range(10).map((i) => one({ prompt: range(40, i), client: "a", maxTokens: 50 }));
    for (let i = 0; i < 20; i++) step();
    const others = range(4).map((i) => one({ prompt: range(4, 90 + i), client: "b" }));
    step();
    expect(others.map(({ state }) => state)).toEqual(["running", "waiting", "waiting", "waiting"]);
    expect(scheduler.preemptions).toBe(1);
    run();
    for (const [i, each] of many.entries()) {
      expect(output(each)).toEqual(expectedTokens(range(40, i), 50));
    }
  });

  test("gives up none for one of its own, nor for a client that was served more", () => {
    const { one, step, scheduler } = setUp({ maxBatch: 4 });
    one({ prompt: range(500, 900), client: "b", maxTokens: 500 });
    for (let i = 0; i < 12; i++) step();
    for (let i = 0; i < 5; i++) one({ prompt: range(8, i), client: "a", maxTokens: 50 });
    for (let i = 0; i < 5; i++) step();
    const [own, other] = ["a", "b"].map((client) => one({ prompt: range(4, 70), client }));
    step();
    expect([own!.state, other!.state, scheduler.preemptions]).toEqual(["waiting", "waiting", 0]);
  });
});

describe("a lower level", () => {
  test("waits while a higher one has prompts, and has its share after 20 seconds", () => {
    const { one, step, clock } = setUp();
    const low = one({ prompt: range(1000), client: "low", priority: "LOW" });
    const starts: number[] = [];
    for (; low.generated === 0 && clock.ms < 200_000; clock.ms += 100) {
      one({ prompt: range(64, clock.ms), client: "high", priority: "HIGH", maxTokens: 1 });
      const batch = step()!;
      if (batch.rows.some(({ sequence }) => sequence === low)) starts.push(clock.ms);
    }
    expect(starts[0]).toBe(20_000);
    expect(low.generated).toBe(1);
  });

  test("that has risen to a level is not preempted for that level's requests", () => {
    const { one, step, clock } = setUp({ maxBatch: 1 });
    const low = one({ prompt: range(5, 100), client: "low", maxTokens: 9, priority: "LOW" });
    while (low.generated < 9 && clock.ms < 60_000) {
      one({ prompt: range(5, 200), client: "high", maxTokens: 10, priority: "HIGH" });
      for (let i = 0; i < 10; i++) step();
      clock.ms += 1000;
    }
    expect(clock.ms).toBeWithin(20_000, 23_000);
    expect(low.preemptions).toBe(0);
  });
});

describe("the size of steps", () => {
  /** A device that takes so long for a prompt token. */
  const longest = (msPerToken: { plain: number; scored: number }, scored: boolean) => {
    const sizes = new StepSizes(512, 250);
    const { one, step, clock } = setUp({ tokenBudget: 512, sizes });
    one({ prompt: range(3000), client: "a", scored });
    const times: number[] = [];
    for (let batch = step(); batch?.prompt.plain || batch?.prompt.scored; batch = step()) {
      const { plain, scored: costly } = batch.prompt;
      const ms = plain * msPerToken.plain + costly * msPerToken.scored;
      sizes.learn(batch.prompt, ms);
      clock.ms += ms;
      times.push(ms);
    }
    return Math.max(...times);
  };

  test("keeps a step short, of a prompt that is scored as well", () => {
    expect(longest({ plain: 1.3, scored: 2.4 }, false)).toBeLessThanOrEqual(250);
    expect(longest({ plain: 1.3, scored: 2.4 }, true)).toBeLessThanOrEqual(250);
  });

  test("of prompts of both kinds is shared between them", () => {
    const { one, step } = setUp({ tokenBudget: 512, sizes: { plain: 200, scored: 40 } });
    const scored = one({ prompt: range(30), scored: true });
    const plain = one({ prompt: range(500, 1000) });
    expect(tokens(step())).toEqual({ [scored.id]: 30, [plain.id]: 50 });
  });
});

describe("a client's waiting requests", () => {
  test("leave as many places free as they take", () => {
    const { submit } = setUp({ maxWaiting: 9 });
    const from = (client: string) => submit({ prompt: range(3), client });
    const taken = (client: string) =>
      range(9).filter(() => typeof from(client) !== "string").length;
    expect(["a", "b", "c", "d"].map(taken)).toEqual([5, 2, 1, 1]);
    expect(submit({ prompt: range(3) })).toBe("queue_full");
  });

  test("leave room for as many tokens as they have, and without a name they may have it all", () => {
    const { submit } = setUp({ maxWaitingTokens: 1000 });
    const from = (client: string | undefined, length: number) => {
      const named = client === undefined ? {} : { client };
      return typeof submit({ prompt: range(length), ...named });
    };
    expect(from("a", 300)).toBe("object");
    expect(from("a", 500)).toBe("string");
    expect(from("a", 200)).toBe("object");
    expect(from("b", 400)).toBe("object");
    expect(from(undefined, 100)).toBe("object");
    expect(from("b", 1)).toBe("string");
  });
});
