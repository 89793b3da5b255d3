// The engine Worker's side of grammars: the token mask of each constrained answer. The grammar thread
// computes a mask while the step that needs it is computed, so it is usually there in time.
import type { MessagePort } from "node:worker_threads";
import {
  GONE,
  type Grammar,
  MASK_FAILED,
  MASK_HEADER,
  makeMask,
  type ToMatchers,
} from "./grammar.ts";

/** Longer than any grammar takes to compile: an answer whose mask takes longer fails. */
const MASK_TIMEOUT_MS = 60_000;

/** Follows one answer. */
export type Matcher = {
  /** Whether the mask has not arrived and still may. */
  readonly isLate: boolean;
  /**
   * A bit for each token that is allowed after all that were accepted, none where the grammar has failed.
   * Waits for the mask until the deadline; undefined where it is late.
   */
  mask(deadlineMs: number): Uint32Array | undefined;
  /** Whether the grammar goes on, but with nothing that a token of the vocabulary begins. */
  readonly isAtDeadEnd: boolean;
  accept(token: number): void;
  close(): void;
};

/** The connection to the grammar thread. */
export type MatcherLink = { port: MessagePort; status: SharedArrayBuffer };

export class Matchers {
  readonly #port: MessagePort;
  readonly #status: Int32Array;
  #nextId = 0;

  constructor({ port, status }: MatcherLink) {
    this.#port = port;
    this.#status = new Int32Array(status);
  }

  open(grammar: Grammar): Matcher {
    const id = this.#nextId++;
    const mask = makeMask(grammar.vocabulary.size);
    const header = new Int32Array(mask, 0, 1);
    const words = new Uint32Array(mask, MASK_HEADER);
    const send = (order: ToMatchers) => this.#port.postMessage(order);
    let accepted = 0;
    let askedMs = performance.now();
    send({ kind: "open", id, grammar, mask });
    const isLate = () => {
      const state = Atomics.load(header, 0);
      if (state === accepted + 1 || state === MASK_FAILED) return false;
      return !Atomics.load(this.#status, GONE) && performance.now() < askedMs + MASK_TIMEOUT_MS;
    };
    const isRight = () => Atomics.load(header, 0) === accepted + 1;
    return {
      get isLate() {
        return isLate();
      },
      get isAtDeadEnd() {
        return isRight() && words.every((word) => word === 0);
      },
      mask: (deadlineMs) => {
        while (isLate()) {
          const leftMs = deadlineMs - performance.now();
          if (leftMs <= 0) return undefined;
          Atomics.wait(header, 0, accepted, leftMs);
        }
        return isRight() ? words.slice() : new Uint32Array(words.length);
      },
      accept: (token) => {
        accepted += 1;
        askedMs = performance.now();
        send({ kind: "accept", id, token });
      },
      close: () => send({ kind: "close", id }),
    };
  }
}
