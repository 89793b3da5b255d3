// Log-probabilities of tokens, from the logits as the model gave them. Whole rows of a vocabulary stay on the
// device: what is read is a number a token and a few of the most likely ones.
import type { Device } from "../../device/device.ts";
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

export type TokenLogprob = { token: number; logprob: number };

/** How likely a token was, and which were the most likely. */
export type Score = { logprob: number | undefined; top: TokenLogprob[] };

/** Scores in the making. Evaluate `pending`, then `read`. */
export type Scoring = { pending: readonly MlxArray[]; read(): Score[] };

/** Of one array with a row a token, while a prompt is scored: several are there at a time. */
const PIECE_BYTES = 2 ** 24;

/** logits (R, V), tokens (R), each with so many of the most likely. In a scope: it makes arrays. */
export function scoreTokens(
  device: Device,
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

/** logits (R, V) -> of each row the logits of its own tokens. In a scope: it makes arrays. */
export function pickLogits(
  { stage, fetch }: Device,
  logits: MlxArray,
  tokens: readonly (readonly number[])[],
): { pending: readonly MlxArray[]; read(): number[][] } {
  const width = Math.max(...tokens.map(({ length }) => length));
  const columns = new Int32Array(tokens.length * width);
  tokens.forEach((own, row) => {
    columns.set(own, row * width);
  });
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
 * Scores a prompt: how likely each token was after the hidden state (N, D) before it. Piece by piece, each
 * read before the next is computed, so that memory does not grow with the prompt.
 */
export function scorePrompt(
  device: Device,
  hidden: MlxArray,
  tokens: Uint32Array,
  top: number,
  { logits, vocabulary }: { logits(hidden: MlxArray): MlxArray; vocabulary: number },
): Score[] {
  const rows = Math.max(1, Math.floor(PIECE_BYTES / (vocabulary * Float32Array.BYTES_PER_ELEMENT)));
  const scores: Score[] = [];
  for (let from = 0; from < tokens.length; from += rows) {
    using _ = new Scope();
    const to = Math.min(from + rows, tokens.length);
    const tops = Array<number>(to - from).fill(top);
    const piece = logits(slice(hidden, 0, from, to));
    const { pending, read } = scoreTokens(
      device,
      piece,
      device.stage(tokens.slice(from, to)),
      tops,
    );
    evaluate(...pending);
    scores.push(...read());
  }
  return scores;
}
