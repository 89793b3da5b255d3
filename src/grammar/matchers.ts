// The engine Worker's side of grammars: which tokens may come next in an answer. The grammar thread works
// that out while a step is computed; here is waited for it, where it has not come yet.
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

/** Longer than any grammar takes: past it, the answer fails. */
const PATIENCE_MS = 20_000;
/** How often is looked whether the thread is still there. */
const GLANCE_MS = 100;

/** Follows one answer. */
export type Matcher = {
  /** Whether the mask is not there yet. */
  readonly isLate: boolean;
  /** A bit a token, after all that were accepted; waits for it. None where the grammar has failed. */
  allowed(): Uint32Array;
  accept(token: number): void;
  close(): void;
};

/** The way to the thread. */
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
    let isOpen = true;
    send({ kind: "open", id, grammar, mask });
    const isReady = () => {
      const state = Atomics.load(header, 0);
      return state === accepted + 1 || state === MASK_FAILED;
    };
    return {
      get isLate() {
        return !isReady();
      },
      allowed: () => {
        const deadline = performance.now() + PATIENCE_MS;
        while (isOpen && !isReady() && performance.now() < deadline) {
          if (Atomics.load(this.#status, GONE)) break;
          Atomics.wait(header, 0, accepted, GLANCE_MS);
        }
        const isRight = Atomics.load(header, 0) === accepted + 1;
        return isRight ? words.slice() : new Uint32Array(words.length);
      },
      accept: (token) => {
        accepted += 1;
        send({ kind: "accept", id, token });
      },
      close: () => {
        isOpen = false;
        send({ kind: "close", id });
      },
    };
  }

  /** Whether masks must wait for a grammar that is being compiled. */
  get isCompiling(): boolean {
    return Atomics.load(this.#status, COMPILING) === 1;
  }
}
