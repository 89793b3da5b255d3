// The engine Worker's side of grammars: the token mask of each constrained answer. The grammar thread computes the
// mask concurrently with the forward pass that needs it, so it is usually ready in time.
import type { MessagePort } from "node:worker_threads";
import {
  GONE,
  type Grammar,
  MASK_FAILED,
  MASK_HEADER,
  makeMask,
  type ToMatchers,
} from "./grammar.ts";

/** Time after which an answer without a mask fails; no grammar takes as long to compile. */
const MASK_TIMEOUT_MS = 60_000;

/** Follows the grammar of one answer. */
export type Matcher = {
  /** Whether the next mask has not arrived yet but still may. */
  readonly isLate: boolean;
  /**
   * Returns a bit mask of the tokens that may come next, all zeros if the grammar has failed. Blocks until the mask
   * arrives; returns undefined if the deadline passes first.
   */
  mask(deadlineMs: number): Uint32Array | undefined;
  /** Whether the grammar is incomplete, but no token of the vocabulary can continue the answer. */
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
