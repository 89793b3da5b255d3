// Turns a batch of the scheduler into the runner's inputs, which are typed arrays. Decoding rows come first,
// sorted by length.
import type { Pooling } from "../engine/protocol.ts";
import type { Score } from "../model/run/logprobs.ts";
import type { Lookback, Sampled, SampleRow } from "../model/run/sampler.ts";
import type { StepInputs, StepOutputs } from "../model/run/step.ts";
import type { StateRow } from "../model/state/state-store.ts";
import type { Batch, Row } from "../schedule/scheduler.ts";
import type { Sequence } from "../schedule/sequence.ts";

/** An output of a prompt other than its next token. */
export type PromptReading =
  /** Log-probabilities of each prompt token, with the `top` most likely alternatives. */
  | { kind: "scores"; top: number }
  /** Hidden state of the prompt's last token, or the mean over all tokens. */
  | { kind: "vector"; pooling: Pooling };

/** How to sample a sequence, and what to read from its prompt. */
export type Wanted = {
  readonly sampling: SampleRow["sampling"];
  /** Reads token counts and mask for a draw with penalties or a grammar; needs all previous tokens. */
  readonly lookBack?: ((deadlineMs: number) => Lookback) | undefined;
  readonly reading?: PromptReading | undefined;
  /** Index of the sequence's newest sample among the samples of its step. */
  sample?: number;
};

export type PromptScores = { sequence: Sequence; start: number; scores: Score[] };

/** Sum of the hidden states of one prompt chunk; the sequence's vector is computed from the sum over all chunks. */
export type PromptSum = { sequence: Sequence; start: number; sum: Float32Array };

export type Prepared = {
  inputs: StepInputs;
  /** Sequences whose samples need `lookBack` (token counts for penalties, or a token mask), in sample order. */
  lookingBack: readonly Sequence[];
  /** Reorders the step's outputs to the order of the batch's samples. */
  restore(outputs: StepOutputs): { sampled: Sampled[]; scored: PromptScores[]; sums: PromptSum[] };
};

/** Prepares a step's inputs. For a token that is not known yet, `fed` has the index of the sample that draws it. */
export function prepare(batch: Batch, wantedOf: (sequence: Sequence) => Wanted): Prepared {
  const firstSample: number[] = [];
  let sampleCount = 0;
  let tokenCount = 0;
  for (const { samples, count } of batch.rows) {
    firstSample.push(sampleCount);
    sampleCount += samples.length;
    tokenCount += count;
  }
  const tokens = new Uint32Array(tokenCount);
  const rows: StateRow[] = [];
  const samples: { at: number; row: SampleRow }[] = [];
  const lookingBack: Sequence[] = [];
  const places: number[] = [];
  const scores: (StepInputs["scores"][number] & { of: Row })[] = [];
  const sums: (StepInputs["sums"][number] & { of: Row })[] = [];
  let fed: Int32Array | undefined;
  let at = 0;
  const order = orderOf(batch.rows);
  for (let i = 0; i < order.length; i++) {
    const index = order[i]!;
    const row = batch.rows[index]!;
    const { sequence, start, count, move } = row;
    const wanted = wantedOf(sequence);
    const { reading } = wanted;
    rows.push({ start, count, tables: sequence.held.tables, isLong: sequence.isLong, move });
    if (start < sequence.length) tokens.set(sequence.tokens(start, start + count), at);
    else {
      fed ??= new Int32Array(tokenCount).fill(-1);
      fed[at] = wanted.sample!;
    }
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
    let place = firstSample[index]!;
    for (const sample of row.samples) {
      const own = sample === sequence ? wanted : wantedOf(sample);
      own.sample = samples.length;
      const looksBack = own.lookBack !== undefined;
      const index = sample.generated + sample.unread - 1;
      samples.push({ at: at - 1, row: { sampling: own.sampling, index, looksBack } });
      if (looksBack) lookingBack.push(sample);
      places.push(place++);
    }
  }
  return {
    inputs: { tokens, fed, rows, copies: batch.copies, samples, scores, sums },
    lookingBack,
    restore(outputs) {
      const drawn = new Array<Sampled>(places.length);
      for (let i = 0; i < places.length; i++) drawn[places[i]!] = outputs.sampled[i]!;
      return {
        sampled: drawn,
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

/** Returns the order of the rows: decoding rows by length, then prompt chunks in batch order. */
function orderOf(rows: readonly Row[]): Float64Array {
  // Rank and index packed into one number: sorting needs no compare function.
  const order = new Float64Array(rows.length);
  for (let i = 0; i < rows.length; i++) order[i] = rank(rows[i]!) * rows.length + i;
  order.sort();
  for (let i = 0; i < rows.length; i++) order[i]! %= rows.length;
  return order;
}

function rank({ count, start }: Row): number {
  return count === 1 ? start : LONGER_THAN_ANY;
}

const LONGER_THAN_ANY = 2 ** 32;
