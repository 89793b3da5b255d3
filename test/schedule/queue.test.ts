import { describe, expect, test } from "bun:test";
import { FairQueue, type Priority, standing, type Waiting } from "../../src/schedule/queue.ts";

interface Entry extends Waiting<Entry> {
  name: string;
}

/** A queue, and entries of it that are named after their client, level and number. */
function setUp() {
  const queue = new FairQueue<Entry>();
  let order = 0;
  const enter = (client: string, priority: Priority = "NORMAL", seconds = 0): Entry => {
    const flow = queue.enter(client, priority, []);
    const arrivalMs = seconds * 1000;
    const times = { arrivalMs, queuedMs: arrivalMs };
    const name = `${client} ${priority} ${seconds}`;
    return { name, priority, order: order++, flow, level: flow.level, ...times };
  };
  const add = (...args: Parameters<typeof enter>): Entry => {
    const entry = enter(...args);
    queue.add(entry);
    return entry;
  };
  const nextAt = (seconds: number) => queue.next(seconds * 1000, () => false);
  /** The next one is served so many tokens, and leaves. */
  const take = (seconds: number, tokens = 100): string | undefined => {
    const entry = nextAt(seconds);
    if (!entry) return undefined;
    queue.remove(entry);
    queue.serve(entry, seconds * 1000);
    entry.flow.client.served += tokens;
    queue.leave(entry.flow);
    return entry.name;
  };
  const drain = (seconds: number, tokens?: number): string[] => {
    const names: string[] = [];
    for (let name = take(seconds, tokens); name; name = take(seconds, tokens)) names.push(name);
    return names;
  };
  return { queue, enter, add, nextAt, take, drain };
}

test("a standing rises by a tenth of a level a second", () => {
  const { enter } = setUp();
  const request = enter("a", "NORMAL", 100);
  expect([100, 105, 110].map((now) => standing(request, now * 1000))).toEqual([1, 1.5, 2]);
});

describe("one client", () => {
  test("is served by level, and within a level in the order of arrival", () => {
    const { add, drain } = setUp();
    for (const level of ["LOW", "NORMAL", "HIGH"] as const) {
      for (const seconds of [2, 0, 1]) add("a", level, seconds);
    }
    expect(drain(3)).toEqual(
      ["HIGH", "NORMAL", "LOW"].flatMap((level) => [0, 1, 2].map((at) => `a ${level} ${at}`)),
    );
  });

  test("has its LOW request served beside HIGH ones after 20 seconds, and not before", () => {
    const { add, take, nextAt } = setUp();
    add("a", "LOW", 0);
    for (const seconds of [0, 19]) {
      add("a", "HIGH", seconds);
      expect(take(seconds)).toBe(`a HIGH ${seconds}`);
    }
    add("a", "HIGH", 19.5);
    expect(nextAt(19.9)!.name).toBe("a HIGH 19.5");
    expect(nextAt(20)!.name).toBe("a LOW 0");
  });
});

describe("clients of one level", () => {
  test("take turns by the tokens that they were served, whoever sent more", () => {
    const { add, take } = setUp();
    for (let i = 0; i < 5; i++) add("many", "NORMAL", i / 10);
    add("few", "NORMAL", 1);
    expect(take(1, 150)).toBe("many NORMAL 0");
    expect(take(1, 100)).toBe("few NORMAL 1");
    add("few", "NORMAL", 2);
    expect(take(2, 10)).toBe("few NORMAL 2");
    add("few", "NORMAL", 3);
    expect(take(3, 100)).toBe("many NORMAL 0.1");
    expect(take(3, 10)).toBe("few NORMAL 3");
  });

  test("take turns even when one has waited for minutes behind its own requests", () => {
    const { add, take } = setUp();
    for (let i = 0; i < 40; i++) add("many", "NORMAL", 0);
    for (let second = 0; second < 30; second += 3) expect(take(second)).toBe("many NORMAL 0");
    add("few", "NORMAL", 30);
    expect(take(30)).toBe("few NORMAL 30");
  });

  test("earn nothing by being idle, nor by returning", () => {
    const { add, nextAt, take } = setUp();
    add("a");
    add("a");
    take(1, 5000);
    // It was idle for as long as the other was served.
    expect(add("b").flow.client.served).toBe(5000);
    expect(take(2, 100)).toStartWith("b");
    // It leaves and returns, and was served all the same.
    expect(add("b").flow.client.served).toBe(5100);
    expect(nextAt(3)!.flow.client.name).toBe("a");
  });

  test("with answers alone, and no prompts, earn nothing either", () => {
    const { queue, enter, add, take } = setUp();
    enter("streams");
    for (let i = 0; i < 9; i++) add("many");
    for (let i = 0; i < 8; i++) take(i, 1000);
    const late = add("streams");
    expect(late.flow.client.served).toBe(8000);
    expect(queue.length).toBe(2);
  });

  test("are forgotten when they are idle and no client is behind them", () => {
    const { queue, enter, add, take } = setUp();
    const behind = enter("behind");
    for (let i = 0; i < 100; i++) {
      add(`client ${i}`);
      take(i);
    }
    expect(enter("client 7").flow.client.served).toBeGreaterThan(0);
    behind.flow.client.served = 1e6;
    queue.leave(behind.flow);
    queue.leave(enter("client 7").flow);
    const [first, again] = [enter("client 8"), enter("client 8")];
    expect(first.flow.client).toBe(again.flow.client);
  });
});

describe("levels of several clients", () => {
  test("go first, however many tokens they were served", () => {
    const { add, take } = setUp();
    add("low", "LOW", 0);
    for (let i = 0; i < 5; i++) add("high", "HIGH", 1);
    for (let i = 0; i < 5; i++) expect(take(1, 1000)).toBe("high HIGH 1");
    expect(take(1)).toBe("low LOW 0");
  });

  test("do not starve a lower one: after 20 seconds it is served a part now and then", () => {
    const { add, take } = setUp();
    for (let i = 0; i < 100; i++) add("low", "LOW", 0);
    const served: number[] = [];
    for (let second = 0; second < 40; second += 0.5) {
      add("high", "HIGH", second);
      if (take(second)!.startsWith("low")) served.push(second);
    }
    expect(served[0]).toBe(20);
    // A tenth of 20 seconds is taken back each time.
    expect(served.slice(0, 4)).toEqual([20, 22, 24, 26]);
  });
});

test("those that are passed over are not next, and stay", () => {
  const { queue, add } = setUp();
  const [first, second] = [add("a", "NORMAL", 0), add("a", "NORMAL", 1)];
  expect(queue.next(2000, (entry) => entry === first)).toBe(second);
  expect(queue.next(2000, () => true)).toBeUndefined();
  expect([...queue]).toEqual([first, second]);
});

test("running ones take their turn with the waiting ones", () => {
  const { queue, enter, add } = setUp();
  const running = enter("a");
  const waiting = add("b");
  running.flow.client.served = 10;
  expect(queue.next(0, () => false, [running])).toBe(waiting);
  waiting.flow.client.served = 20;
  expect(queue.next(0, () => false, [running])).toBe(running);
});

test("removing says whether it was there", () => {
  const { queue, enter } = setUp();
  const request = enter("a");
  expect(queue.remove(request)).toBe(false);
  queue.add(request);
  expect(queue.length).toBe(1);
  expect(queue.of("a")).toEqual([request]);
  expect(queue.remove(request)).toBe(true);
  expect(queue.next(0, () => false)).toBeUndefined();
});
