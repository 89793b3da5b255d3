import { expect, test } from "bun:test";
import { type Bench, type ModeName, measure, modes } from "../../src/bench/modes.ts";
import { longText } from "../../src/bench/prompts.ts";
import type { BenchRequest, Sample, Target } from "../../src/bench/target.ts";

type Sent = BenchRequest & { underWay: number };

/** Answers in `ms`, and keeps what it was asked. */
function fakeTarget(ms: (request: BenchRequest, underWay: number) => number = () => 0) {
  const sent: Sent[] = [];
  const log: string[] = [];
  let underWay = 0;
  const target: Target = {
    about: { kind: "engine", model: "fake" },
    async send(request, onFirst): Promise<Sample> {
      underWay += 1;
      sent.push({ ...request, underWay });
      log.push(request.priority ?? (request.prompt.includes(longText) ? "long" : "stream"));
      await Bun.sleep(0);
      log.push("begins");
      onFirst?.();
      await Bun.sleep(ms(request, underWay));
      underWay -= 1;
      const { maxTokens: tokens } = request;
      const took = ms(request, underWay + 1) || 1;
      const arrivalsMs = Array.from({ length: tokens }, (_, i) => ((i + 1) * took) / tokens);
      return { startMs: 0, arrivalsMs, endMs: took, promptTokens: 1, cachedTokens: 0, tokens };
    },
    memory: async () => ({ activeBytes: 7, rssBytes: 9 }),
    close: async () => {},
  };
  return { target, sent, log };
}

function benchOf(target: Target, more: Partial<Bench> = {}): Bench {
  const prompts = ["one", "two", "three"];
  return { target, prompts, requests: 5, maxTokens: 6, levels: [1, 4, 8], ...more };
}

const once = { warmup: 0, repeat: 1 };

test("a pass of every mode has as many requests as it says", async () => {
  for (const mode of Object.values(modes)) {
    const { target, sent } = fakeTarget();
    let answered = 0;
    const bench = benchOf(target, { onAnswer: () => (answered += 1) });
    const passes = await mode.pass(bench);
    expect(sent).toHaveLength(mode.count(bench));
    expect(answered).toBe(sent.length);
    expect(passes.flatMap(({ samples }) => samples)).toHaveLength(sent.length);
    expect(mode.verdict(await measure(mode, bench, once))).not.toMatch(/NaN|undefined|Infinity/);
  }
});

test("as many are under way as may be, and no more", async () => {
  const most = async (mode: ModeName, more?: Partial<Bench>) => {
    const { target, sent } = fakeTarget(() => 1);
    await modes[mode].pass(benchOf(target, more));
    return Math.max(...sent.map(({ underWay }) => underWay));
  };
  expect(await most("single")).toBe(1);
  expect(await most("batched")).toBe(5);
  expect(await most("sweep", { levels: [3] })).toBe(3);
  expect(await most("sweep", { levels: [8] })).toBe(8);
});

test("no prompt begins as another did, but for the beginnings that are to be known", async () => {
  for (const mode of ["compare", "sweep", "mixed", "priority"] as const) {
    const { target, sent } = fakeTarget();
    for (let i = 0; i < 3; i++) await modes[mode].pass(benchOf(target));
    const beginnings = new Set(sent.map(({ prompt }) => prompt.slice(0, 14)));
    expect(beginnings.size).toBe(sent.length);
  }
  const { target, sent } = fakeTarget();
  const passes = await modes.prefix.pass(benchOf(target));
  expect(passes.map(({ mode }) => mode)).toEqual(["prefix_cold", "prefix_warm"]);
  const [cold, warm] = [sent.slice(0, 5), sent.slice(5)].map((half) =>
    half.map(({ prompt }) => prompt.slice(0, 1000)),
  );
  expect(new Set(cold).size).toBe(5);
  expect(warm).toEqual(cold!);
});

test("the speedup of compare is that of all at once over one after the other", async () => {
  const { target } = fakeTarget((_, underWay) => (underWay === 1 ? 8 : 9));
  const [single, batched] = await measure(modes.compare, benchOf(target), once);
  expect(single).toMatchObject({ mode: "single", num_requests: 5, total_tokens: 30 });
  expect(single!.speedup).toBeUndefined();
  expect(batched).toMatchObject({ mode: "batched", concurrency: 5, total_tokens: 30 });
  expect(batched!.speedup).toBeCloseTo(batched!.tokens_per_second / single!.tokens_per_second, 3);
  expect(batched!.speedup).toBeGreaterThan(2);
});

test("warm-ups are short, and are not counted", async () => {
  const { target, sent } = fakeTarget();
  const [result] = await measure(modes.single, benchOf(target), { warmup: 2, repeat: 3 });
  expect(sent.map(({ maxTokens }) => maxTokens)).toEqual([
    ...new Array(10).fill(4),
    ...new Array(15).fill(6),
  ]);
  expect(result).toMatchObject({ repeat: 3, num_requests: 5, total_tokens: 30 });
  expect(result).toMatchObject({ active_bytes: 7, rss_bytes: 9 });
});

test("long prompts come when all the streams have begun", async () => {
  const { target, log } = fakeTarget(() => 2);
  await modes.mixed.pass(benchOf(target));
  const second = log.slice(10);
  const begun = second.indexOf("long");
  expect(second.slice(0, begun).filter((word) => word === "begins")).toHaveLength(5);
});

test("high priority comes when low has begun", async () => {
  const { target, log } = fakeTarget(() => 2);
  await modes.priority.pass(benchOf(target));
  expect(log.slice(0, 6)).toEqual(["LOW", "LOW", "LOW", "LOW", "LOW", "begins"]);
  expect(log.filter((word) => word === "HIGH")).toHaveLength(2);
});

test("a request that fails ends the measurement", async () => {
  const { target } = fakeTarget();
  const failing = { ...target, send: () => Promise.reject(new Error("refused")) };
  for (const mode of Object.values(modes)) {
    await expect(measure(mode, benchOf(failing), once)).rejects.toThrow("refused");
  }
});
