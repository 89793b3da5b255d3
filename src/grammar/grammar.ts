// A grammar, and the messages about it between threads. Nothing here imports xgrammar: the HTTP side makes
// grammars, the engine Worker passes them on, the grammar threads compile them.
import type { MessagePort } from "node:worker_threads";

/** The tokens that a grammar is compiled for. */
export type Vocabulary = {
  /** The path of the model. */
  path: string;
  /** The number of logits. */
  size: number;
  /** Tokens that end an answer: allowed where the grammar is at its end, and nowhere else. */
  stopTokens: readonly number[];
  /** Control tokens that count as text. All others are never allowed. */
  markers: readonly string[];
};

/** What the text of an answer must match. */
export type Grammar = {
  vocabulary: Vocabulary;
  /**
   * A structural-tag format of xgrammar, as JSON. Its JSON schemas are enforced as far as possible; a schema
   * that is listed in `strict` too is refused where a part of it cannot be enforced.
   */
  format: string;
  /** As JSON. */
  strict: readonly string[];
};

export type ToGrammarThread =
  /** Load it, ahead of the first grammar that needs it. */
  | { kind: "load"; vocabulary: Vocabulary }
  /** Compile it, unless it is in the cache. */
  | { kind: "prepare"; id: number; grammar: Grammar }
  /** Nobody waits for this answer any longer. */
  | { kind: "withdraw"; id: number }
  /** The engine opens matchers through this port from now on, and through no earlier one. */
  | { kind: "serve"; port: MessagePort };

export type FromGrammarThread =
  /** The vocabulary is loaded, and compiling has begun. */
  | { kind: "begun"; id: number }
  | { kind: "prepared"; id: number }
  /** `isBroken`: xgrammar gave no reason, so it may have run out of memory. */
  | { kind: "failed"; id: number; message: string; isBroken: boolean };

/** From the engine Worker to the serving thread. */
export type ToMatchers =
  | { kind: "open"; id: number; grammar: Grammar; mask: SharedArrayBuffer }
  | { kind: "accept"; id: number; token: number }
  | { kind: "close"; id: number };

/**
 * A token mask in shared memory: first the number of accepted tokens it applies after, plus one, or
 * MASK_FAILED; then a bit for each token of the vocabulary.
 */
export function makeMask(size: number): SharedArrayBuffer {
  return new SharedArrayBuffer(MASK_HEADER + Math.ceil(size / 32) * 4);
}

export const MASK_HEADER = 4;
export const MASK_FAILED = -1;

/**
 * The status of a grammar thread in shared memory: `GONE` is 1 once the thread has ended, `WORK` counts what it
 * begins and ends, so it is odd while the thread compiles or computes a mask.
 */
export const GONE = 0;
export const WORK = 1;
export const makeStatus = () => new SharedArrayBuffer(8);
