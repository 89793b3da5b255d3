// How many prompt tokens a step may compute, learned from how long steps took. A step is not interrupted: whoever
// arrives waits for it, and every stream does. Prompts whose tokens are all scored cost far more a token, so
// they have a size of their own.
//
// A size is a power of two: kernels and shapes of few sizes are used. It starts small, doubles while steps
// twice as long would stay clearly below the target, and shrinks at once when a step takes longer.
import { BLOCK_TOKENS } from "../kv/blocks.ts";

/** A size grows where the larger step is expected to take less than this part of the target. */
const GROWS_BELOW = 0.8;

const START = 2 * BLOCK_TOKENS;

/** Of a step's prompt tokens, what other flows may have once a prompt is complete: its answer waits for them. */
export const BESIDE_ANSWER = 1 / 8;

/** Prompt tokens, by what they cost. */
export type PromptTokens = { plain: number; scored: number };

export class StepSizes implements Readonly<PromptTokens> {
  plain = START;
  scored = START;
  readonly #most: number;
  readonly #targetMs: number;

  /**
   * `targetMs`: how long a step with prompts takes at most, where a block of tokens can be computed in that time. The
   * budget limits a step by itself. A size that leaves it to others after an answer is large enough.
   */
  constructor(tokenBudget: number, targetMs: number) {
    this.#targetMs = targetMs;
    this.#most = 2 ** Math.ceil(Math.log2(Math.max(tokenBudget / BESIDE_ANSWER, START)));
  }

  /** A step with these prompt tokens took so long. Of two kinds, the one that had more of the step learns. */
  learn(computed: Readonly<PromptTokens>, ms: number): void {
    const shares = { plain: computed.plain / this.plain, scored: computed.scored / this.scored };
    const share = shares.plain + shares.scored;
    if (share === 0) return;
    const kind = shares.plain >= shares.scored ? "plain" : "scored";
    this[kind] = this.#learned(this[kind], ms / share, ms);
  }

  /** `fullMs`: how long a step of this size would have taken. */
  #learned(size: number, fullMs: number, ms: number): number {
    if (ms > this.#targetMs) {
      const halvings = Math.max(Math.ceil(Math.log2(fullMs / this.#targetMs)), 1);
      return Math.max(size / 2 ** halvings, BLOCK_TOKENS);
    }
    return 2 * fullMs < GROWS_BELOW * this.#targetMs ? Math.min(2 * size, this.#most) : size;
  }
}
