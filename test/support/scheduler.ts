// A scheduler over a mock model, with a clock that the test moves.
import { expect } from "bun:test";
import { type CacheLayout, KvCache } from "../../src/kv/kv-cache.ts";
import { rootKey } from "../../src/kv/prefix.ts";
import type { Priority } from "../../src/schedule/queue.ts";
import { type Batch, Scheduler, type SchedulerOptions } from "../../src/schedule/scheduler.ts";
import type { Sequence } from "../../src/schedule/sequence.ts";
import { BlockModel } from "./block-model.ts";

type Ask = {
  prompt: number[];
  heads?: number[];
  maxTokens?: number;
  minTokens?: number;
  priority?: Priority;
  client?: string;
  scored?: boolean;
  salt?: string;
  stop?: number[];
  n?: number;
  revisable?: boolean;
};

export function setUpScheduler(
  options: Partial<SchedulerOptions> & { blocks?: number; layout?: CacheLayout } = {},
) {
  const { blocks = 64, layout = { groups: [{ blocks }] }, ...others } = options;
  const cache = new KvCache(layout);
  const pool = cache.pools[0]!;
  const model = new BlockModel(layout);
  const clock = { ms: 0 };
  const scheduler = new Scheduler({
    cache,
    maxBatch: 8,
    tokenBudget: 64,
    sizes: { plain: Number.POSITIVE_INFINITY, scored: Number.POSITIVE_INFINITY },
    nowMs: () => clock.ms,
    lookback: Number.POSITIVE_INFINITY,
    maxLength: 10_000,
    maxWaiting: 1000,
    maxWaitingTokens: 1_000_000,
    watermark: 1,
    maxPreemptions: 100,
    ...others,
  });
  const finished: Sequence[] = [];
  let id = 0;
  const submit = ({ prompt, maxTokens = 5, minTokens = 0, n = 1, ...ask }: Ask) =>
    scheduler.submit(
      Array.from({ length: n }, () => ({
        id: id++,
        prompt: Uint32Array.from(prompt),
        heads: ask.heads,
        maxTokens,
        minTokens,
        priority: ask.priority ?? "NORMAL",
        client: ask.client,
        scored: ask.scored ?? false,
        revisable: ask.revisable ?? false,
        arrivalMs: clock.ms,
        stopTokens: new Set(ask.stop),
        rootKey: rootKey("mock", ask.salt ?? ""),
      })),
    );
  const one = (ask: Ask): Sequence => {
    const accepted = submit(ask);
    if (typeof accepted === "string") throw new Error(accepted);
    return accepted[0]!;
  };
  const step = (): Batch | undefined => {
    const batch = scheduler.next();
    if (batch) {
      const outcomes = scheduler.commit(batch, model.run(batch));
      finished.push(...outcomes.filter((o) => o.finished).map((o) => o.sequence));
    }
    scheduler.check();
    return batch;
  };
  const run = (most = 10_000) => {
    for (let i = 0; i < most && !scheduler.idle; i++) step();
    expect(scheduler.idle).toBe(true);
  };
  return { cache, pool, model, scheduler, clock, finished, submit, one, step, run };
}

export const range = (length: number, from = 0) => Array.from({ length }, (_, i) => from + i);
export const output = (sequence: Sequence) => [...sequence.tokens(sequence.promptLength)];
export const rows = (batch: Batch | undefined) =>
  batch?.rows.map(({ sequence, start, count, samples }) => ({
    id: sequence.id,
    start,
    count,
    samples: samples.length,
  }));
