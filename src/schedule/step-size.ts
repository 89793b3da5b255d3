// Learns how many prompt tokens a step may prefill from the durations of past steps. A step cannot be interrupted:
// new requests and all streams wait for it. Scored prompts (log-probabilities of every token) cost far more per
// token, so the size of a step with scored prompts is learned separately.
//
// Sizes are powers of two, so that few kernel shapes occur. A size starts small, doubles while a step of twice the
// size would stay well below the target time, and shrinks at once when a step exceeds it.
import { BLOCK_TOKENS } from "../kv/blocks.ts";

/** A size doubles if the larger step is expected to take less than this fraction of the target. */
const GROWS_BELOW = 0.8;

const START = 2 * BLOCK_TOKENS;

/** Fraction of a step's prefill left to other flows once a prompt completes: more would delay its first token. */
export const BESIDE_ANSWER = 1 / 8;

/** Prompt tokens, separately for plain and for scored prompts. */
export type PromptTokens = { plain: number; scored: number };

export class StepSizes implements Readonly<PromptTokens> {
  plain = START;
  scored = START;
  readonly #most: number;
  readonly #targetMs: number;

  /**
   * `targetMs`: maximum duration of a step with prefill, unless a single block takes longer. Sizes may exceed the
   * token budget, which limits steps anyway, so that the fraction BESIDE_ANSWER of a size can still fill the budget.
   */
  constructor(tokenBudget: number, targetMs: number) {
    this.#targetMs = targetMs;
    this.#most = 2 ** Math.ceil(Math.log2(Math.max(tokenBudget / BESIDE_ANSWER, START)));
  }

  /** Adjusts the size that these prompt tokens filled more, plain or scored. `ms`: duration of the step. */
  learn(computed: Readonly<PromptTokens>, ms: number): void {
    const shares = { plain: computed.plain / this.plain, scored: computed.scored / this.scored };
    const share = shares.plain + shares.scored;
    if (share === 0) return;
    const kind = shares.plain >= shares.scored ? "plain" : "scored";
    this[kind] = this.#learned(this[kind], ms / share, ms);
  }

  /** Returns the new size. `fullMs`: estimated duration of a step filled to `size`. */
  #learned(size: number, fullMs: number, ms: number): number {
    if (ms > this.#targetMs) {
      const halvings = Math.max(Math.ceil(Math.log2(fullMs / this.#targetMs)), 1);
      return Math.max(size / 2 ** halvings, BLOCK_TOKENS);
    }
    return 2 * fullMs < GROWS_BELOW * this.#targetMs ? Math.min(2 * size, this.#most) : size;
  }
}
