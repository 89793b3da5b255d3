// The main thread's side of grammars. A client's grammar is first compiled on a trial thread, with limits on time and
// memory. Only a grammar that compiled there is passed to a serving thread of the engine. API keys are spread over
// several serving threads ("lanes"), because a thread that compiles or computes a mask delays all its other masks.
import { createHash } from "node:crypto";
import type { Grammar } from "./grammar.ts";
import { GrammarError, GrammarThreadError } from "./grammar-error.ts";
import { GrammarThread } from "./grammar-thread.ts";
import type { MatcherLink } from "./matchers.ts";
import { Trial } from "./trial.ts";
import { type GrammarClient, TrialQueue } from "./trial-queue.ts";

export type GrammarLimits = {
  /** Maximum compile time in a trial. */
  compileMs: number;
  /** Maximum time per compile or mask on a serving thread. */
  serveMs: number;
  /** Maximum characters of a grammar. */
  characters: number;
  /** Maximum queued trials per API key. */
  waiting: number;
  /** Maximum bytes of cached compiled grammars, over all threads. */
  keptBytes: number;
};

const grammarLimits: GrammarLimits = {
  // Compiling a coding agent's tools takes about 2 s, or 6 s with a large vocabulary; several times that under load.
  compileMs: 15_000,
  serveMs: 30_000,
  characters: 256 * 1024,
  waiting: 64,
  keptBytes: 256 * 2 ** 20,
};

/** A grammar thread that serves the engine through one link: a new link closes the previous one. */
export type ServingThread = { connect(): MatcherLink };

/** Provides the serving threads; the engine asks for one whenever it submits a constrained request. */
export type MatcherSource = { servingThread(lane: number): ServingThread };

/** The engine, which gets its serving threads from the attached source. */
export type MatcherUser = { attach(source: MatcherSource): void };

/** Number of trial threads; each holds a vocabulary of tens of megabytes. */
const TRIALS = 2;
const LANES = 4;
/** Maximum remembered hashes of grammars that compiled in a trial. */
const MAX_PROVEN = 4096;

export class Grammars {
  readonly #limits: GrammarLimits;
  readonly #proven = new Set<string>();
  readonly #trials: readonly Trial[];
  readonly #queue: TrialQueue;
  /** Serving threads; a lane is an index of this array. */
  readonly #serving: GrammarThread[] = [];
  /** Lane (index of the serving thread) of each API key. */
  readonly #lanes = new Map<string, number>();

  constructor(limits: Partial<GrammarLimits> = {}) {
    this.#limits = { ...grammarLimits, ...limits };
    const { compileMs, waiting } = this.#limits;
    this.#trials = Array.from({ length: TRIALS }, () => new Trial(compileMs));
    this.#queue = new TrialQueue(this.#trials, waiting);
  }

  /** Tries a client's grammar and compiles it for the engine; resolves to the serving thread's index. */
  async prepare(grammar: Grammar, engine: MatcherUser, client: GrammarClient): Promise<number> {
    const { characters } = this.#limits;
    if (grammar.format.length > characters) {
      throw new GrammarError(`it is longer than ${characters} characters`);
    }
    await this.#try(grammar, client);
    // If there are more keys than serving threads, keys share threads.
    const lane = this.#lanes.getOrInsert(client.key, this.#lanes.size % LANES);
    const { signal } = client;
    if (
      !(await this.#serve(grammar, lane, signal)) &&
      !(await this.#serve(grammar, lane, signal))
    ) {
      throw new GrammarThreadError();
    }
    engine.attach(this);
    return lane;
  }

  /** Returns the serving thread with this index; a thread that has exited is replaced. */
  servingThread(lane: number): GrammarThread {
    const { keptBytes, serveMs } = this.#limits;
    if (this.#serving[lane]?.ended !== false) {
      this.#serving[lane] = new GrammarThread({ maxBytes: keptBytes / LANES, maxWorkMs: serveMs });
    }
    return this.#serving[lane];
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#trials, ...this.#serving].map((each) => each?.end()));
  }

  async #try(grammar: Grammar, client: GrammarClient): Promise<void> {
    const id = createHash("sha256").update(JSON.stringify(grammar)).digest("base64");
    if (this.#proven.has(id)) return;
    await this.#queue.compile(id, grammar, client);
    this.#proven.add(id);
    const [oldest] = this.#proven;
    if (this.#proven.size > MAX_PROVEN) this.#proven.delete(oldest!);
  }

  /** Compiles on the serving thread. If that fails after a successful trial, ends the thread and returns false. */
  async #serve(grammar: Grammar, lane: number, signal: AbortSignal | undefined): Promise<boolean> {
    const thread = this.servingThread(lane);
    try {
      await thread.prepare(grammar, { signal });
      return true;
    } catch {
      signal?.throwIfAborted();
      await thread.end();
      return false;
    }
  }
}
