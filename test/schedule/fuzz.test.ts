// Random submits, forks, aborts, failures and steps, with every invariant checked after each. The seeds
// are printed by a failing test's name; MLX_SERVE_FUZZ_SEED runs another one.
import { expect, test } from "bun:test";
import { BlockPool, readGauges } from "../../src/kv/blocks.ts";
import { rootKey } from "../../src/kv/prefix.ts";
import { type Batch, Scheduler } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { BlockModel, expectedTokens } from "../support/block-model.ts";
import { makeRandom } from "../support/random.ts";

const STEPS = 10_000;
const PRIORITIES = ["LOW", "NORMAL", "HIGH"] as const;

type Expected = { sequence: Sequence; prompt: number[]; forked: () => boolean; fork: number };

function fuzz(seed: number, depth: number) {
  const random = makeRandom(seed);
  const blocks = 20;
  const pool = new BlockPool(blocks);
  const model = new BlockModel(blocks);
  const scheduler = new Scheduler({
    pool,
    maxBatch: 6,
    tokenBudget: 48,
    lookback: 100,
    maxLength: 400,
    maxWaiting: 12,
    maxWaitingTokens: 1500,
    watermark: 1,
    maxPreemptions: 3,
  });
  const live = new Set<Sequence>();
  const expectations = new Map<Sequence, Expected>();
  const launched: { batch: Batch; tokens: number[] }[] = [];
  const counts = { submitted: 0, refused: 0, finished: 0, aborted: 0, failed: 0, forks: 0 };
  // Prompts begin alike, so that blocks are shared.
  const beginnings = [0, 1, 2].map((i) => Array.from({ length: 100 }, (_, j) => i * 100 + j));
  let id = 0;

  const submit = () => {
    const beginning = beginnings[random.below(3)]!.slice(0, random.below(101));
    const prompt = [
      ...beginning,
      ...Array.from({ length: 1 + random.below(40) }, () => random.below(1000)),
    ];
    const n = random.chance(0.2) ? 2 + random.below(3) : 1;
    const accepted = scheduler.submit(
      Array.from({ length: n }, () => ({
        id: id++,
        prompt: Uint32Array.from(prompt),
        maxTokens: 1 + random.below(100),
        minTokens: 0,
        priority: PRIORITIES[random.below(3)]!,
        arrivalMs: id,
        stopTokens: new Set(random.chance(0.3) ? [random.below(1000), random.below(1000)] : []),
        rootKey: rootKey("mock", String(random.below(2))),
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
    const batch = launched.length < depth ? scheduler.next() : undefined;
    if (!batch) return false;
    // A sequence draws as a fork if it took its first token from another's row.
    for (const { sequence, samples } of batch.rows) {
      samples.forEach((sample, i) => {
        if (sample !== sequence) expectations.get(sample)!.fork = i;
      });
    }
    launched.push({ batch, tokens: model.run(batch) });
    return true;
  };

  const land = () => {
    const step = launched.shift();
    if (!step) return;
    const failing = random.chance(0.002);
    // What was launched after a step that failed has failed with it.
    const outcomes = failing
      ? [step, ...launched.splice(0)].flatMap(({ batch }) => scheduler.fail(batch))
      : scheduler.commit(step.batch, step.tokens);
    for (const { sequence, finished } of outcomes) {
      if (!finished) continue;
      live.delete(sequence);
      if (finished === "error") counts.failed += 1;
      else counts.finished += 1;
      if (finished !== "error") {
        const { prompt, fork } = expectations.get(sequence)!;
        const expected = expectedTokens(prompt, sequence.generated, fork);
        expect([...sequence.tokens(sequence.promptLength)]).toEqual(expected);
      }
    }
  };

  const check = () => scheduler.check(launched.map(({ batch }) => batch));
  for (let i = 0; i < STEPS; i++) {
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
  for (let i = 0; i < 100_000 && (live.size > 0 || launched.length > 0); i++) {
    launch();
    land();
    check();
  }
  expect(live.size).toBe(0);
  expect(scheduler.idle).toBe(true);
  pool.clear();
  expect(readGauges(pool.gauges)).toEqual({
    total: blocks,
    free: blocks,
    cached: 0,
    held: 0,
    shared: 0,
  });
  return { ...counts, preemptions: scheduler.preemptions };
}

const seeds = process.env.MLX_SERVE_FUZZ_SEED
  ? [Number(process.env.MLX_SERVE_FUZZ_SEED)]
  : [1, 2026];

for (const seed of seeds) {
  for (const [depth, name] of [
    [1, "one step at a time"],
    [2, "a step launched before the last is read"],
  ] as const) {
    test(`${STEPS} random steps with seed ${seed}, ${name}, end empty and right`, () => {
      const counts = fuzz(seed, depth);
      // A run in which these never happened would prove nothing.
      for (const [what, count] of Object.entries(counts)) {
        if (count === 0) throw new Error(`nothing was ${what}`);
      }
    }, 60_000);
  }
}
