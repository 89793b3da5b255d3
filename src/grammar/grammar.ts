// A grammar, and what is said about it between threads. Nothing here touches the grammar engine: the HTTP
// side makes grammars, the engine Worker passes them on, the grammar threads compile them.
import type { MessagePort } from "node:worker_threads";

/** The tokens that a grammar speaks of. */
export type Vocabulary = {
  /** Where the model is. */
  path: string;
  /** How many logits it gives. */
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
   * A structural-tag format of xgrammar, as JSON. Of its JSON schemas as much is enforced as can be: only
   * those that stand in `strict` too are refused where that is not all.
   */
  format: string;
  /** As JSON. */
  strict: readonly string[];
};

export type ToGrammarThread =
  /** Compile it, or find it compiled. */
  | { kind: "prepare"; id: number; grammar: Grammar }
  /** The engine opens matchers through this port from now on, and through no earlier one. */
  | { kind: "serve"; port: MessagePort };

export type FromGrammarThread =
  /** The vocabulary is there, and the compiler is at work. */
  | { kind: "begun"; id: number }
  | { kind: "prepared"; id: number }
  /** `isBroken`: the library has not said why, and may be left without room to work. */
  | { kind: "failed"; id: number; message: string; isBroken: boolean };

/** From the engine Worker to the thread that serves. */
export type ToMatchers =
  | { kind: "open"; id: number; grammar: Grammar; mask: SharedArrayBuffer }
  | { kind: "accept"; id: number; token: number }
  | { kind: "close"; id: number };

/**
 * A mask in shared memory: how many tokens it comes after plus one, or MASK_FAILED; then a bit for each
 * token of the vocabulary.
 */
export function makeMask(size: number): SharedArrayBuffer {
  return new SharedArrayBuffer(MASK_HEADER + Math.ceil(size / 32) * 4);
}

export const MASK_HEADER = 4;
export const MASK_FAILED = -1;

/** What the serving thread is about, in shared memory: 1 in `COMPILING` while masks must wait. */
export const COMPILING = 0;
/** 1 in `GONE` when the thread has ended. */
export const GONE = 1;
export const makeStatus = () => new SharedArrayBuffer(8);
