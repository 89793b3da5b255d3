// The main thread's side of grammars. A client's grammar is compiled on a trial thread first, where it can take
// neither too much time nor too much memory. Only a grammar that compiled there goes to a thread that serves
// the engine. Keys have serving threads of their own, as far as there are enough: a thread that compiles or
// computes a mask writes no other masks meanwhile.
import { createHash } from "node:crypto";
import type { Grammar } from "./grammar.ts";
import { GrammarError, GrammarThreadError } from "./grammar-error.ts";
import { GrammarThread } from "./grammar-thread.ts";
import type { MatcherLink } from "./matchers.ts";
import { Trial } from "./trial.ts";
import { type GrammarClient, TrialQueue } from "./trial-queue.ts";

export type GrammarLimits = {
  /** How long a grammar may take to compile. */
  compileMs: number;
  /** How long a serving thread may take to compile a grammar, or to compute a mask. */
  serveMs: number;
  /** Characters of a grammar. */
  characters: number;
  /** Grammars of one key that wait for their trial. */
  waiting: number;
  /** Bytes of compiled grammars that are cached, by all threads together. */
  keptBytes: number;
};

const grammarLimits: GrammarLimits = {
  // The tools of a coding agent take some 2 s, with a large vocabulary 6, on a busy machine several times that.
  compileMs: 15_000,
  serveMs: 30_000,
  characters: 256 * 1024,
  waiting: 64,
  keptBytes: 256 * 2 ** 20,
};

/** A thread that serves the engine. It has one link: a new one closes the one before. */
export type ServingThread = { connect(): MatcherLink };

/** Where the engine finds a lane's serving thread, each time it submits a constrained request. */
export type MatcherSource = { servingThread(lane: number): ServingThread };

/** The engine: it asks the source from then on. */
export type MatcherUser = { attach(source: MatcherSource): void };

/** Each has a vocabulary in memory, of tens of megabytes. */
const TRIALS = 2;
const LANES = 4;
/** Hashes of grammars that compiled on trial. */
const MAX_PROVEN = 4096;

export class Grammars {
  readonly #limits: GrammarLimits;
  readonly #proven = new Set<string>();
  readonly #trials: readonly Trial[];
  readonly #queue: TrialQueue;
  /** By lane. */
  readonly #serving: GrammarThread[] = [];
  /** The lane of each key. */
  readonly #lanes = new Map<string, number>();

  constructor(limits: Partial<GrammarLimits> = {}) {
    this.#limits = { ...grammarLimits, ...limits };
    const { compileMs, waiting } = this.#limits;
    this.#trials = Array.from({ length: TRIALS }, () => new Trial(compileMs));
    this.#queue = new TrialQueue(this.#trials, waiting);
  }

  /** Returns when the engine can answer a request with this grammar, with the lane that serves it. */
  async prepare(grammar: Grammar, engine: MatcherUser, client: GrammarClient): Promise<number> {
    const { characters } = this.#limits;
    if (grammar.format.length > characters) {
      throw new GrammarError(`it is longer than ${characters} characters`);
    }
    await this.#try(grammar, client);
    // With more keys than lanes, some share one.
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

  /** A new one where the last has ended. It compiles what it lacks. */
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

  /** The grammar compiled on trial: where it fails here the thread is at fault, and is replaced. */
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
