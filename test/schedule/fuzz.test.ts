// Random submits, forks, aborts, late masks, failures, unloads and steps, with every invariant checked after
// each. The seed is in the names of the tests; MLX_SERVE_FUZZ_SEED runs another one, for longer.
import { expect, test } from "bun:test";
import { readGauges } from "../../src/kv/blocks.ts";
import { type CacheLayout, KvCache } from "../../src/kv/kv-cache.ts";
import { rootKey } from "../../src/kv/prefix.ts";
import { type Batch, type Drawn, Scheduler } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { BlockModel, expectedTokens } from "../support/block-model.ts";
import { makeRandom } from "../support/random.ts";

const STEPS = process.env.MLX_SERVE_FUZZ_SEED ? 10_000 : 5_000;
const PRIORITIES = ["LOW", "NORMAL", "HIGH"] as const;
/** Some prompts are longer, and some sequences become longer. */
const ORIGINAL_LENGTH = 90;
const CLIENTS = [undefined, "a", "b", "c"];

/** Steps under way at most, and parts that each passes. */
type Way = { name: string; depth: number; stages?: number };

type Expected = { sequence: Sequence; prompt: number[]; forked: () => boolean; fork: number };

function fuzz(seed: number, { depth, stages }: Way, layout: CacheLayout) {
  const random = makeRandom(seed);
  let ms = 0;
  const load = () => {
    const cache = new KvCache(layout);
    const scheduler = new Scheduler({
      cache,
      maxBatch: 6,
      tokenBudget: 48,
      stages,
      sizes: { plain: 40, scored: 24 },
      nowMs: () => ms,
      lookback: 100,
      maxLength: 400,
      originalLength: ORIGINAL_LENGTH,
      maxWaiting: 12,
      maxWaitingTokens: 1500,
      watermark: 1,
      maxPreemptions: 3,
    });
    return { cache, scheduler, model: new BlockModel(layout, ORIGINAL_LENGTH) };
  };
  let { cache, scheduler, model } = load();
  const live = new Set<Sequence>();
  const expectations = new Map<Sequence, Expected>();
  const launched: { batch: Batch; drawn: Drawn[]; late: Sequence[] }[] = [];
  /** Sequences that wait for a mask: for a while, or until the step that missed it has landed. */
  const stalled = new Set<Sequence>();
  const missed = new Set<Sequence>();
  const counts = {
    submitted: 0,
    refused: 0,
    finished: 0,
    aborted: 0,
    failed: 0,
    "failed with a step behind it": 0,
    forks: 0,
    stalled: 0,
    late: 0,
    unloaded: 0,
    preemptions: 0,
    lengthened: 0,
  };
  // Prompts begin alike, so that blocks are shared.
  const beginnings = [0, 1, 2].map((i) => Array.from({ length: 100 }, (_, j) => i * 100 + j));
  let id = 0;

  const submit = () => {
    const beginning = beginnings[random.below(3)]!.slice(0, random.below(101));
    const prompt = [
      ...beginning,
      ...Array.from({ length: 1 + random.below(40) }, () => random.below(1000)),
    ];
    const client = CLIENTS[random.below(CLIENTS.length)];
    const scored = random.chance(0.1);
    const revisable = random.chance(0.5);
    const n = random.chance(0.2) ? 2 + random.below(3) : 1;
    const accepted = scheduler.submit(
      Array.from({ length: n }, () => ({
        id: id++,
        prompt: Uint32Array.from(prompt),
        maxTokens: 1 + random.below(100),
        minTokens: 0,
        priority: PRIORITIES[random.below(3)]!,
        client,
        arrivalMs: ms,
        stopTokens: new Set(random.chance(0.3) ? [random.below(1000), random.below(1000)] : []),
        rootKey: rootKey("mock", String(random.below(2))),
        scored,
        revisable,
      })),
    );
    counts.submitted += n;
    if (typeof accepted === "string") {
      counts.refused += n;
      return;
    }
    counts.forks += n - 1;
    for (const sequence of accepted) {
      live.add(sequence);
      expectations.set(sequence, { sequence, prompt, forked: () => false, fork: 0 });
    }
  };

  const launch = (): boolean => {
    const isStalled = (each: Sequence) => stalled.has(each) || missed.has(each);
    const batch = launched.length < depth ? scheduler.next(isStalled) : undefined;
    if (!batch) return false;
    // A sequence draws as a fork if it takes its first token from another's row.
    for (const { sequence, samples } of batch.rows) {
      samples.forEach((sample, i) => {
        const isFirst = sample.generated + sample.unread === 1;
        if (isFirst) expectations.get(sample)!.fork = sample === sequence ? 0 : i;
      });
    }
    for (const { sequence, start, count } of batch.rows) {
      expect(isStalled(sequence)).toBe(false);
      if (stages) expect(start + count).toBeLessThanOrEqual(sequence.length);
    }
    const samples = batch.rows.flatMap((row) => row.samples);
    const late = samples.filter(({ revisable }) => revisable && random.chance(0.1));
    const drawn = model
      .run(batch)
      .map((token, i): Drawn => (late.includes(samples[i]!) ? "late" : token));
    for (const sequence of late) missed.add(sequence);
    counts.late += late.length;
    launched.push({ batch, drawn, late });
    return true;
  };

  const land = () => {
    const step = launched.shift();
    if (!step) return;
    const failing = random.chance(0.005);
    if (failing && launched.length > 0) counts["failed with a step behind it"] += 1;
    // A step that was launched behind one that failed may fail with it, or land.
    const failed = failing ? [step, ...(random.chance(0.5) ? launched.splice(0) : [])] : [];
    for (const { late } of failing ? failed : [step]) for (const each of late) missed.delete(each);
    const outcomes = failing
      ? failed.flatMap(({ batch }) => scheduler.fail(batch))
      : scheduler.commit(step.batch, step.drawn);
    for (const { sequence, finished } of outcomes) {
      if (!finished) continue;
      live.delete(sequence);
      if (finished === "error") counts.failed += 1;
      else counts.finished += 1;
      if (finished !== "error") {
        const { prompt, fork } = expectations.get(sequence)!;
        const expected = expectedTokens(prompt, sequence.generated, fork);
        if (sequence.isLong && prompt.length <= ORIGINAL_LENGTH) counts.lengthened += 1;
        expect([...sequence.tokens(sequence.promptLength)]).toEqual(expected);
      }
    }
  };

  const check = () => scheduler.check(launched.map(({ batch }) => batch));
  const expectEmpty = () => {
    expect(scheduler.idle).toBe(true);
    for (const pool of [...cache.pools, ...(cache.slots ? [cache.slots] : [])]) {
      pool.clear();
      const empty = { total: pool.count, free: pool.count, cached: 0, held: 0, shared: 0 };
      expect(readGauges(pool.gauges)).toEqual(empty);
    }
  };
  /** Ends everything, and begins with an empty pool. */
  const unload = () => {
    for (const sequence of live) scheduler.abort(sequence);
    live.clear();
    while (launched.length > 0) land();
    check();
    expectEmpty();
    stalled.clear();
    missed.clear();
    counts.unloaded += 1;
    counts.preemptions += scheduler.preemptions;
    ({ cache, scheduler, model } = load());
  };
  for (let i = 0; i < STEPS; i++) {
    ms += random.below(2000);
    if (random.chance(0.001)) unload();
    if (random.chance(0.05) && live.size > 0) {
      stalled.add([...live][random.below(live.size)]!);
      counts.stalled += 1;
    }
    if (random.chance(0.1)) stalled.clear();
    if (random.chance(0.3)) submit();
    if (random.chance(0.03) && live.size > 0) {
      const sequence = [...live][random.below(live.size)]!;
      scheduler.abort(sequence);
      live.delete(sequence);
      counts.aborted += 1;
    }
    check();
    if (!launch() || launched.length >= depth || random.chance(0.3)) land();
    check();
  }
  stalled.clear();
  for (let i = 0; i < 100_000 && (live.size > 0 || launched.length > 0); i++) {
    launch();
    land();
    check();
  }
  expect(live.size).toBe(0);
  expectEmpty();
  counts.preemptions += scheduler.preemptions;
  return counts;
}

const seed = Number(process.env.MLX_SERVE_FUZZ_SEED ?? 2026);

const layouts: Record<string, CacheLayout> = {
  blocks: { groups: [{ blocks: 20 }] },
  "blocks with and without a window": { groups: [{ blocks: 20 }, { blocks: 14, window: 40 }] },
  "blocks and slots": { groups: [{ blocks: 20 }], slots: 11 },
  slots: { groups: [], slots: 9 },
  "blocks with windows, and slots": {
    groups: [{ blocks: 16, window: 50 }, { blocks: 20 }, { blocks: 12, window: 10 }],
    slots: 12,
  },
};

const ways: readonly Way[] = [
  { name: "one step at a time", depth: 1 },
  { name: "a step launched before the last is read", depth: 2 },
  { name: "a step in each of three stages", depth: 3, stages: 3 },
];

for (const [kept, layout] of Object.entries(layouts)) {
  for (const way of ways) {
    const { name, depth } = way;
    test(`${kept}: ${STEPS} random steps with seed ${seed}, ${name}, end empty and right`, () => {
      const counts = fuzz(seed, way, layout);
      // A run in which these never happened would prove nothing.
      const never = Object.entries(counts).filter(([, count]) => count === 0);
      const impossible = depth === 1 ? ["failed with a step behind it"] : [];
      expect(never.map(([what]) => what)).toEqual(impossible);
    }, 60_000);
  }
}
