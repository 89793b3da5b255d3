// The engine Worker's side of grammars: the token mask of each constrained answer. The grammar thread
// computes a mask while the step that needs it is computed, so it is usually there in time.
import type { MessagePort } from "node:worker_threads";
import {
  COMPILING,
  GONE,
  type Grammar,
  MASK_FAILED,
  MASK_HEADER,
  makeMask,
  type ToMatchers,
} from "./grammar.ts";

/** Longer than any grammar takes to compile: an answer whose mask takes longer fails. */
const MASK_TIMEOUT_MS = 20_000;
/** How often a waiting matcher checks that the grammar thread still runs. */
const CHECK_MS = 100;

/** Follows one answer. */
export type Matcher = {
  /** Whether the mask is still being computed. False once it never will be: then none is allowed. */
  readonly isLate: boolean;
  /** A bit for each token, after all that were accepted; waits for it. All 0 where the grammar failed. */
  allowed(): Uint32Array;
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
    let deadlineMs = performance.now() + MASK_TIMEOUT_MS;
    let isOpen = true;
    send({ kind: "open", id, grammar, mask });
    const isWaiting = () => {
      const state = Atomics.load(header, 0);
      if (state === accepted + 1 || state === MASK_FAILED) return false;
      return isOpen && !this.#isGone && performance.now() < deadlineMs;
    };
    return {
      get isLate() {
        return isWaiting();
      },
      allowed: () => {
        while (isWaiting()) Atomics.wait(header, 0, accepted, CHECK_MS);
        const isRight = Atomics.load(header, 0) === accepted + 1;
        return isRight ? words.slice() : new Uint32Array(words.length);
      },
      accept: (token) => {
        accepted += 1;
        deadlineMs = performance.now() + MASK_TIMEOUT_MS;
        send({ kind: "accept", id, token });
      },
      close: () => {
        isOpen = false;
        send({ kind: "close", id });
      },
    };
  }

  /** Whether masks are delayed by a grammar that is being compiled. */
  get isCompiling(): boolean {
    return Atomics.load(this.#status, COMPILING) === 1 && !this.#isGone;
  }

  get #isGone(): boolean {
    return Atomics.load(this.#status, GONE) === 1;
  }
}
