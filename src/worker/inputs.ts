// Turns what the scheduler decided into what the model takes: integers into typed arrays. Decoding rows
// come first, those of like length together, for the KV store computes such rows as one.
import type { Pooling } from "../engine/protocol.ts";
import type { StepInputs, StepOutputs } from "../model/runner.ts";
import type { Sampled, SampleRow, Score } from "../model/sampler.ts";
import type { Batch, Row } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";

/** What else than its next token is wanted of a prompt. */
export type PromptReading =
  /** How likely each of its tokens was, with so many of the most likely ones. */
  | { kind: "scores"; top: number }
  /** The hidden state of its last token, or the mean of all. */
  | { kind: "vector"; pooling: Pooling };

/** What a step is to read for one sequence. */
export type Wanted = { row: SampleRow; reading?: PromptReading | undefined };

export type PromptScores = { sequence: Sequence; start: number; scores: Score[] };

/** Part of a sequence's vector; added up they are the whole. */
export type PromptSum = { sequence: Sequence; start: number; sum: Float32Array };

export type Prepared = {
  inputs: StepInputs;
  /** Which of the inputs' samples each sequence has. */
  sampleOf: ReadonlyMap<Sequence, number>;
  /** What came out, in the order of the batch's samples. */
  restore(outputs: StepOutputs): {
    sampled: Sampled[];
    scored: PromptScores[];
    sums: PromptSum[];
  };
};

/** `before` tells which sample of the step before it a sequence's last token is, where it is not known. */
export function prepare(
  batch: Batch,
  wanted: (sequence: Sequence) => Wanted,
  before: (sequence: Sequence) => number | undefined = () => undefined,
): Prepared {
  const firstSample: number[] = [];
  let samplesBefore = 0;
  for (const { samples } of batch.rows) {
    firstSample.push(samplesBefore);
    samplesBefore += samples.length;
  }
  const order = [...batch.rows.keys()].sort((a, b) => rank(batch.rows[a]!) - rank(batch.rows[b]!));
  const rows = order.map((i) => batch.rows[i]!);
  const tokens = new Uint32Array(rows.reduce((sum, { count }) => sum + count, 0));
  const fed = new Int32Array(tokens.length).fill(-1);
  const samples: { at: number; row: SampleRow }[] = [];
  const places: number[] = [];
  const sampleOf = new Map<Sequence, number>();
  const scores: (StepInputs["scores"][number] & { of: Row })[] = [];
  const sums: (StepInputs["sums"][number] & { of: Row })[] = [];
  let at = 0;
  for (const [i, row] of rows.entries()) {
    const { sequence, start, count } = row;
    if (start < sequence.length) tokens.set(sequence.tokens(start, start + count), at);
    else fed[at] = before(sequence)!;
    const own = wanted(sequence);
    const { reading } = own;
    const promptCount = Math.min(start + count, sequence.promptLength) - start;
    if (reading?.kind === "scores" && promptCount > 0) {
      const next = sequence.tokens(start + 1, Math.min(start + count + 1, sequence.promptLength));
      if (next.length > 0) scores.push({ at, next, top: reading.top, of: row });
    }
    if (reading?.kind === "vector" && promptCount > 0) {
      const last = start + promptCount === sequence.promptLength;
      const [from, to] = [at, at + promptCount];
      if (reading.pooling === "mean") sums.push({ from, to, of: row });
      else if (last) sums.push({ from: to - 1, to, of: row });
    }
    at += count;
    for (const [j, sample] of row.samples.entries()) {
      sampleOf.set(sample, samples.length);
      samples.push({ at: at - 1, row: (sample === sequence ? own : wanted(sample)).row });
      places.push(firstSample[order[i]!]! + j);
    }
  }
  return {
    sampleOf,
    inputs: {
      tokens,
      fed: fed.some((index) => index >= 0) ? fed : undefined,
      rows: rows.map(({ sequence, start, count }) => ({ start, count, table: sequence.table })),
      copies: batch.copies,
      samples,
      scores,
      sums,
    },
    restore(outputs) {
      const sampled: Sampled[] = [];
      for (const [i, place] of places.entries()) sampled[place] = outputs.sampled[i]!;
      return {
        sampled,
        scored: scores.map(({ of: { sequence, start } }, i) => {
          return { sequence, start: start + 1, scores: outputs.scored[i]! };
        }),
        sums: sums.map(({ of: { sequence, start } }, i) => {
          return { sequence, start, sum: outputs.sums[i]! };
        }),
      };
    },
  };
}

/** Decoding rows by length, then chunks of prompts. */
function rank({ count, start }: Row): number {
  return count === 1 ? start : Number.MAX_SAFE_INTEGER;
}
