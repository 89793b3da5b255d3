// The main thread's side of one grammar thread.
import { MessageChannel, type MessagePort, Worker } from "node:worker_threads";
import { grammarEntry } from "../worker-entry.ts";
import {
  type FromGrammarThread,
  GONE,
  type Grammar,
  makeStatus,
  type ToGrammarThread,
  type Vocabulary,
  WORK,
} from "./grammar.ts";
import { GrammarError } from "./grammar-error.ts";
import type { MatcherLink } from "./matchers.ts";

export type GrammarThreadOptions = {
  /** Maximum bytes of cached compiled grammars. */
  maxBytes: number;
  /** Maximum duration of one compile or mask, after which the thread is terminated. */
  maxWorkMs?: number;
};

export type PrepareOptions = {
  /** Called once the vocabulary is loaded and compilation begins. */
  onBegun?: () => void;
  /** Cancels the request; a compile already in progress continues. */
  signal?: AbortSignal | undefined;
};

type Question = { resolve(): void; reject(error: Error): void; onBegun?: (() => void) | undefined };

export class GrammarThread {
  readonly #worker: Worker;
  readonly #questions = new Map<number, Question>();
  readonly #status = makeStatus();
  readonly #watch: NodeJS.Timeout | undefined;
  #nextId = 0;
  ended = false;
  /** Number of failed compiles. */
  failures = 0;
  isBroken = false;

  constructor({ maxBytes, maxWorkMs }: GrammarThreadOptions) {
    this.#worker = new Worker(grammarEntry, { workerData: { maxBytes, status: this.#status } });
    this.#worker.on("message", (message: FromGrammarThread) => this.#receive(message));
    this.#worker.on("error", () => this.#onEnd());
    this.#worker.on("exit", () => this.#onEnd());
    // The thread must not keep the process alive.
    this.#worker.unref();
    if (maxWorkMs !== undefined) this.#watch = this.#endWhenStuck(maxWorkMs);
  }

  /** Number of unanswered requests. */
  get pending(): number {
    return this.#questions.size;
  }

  load(vocabulary: Vocabulary): void {
    this.#send({ kind: "load", vocabulary });
  }

  async prepare(grammar: Grammar, { onBegun, signal }: PrepareOptions = {}): Promise<void> {
    signal?.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const id = this.#nextId++;
    this.#questions.set(id, { resolve, reject, onBegun });
    this.#send({ kind: "prepare", id, grammar });
    const withdraw = () => {
      this.#questions.delete(id);
      this.#send({ kind: "withdraw", id });
      reject(signal!.reason);
    };
    signal?.addEventListener("abort", withdraw);
    try {
      await promise;
    } finally {
      signal?.removeEventListener("abort", withdraw);
    }
  }

  connect(): MatcherLink {
    const { port1, port2 } = new MessageChannel();
    this.#send({ kind: "serve", port: port1 }, [port1]);
    return { port: port2, status: this.#status };
  }

  async end(): Promise<void> {
    this.#onEnd();
    await this.#worker.terminate();
  }

  /** Terminates the thread if it hangs: a hung mask computation in WebAssembly receives no messages. */
  #endWhenStuck(maxWorkMs: number): NodeJS.Timeout {
    const status = new Int32Array(this.#status);
    let [last, sinceMs] = [0, 0];
    const look = () => {
      const work = Atomics.load(status, WORK);
      const now = performance.now();
      if (work !== last) [last, sinceMs] = [work, now];
      else if (work % 2 === 1 && now - sinceMs > maxWorkMs) void this.end();
    };
    return setInterval(look, maxWorkMs / 20).unref();
  }

  #send(message: ToGrammarThread, transfer: MessagePort[] = []): void {
    this.#worker.postMessage(message, transfer);
  }

  #receive(message: FromGrammarThread): void {
    const question = this.#questions.get(message.id);
    if (!question) return;
    if (message.kind === "begun") {
      question.onBegun?.();
      return;
    }
    this.#questions.delete(message.id);
    if (message.kind === "prepared") question.resolve();
    else {
      this.failures += 1;
      this.isBroken ||= message.isBroken;
      question.reject(new GrammarError(message.message));
    }
  }

  #onEnd(): void {
    clearInterval(this.#watch);
    this.ended = true;
    Atomics.store(new Int32Array(this.#status), GONE, 1);
    for (const { reject } of this.#questions.values()) {
      reject(new GrammarError("it cannot be compiled"));
    }
    this.#questions.clear();
  }
}
