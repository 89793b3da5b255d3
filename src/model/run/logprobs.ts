// Computes log-probabilities of tokens from the model's unchanged logits. Rows of a whole vocabulary stay on the
// device: the host reads one number per token and a few for the most likely ones.
import type { Compute, HostTransfer } from "../../device/device.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import {
  argpartition,
  astype,
  negative,
  reshape,
  slice,
  squeeze,
  subtract,
  takeAlongAxis,
} from "../../mlx/ops.ts";
import { Scope } from "../../mlx/scope.ts";
import type { Model } from "../contract/model.ts";

/**
 * Prompt tokens to score. The hidden state at `at` predicts the first token of `next`, and so on. `top`: number of
 * alternatives per token.
 */
export type PromptScore = { at: number; next: Uint32Array; top: number };

export type TokenLogprob = { token: number; logprob: number };

/** Log-probability of a token, and the most likely tokens at its position. */
export type Score = { logprob: number | undefined; top: TokenLogprob[] };

/** Scores that are being computed. Evaluate `pending`, then call `read`. */
export type Scoring = { pending: readonly MlxArray[]; read(): Score[] };

/** Maximum bytes of logits per piece of a prompt; a few arrays of this size exist at a time. */
const PIECE_BYTES = 2 ** 24;

/** Scores tokens (R) by logits (R, V); finds the `tops[i]` likeliest tokens of row i. Call it in a scope. */
export function scoreTokens(
  device: Compute & HostTransfer,
  logits: MlxArray,
  tokens: MlxArray,
  tops: readonly number[],
): Scoring {
  const [rows, vocabulary] = logits.shape as [number, number];
  const x = astype(logits, "float32");
  const total = device.logSumExp(x); // (R, 1)
  const column = reshape(astype(tokens, "int32"), [rows, 1]);
  const own = squeeze(subtract(takeAlongAxis(x, column), total), 1); // (R)
  const most = Math.min(Math.max(...tops), vocabulary);
  const top = most > 0 ? slice(argpartition(negative(x), most - 1), 1, 0, most) : undefined;
  const values = top && subtract(takeAlongAxis(x, top), total); // (R, most)
  const pending = [own, ...(top && values ? [top, values] : [])].map((each) => device.fetch(each));
  return {
    pending,
    read() {
      const [logprobs, ids = [], likely = []] = pending.map((each) => each.numbers());
      return tops.map((count, row) => ({
        logprob: logprobs![row],
        top: ids
          .slice(row * most, (row + 1) * most)
          .map((token, i) => ({ token, logprob: likely[row * most + i]! }))
          .sort((a, b) => b.logprob - a.logprob || a.token - b.token)
          .slice(0, count),
      }));
    },
  };
}

/** Picks the logits of each row's `tokens` from logits (R, V). Call it in a scope: it makes arrays. */
export function pickLogits(
  { stage, fetch }: HostTransfer,
  logits: MlxArray,
  tokens: readonly (readonly number[])[],
): { pending: readonly MlxArray[]; read(): number[][] } {
  const width = Math.max(...tokens.map(({ length }) => length));
  const columns = new Int32Array(tokens.length * width);
  for (const [row, own] of tokens.entries()) columns.set(own, row * width);
  const picked = takeAlongAxis(logits, stage(columns, [tokens.length, width]));
  const values = fetch(astype(picked, "float32"));
  return {
    pending: [values],
    read() {
      const numbers = values.numbers();
      return tokens.map(({ length }, row) => numbers.slice(row * width, row * width + length));
    },
  };
}

/**
 * Scores prompt tokens, each by the hidden state (T, D) of the token before. Each piece is read before the next is
 * computed, so that memory does not grow with the prompt.
 */
export function scorePrompt(
  device: Compute & HostTransfer,
  { logits, shape }: Pick<Model, "logits"> & { shape: Pick<Model["shape"], "vocabulary"> },
  hidden: MlxArray,
  { at, next, top }: PromptScore,
): Score[] {
  const rowBytes = shape.vocabulary * Float32Array.BYTES_PER_ELEMENT;
  const rows = Math.max(1, Math.floor(PIECE_BYTES / rowBytes));
  const scores: Score[] = [];
  for (let from = 0; from < next.length; from += rows) {
    using _ = new Scope();
    const tokens = next.slice(from, from + rows);
    const tops = Array<number>(tokens.length).fill(top);
    const piece = logits(slice(hidden, 0, at + from, at + from + tokens.length));
    const { pending, read } = scoreTokens(device, piece, device.stage(tokens), tops);
    evaluate(...pending);
    scores.push(...read());
  }
  return scores;
}
