// Reports on a model's steps and requests, for the debug log, `ps` and metrics.
import type { BlockMap, RequestReport, RowReport, StepReport } from "../engine/protocol.ts";
import { readGauges } from "../kv/blocks.ts";
import { type KvCache, NONE } from "../kv/kv-cache.ts";
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

export function rowTokens({ rows }: Batch): Int32Array {
  const numbers = new Int32Array(3 * rows.length);
  rows.forEach(({ sequence, start, count }, i) => {
    numbers[3 * i] = sequence.id;
    numbers[3 * i + 1] = count;
    numbers[3 * i + 2] = start < sequence.promptLength ? 1 : 0;
  });
  return numbers;
}

/** Maximum cells of a block map. In larger pools a cell stands for several blocks. */
const MAX_CELLS = 4096;

export function blockMap(
  model: string,
  { pools }: KvCache,
  { running, waiting }: Scheduler,
  answers: Answers,
  names: readonly string[],
): BlockMap {
  const total = pools.reduce((sum, { count }) => sum + count, 0);
  const blocksPerCell = Math.ceil(total / MAX_CELLS) || 1;
  const cells = new Uint8Array(Math.ceil(total / blocksPerCell));
  const firsts: number[] = [];
  let first = 0;
  for (const pool of pools) {
    firsts.push(first);
    for (let block = 0; block < pool.count; block++) {
      const cell = Math.floor((first + block) / blocksPerCell);
      cells[cell] = Math.max(cells[cell]!, pool.use(block));
    }
    first += pool.count;
  }
  const requests = [...running, ...waiting].flatMap((sequence) => {
    const { name, index } = answers.get(sequence)!;
    if (name === undefined || !names.includes(name)) return [];
    const blocks = sequence.held.tables.flatMap((table, group) =>
      table.filter((block) => block !== NONE).map((block) => firsts[group]! + block),
    );
    const own = new Set(blocks.map((block) => Math.floor(block / blocksPerCell)));
    return [{ name, index, cells: [...own] }];
  });
  return { model, blocksPerCell, cells, requests };
}

/** Returns one report per running or waiting sequence. */
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
