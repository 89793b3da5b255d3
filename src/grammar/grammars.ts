// The main thread's side of grammars. A client's grammar is compiled on the trial thread first, which is
// terminated when that takes too much time or memory. Only a grammar that compiled there goes to the thread
// that serves the engine.
import { createHash } from "node:crypto";
import { MessageChannel, type MessagePort, Worker } from "node:worker_threads";
import { grammarEntry } from "../worker-entry.ts";
import {
  type FromGrammarThread,
  GONE,
  type Grammar,
  makeStatus,
  type ToGrammarThread,
} from "./grammar.ts";
import type { MatcherLink } from "./matchers.ts";

/** The grammar cannot be compiled; the message is for the client that sent it. */
export class GrammarError extends Error {
  override name = "GrammarError";
}

/** Too many grammars wait to be compiled. */
export class GrammarsBusyError extends Error {
  override name = "GrammarsBusyError";

  constructor() {
    super("too many grammars wait to be compiled");
  }
}

export type GrammarLimits = {
  /** How long a grammar may take to compile. */
  compileMs: number;
  /** Characters of a grammar. */
  characters: number;
  /** Grammars that wait to be compiled. */
  waiting: number;
  /** Bytes of compiled grammars that are cached. */
  keptBytes: number;
};

export const grammarLimits: GrammarLimits = {
  compileMs: 5000,
  characters: 256 * 1024,
  waiting: 64,
  keptBytes: 256 * 2 ** 20,
};

/** The serving thread failed twice at a grammar that had compiled on trial. */
export class GrammarThreadError extends Error {
  override name = "GrammarThreadError";

  constructor() {
    super("the grammar thread has ended");
  }
}

/** A thread that serves the engine. It has one link: a new one closes the one before. */
export type ServingThread = { connect(): MatcherLink };

/** Where the engine finds the serving thread, each time it submits a constrained request. */
export type MatcherSource = { servingThread(): ServingThread };

/** The engine: it asks the source from then on. */
export type MatcherUser = { attach(source: MatcherSource): void };

/** A vocabulary of a quarter of a million tokens takes a few seconds. */
const LOAD_MS = 60_000;
/** Hashes of grammars that compiled on trial. */
const MAX_PROVEN = 4096;
/** A failed compile may leak memory: the thread is replaced after so many. */
const MAX_FAILURES = 16;

export class Grammars {
  readonly #limits: GrammarLimits;
  readonly #proven = new Set<string>();
  readonly #underWay = new Map<string, Promise<void>>();
  #trial: GrammarThread | undefined;
  #serving: GrammarThread | undefined;
  #turn: Promise<unknown> = Promise.resolve();
  #waiting = 0;

  constructor(limits: Partial<GrammarLimits> = {}) {
    this.#limits = { ...grammarLimits, ...limits };
  }

  /** Returns when the engine can answer a request with this grammar. */
  async prepare(grammar: Grammar, engine: MatcherUser): Promise<void> {
    const { characters, waiting } = this.#limits;
    if (grammar.format.length > characters) {
      throw new GrammarError(`it is longer than ${characters} characters`);
    }
    const key = createHash("sha256").update(JSON.stringify(grammar)).digest("base64");
    if (!this.#underWay.has(key)) {
      if (this.#waiting >= waiting) throw new GrammarsBusyError();
      this.#waiting += 1;
      const done = this.#compile(key, grammar).finally(() => {
        this.#waiting -= 1;
        this.#underWay.delete(key);
      });
      this.#underWay.set(key, done);
    }
    await this.#underWay.get(key);
    engine.attach(this);
  }

  /** The thread that serves the engine; a new one where the last has ended. It compiles what it lacks. */
  servingThread(): GrammarThread {
    if (!this.#serving || this.#serving.ended) {
      this.#serving = new GrammarThread(this.#limits.keptBytes);
    }
    return this.#serving;
  }

  async stop(): Promise<void> {
    await Promise.all([this.#trial?.end(), this.#serving?.end()]);
  }

  async #compile(key: string, grammar: Grammar): Promise<void> {
    if (!this.#proven.has(key)) {
      const trial = this.#turn.then(() => this.#try(grammar));
      this.#turn = trial.catch(() => {});
      await trial;
      this.#proven.add(key);
      const [oldest] = this.#proven;
      if (this.#proven.size > MAX_PROVEN) this.#proven.delete(oldest!);
    }
    if (!(await this.#serve(grammar)) && !(await this.#serve(grammar))) {
      throw new GrammarThreadError();
    }
  }

  /** The grammar compiled on trial: where it fails here the thread is at fault, and is replaced. */
  async #serve(grammar: Grammar): Promise<boolean> {
    const thread = this.servingThread();
    try {
      await thread.prepare(grammar);
      return true;
    } catch {
      await thread.end();
      return false;
    }
  }

  async #try(grammar: Grammar): Promise<void> {
    if (this.#trial?.ended) this.#trial = undefined;
    // It caches nothing: each grammar is tried once.
    this.#trial ??= new GrammarThread(0);
    const trial = this.#trial;
    const hadFailures = trial.failures > 0;
    const tooLong = Promise.withResolvers<never>();
    const timeout = (ms: number) =>
      setTimeout(() => tooLong.reject(new GrammarError("it takes too long to compile")), ms);
    let timer = timeout(LOAD_MS);
    const onBegun = () => {
      clearTimeout(timer);
      timer = timeout(this.#limits.compileMs);
    };
    try {
      await Promise.race([trial.prepare(grammar, onBegun), tooLong.promise]);
    } catch (error) {
      const isOver = trial.isBroken || trial.failures >= MAX_FAILURES || trial.pending > 0;
      if (isOver) await trial.end();
      // An earlier grammar may have broken the thread: this one gets a new thread.
      if (hadFailures && trial.isBroken) return await this.#try(grammar);
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }
}

type Question = { resolve(): void; reject(error: Error): void; onBegun?: (() => void) | undefined };

class GrammarThread implements ServingThread {
  readonly #worker: Worker;
  readonly #questions = new Map<number, Question>();
  readonly #status = makeStatus();
  #nextId = 0;
  ended = false;
  /** Grammars that could not be compiled. */
  failures = 0;
  isBroken = false;

  constructor(maxBytes: number) {
    this.#worker = new Worker(grammarEntry, { workerData: { maxBytes } });
    this.#worker.on("message", (message: FromGrammarThread) => this.#receive(message));
    this.#worker.on("error", () => this.#onEnd());
    this.#worker.on("exit", () => this.#onEnd());
    // It must not keep the process alive.
    this.#worker.unref();
  }

  /** Unanswered questions. */
  get pending(): number {
    return this.#questions.size;
  }

  prepare(grammar: Grammar, onBegun?: () => void): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const id = this.#nextId++;
    this.#questions.set(id, { resolve, reject, onBegun });
    this.#send({ kind: "prepare", id, grammar });
    return promise;
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
    this.ended = true;
    Atomics.store(new Int32Array(this.#status), GONE, 1);
    for (const { reject } of this.#questions.values()) {
      reject(new GrammarError("it cannot be compiled"));
    }
    this.#questions.clear();
  }
}
