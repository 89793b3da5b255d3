// What is told of a model's steps and requests: to the debug log, to `ps` and to metrics.
import type { RequestReport, RowReport, StepReport } from "../engine/protocol.ts";
import { readGauges } from "../kv/blocks.ts";
import type { KvCache } from "../kv/kv-cache.ts";
import { standing } from "../schedule/queue.ts";
import type { Batch, Scheduler } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";
import type { Answers } from "./answers.ts";
import type { Landed } from "./pipeline.ts";

export function stepReport(
  model: string,
  step: number,
  { batch, ms, reports, error }: Landed,
  scheduler: Scheduler,
  cache: KvCache,
): StepReport {
  const { rows, preempted } = batch;
  let [tokens, decodeTokens] = [0, 0];
  for (const { start, count, sequence } of rows) {
    tokens += count;
    if (start >= sequence.promptLength) decodeTokens += 1;
  }
  return {
    model,
    step,
    ms,
    rows: rows.length,
    prefillTokens: tokens - decodeTokens,
    decodeTokens,
    preempted,
    running: scheduler.running.length,
    waiting: scheduler.waiting.length,
    blocks: readGauges(...cache.gauges),
    snapshots: cache.takeSnapshotCounts(),
    error,
    batch: reports,
  };
}

export function rowReports({ rows }: Batch, answers: Answers): RowReport[] {
  return rows.map(({ sequence, count }) => {
    const { id, index, name } = answers.get(sequence)!;
    return { id, index, name, tokens: count };
  });
}

/** Of every sequence that runs or waits. */
export function requestReports(
  { running, waiting }: Scheduler,
  answers: Answers,
  nowMs: number,
): RequestReport[] {
  return [...running, ...waiting].map((sequence) => requestReport(sequence, answers, nowMs));
}

function requestReport(sequence: Sequence, answers: Answers, nowMs: number): RequestReport {
  const { id, index, name } = answers.get(sequence)!;
  return {
    id,
    index,
    name,
    state: sequence.state === "running" ? "running" : "waiting",
    priority: sequence.priority,
    ageMs: nowMs - sequence.arrivalMs,
    standing: standing(sequence, nowMs),
    promptTokens: sequence.promptLength,
    generated: sequence.generated,
    cachedTokens: sequence.cachedTokens ?? 0,
    preemptions: sequence.preemptions,
    blocks: sequence.held.blocks,
  };
}
