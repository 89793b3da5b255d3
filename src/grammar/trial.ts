// Compiles a client's grammar for the first time, on a thread that is terminated if it takes too much time or memory,
// or if no client waits for it any longer but others are blocked. The next grammar then gets a new thread.
import type { Grammar, Vocabulary } from "./grammar.ts";
import { GrammarError } from "./grammar-error.ts";
import { GrammarThread } from "./grammar-thread.ts";
import type { TrialThread } from "./trial-queue.ts";

/** Time limit of loading a vocabulary, which takes a few seconds for 250,000 tokens. */
const LOAD_MS = 60_000;
/** Maximum failed compiles of a thread, which is then replaced, because a failed compile may leak memory. */
const MAX_FAILURES = 16;

export class Trial implements TrialThread {
  readonly #compileMs: number;
  #thread: GrammarThread | undefined;

  /** `compileMs`: maximum compile time of a grammar. */
  constructor(compileMs: number) {
    this.#compileMs = compileMs;
  }

  load(vocabulary: Vocabulary): void {
    this.#started().load(vocabulary);
  }

  async compile(grammar: Grammar, abandoned: AbortSignal, onBegun: () => void): Promise<void> {
    const thread = this.#started();
    const hadFailures = thread.failures > 0;
    const over = Promise.withResolvers<never>();
    const timeout = (ms: number) =>
      setTimeout(() => over.reject(new GrammarError("it takes too long to compile")), ms);
    let timer = timeout(LOAD_MS);
    const begun = () => {
      clearTimeout(timer);
      timer = timeout(this.#compileMs);
      onBegun();
    };
    const abandon = () => over.reject(abandoned.reason);
    abandoned.addEventListener("abort", abandon);
    try {
      await Promise.race([thread.prepare(grammar, { onBegun: begun }), over.promise]);
    } catch (error) {
      const isOver = thread.isBroken || thread.failures >= MAX_FAILURES || thread.pending > 0;
      if (isOver) await thread.end();
      // An earlier grammar may have broken the thread, so this grammar is retried on a new one.
      if (hadFailures && thread.isBroken) return await this.compile(grammar, abandoned, onBegun);
      throw error;
    } finally {
      clearTimeout(timer);
      abandoned.removeEventListener("abort", abandon);
    }
  }

  async end(): Promise<void> {
    await this.#thread?.end();
  }

  /** Returns a running thread. It caches nothing, because each grammar is tried once. */
  #started(): GrammarThread {
    if (!this.#thread || this.#thread.ended) this.#thread = new GrammarThread({ maxBytes: 0 });
    return this.#thread;
  }
}
