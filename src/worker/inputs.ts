// Turns what the scheduler decided into what the model takes: integers into typed arrays. Decoding rows
// come first, those of like length together, for the KV store computes such rows as one.
import type { StepInputs } from "../model/runner.ts";
import type { Sampled, SampleRow } from "../model/sampler.ts";
import type { Batch, Row } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";

export type Prepared = {
  inputs: StepInputs;
  /** What was drawn for the inputs, in the order of the batch's samples. */
  restore(sampled: readonly Sampled[]): Sampled[];
};

export function prepare(batch: Batch, sampleRow: (sequence: Sequence) => SampleRow): Prepared {
  const firstSample: number[] = [];
  let samplesBefore = 0;
  for (const { samples } of batch.rows) {
    firstSample.push(samplesBefore);
    samplesBefore += samples.length;
  }
  const order = [...batch.rows.keys()].sort((a, b) => rank(batch.rows[a]!) - rank(batch.rows[b]!));
  const rows = order.map((i) => batch.rows[i]!);
  const tokens = new Uint32Array(rows.reduce((sum, { count }) => sum + count, 0));
  const samples: { at: number; row: SampleRow }[] = [];
  const places: number[] = [];
  let at = 0;
  for (const [i, row] of rows.entries()) {
    tokens.set(row.sequence.tokens(row.start, row.start + row.count), at);
    at += row.count;
    for (const [j, sequence] of row.samples.entries()) {
      samples.push({ at: at - 1, row: sampleRow(sequence) });
      places.push(firstSample[order[i]!]! + j);
    }
  }
  return {
    inputs: {
      tokens,
      rows: rows.map(({ sequence, start, count }) => ({ start, count, table: sequence.table })),
      copies: batch.copies,
      samples,
    },
    restore(sampled) {
      const restored: Sampled[] = [];
      for (const [i, place] of places.entries()) restored[place] = sampled[i]!;
      return restored;
    },
  };
}

/** Decoding rows by length, then chunks of prompts. */
function rank({ count, start }: Row): number {
  return count === 1 ? start : Number.MAX_SAFE_INTEGER;
}
