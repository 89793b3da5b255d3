// A grammar, and the messages about it between threads. Nothing here imports xgrammar: the HTTP side creates grammars,
// the engine Worker forwards them, and grammar threads compile them.
import type { MessagePort } from "node:worker_threads";

/** Vocabulary of a model, for which a grammar is compiled. */
export type Vocabulary = {
  /** The path of the model. */
  path: string;
  /** The number of logits. */
  size: number;
  /** Tokens that end an answer; the mask allows them only where the grammar is complete. */
  stopTokens: readonly number[];
  /** Control tokens that are treated as text. All other control tokens are masked out. */
  markers: readonly string[];
};

/** Constrains the text of an answer. */
export type Grammar = {
  vocabulary: Vocabulary;
  /**
   * An xgrammar structural-tag format, as JSON. Its JSON schemas are enforced as far as possible, but a schema also
   * listed in `strict` is rejected if any part of it cannot be enforced.
   */
  format: string;
  /** JSON texts of the schemas that must be enforced completely. */
  strict: readonly string[];
};

export type ToGrammarThread =
  /** Loads a vocabulary ahead of its first grammar. */
  | { kind: "load"; vocabulary: Vocabulary }
  /** Compiles a grammar, unless it is cached. */
  | { kind: "prepare"; id: number; grammar: Grammar }
  /** Cancels a `prepare`. */
  | { kind: "withdraw"; id: number }
  /** Opens the port through which the engine opens matchers; earlier ports are closed. */
  | { kind: "serve"; port: MessagePort };

export type FromGrammarThread =
  /** The vocabulary is loaded and compilation has begun. */
  | { kind: "begun"; id: number }
  | { kind: "prepared"; id: number }
  /** Compilation failed. `isBroken`: xgrammar gave no reason, so the thread may have run out of memory. */
  | { kind: "failed"; id: number; message: string; isBroken: boolean };

/** Messages from the engine Worker to the serving thread. */
export type ToMatchers =
  | { kind: "open"; id: number; grammar: Grammar; mask: SharedArrayBuffer }
  | { kind: "accept"; id: number; token: number }
  | { kind: "close"; id: number };

/**
 * Allocates a token mask in shared memory: a header, then one bit per token of the vocabulary. The header counts the
 * masks written so far (one more than the accepted tokens), or is MASK_FAILED.
 */
export function makeMask(size: number): SharedArrayBuffer {
  return new SharedArrayBuffer(MASK_HEADER + Math.ceil(size / 32) * 4);
}

export const MASK_HEADER = 4;
export const MASK_FAILED = -1;

/**
 * Status of a grammar thread in shared memory: `GONE` is 1 once the thread has exited; `WORK` is incremented at the
 * begin and end of each compile or mask, so it is odd while the thread is busy.
 */
export const GONE = 0;
export const WORK = 1;
export const makeStatus = () => new SharedArrayBuffer(8);
