// The queue of trial compiles. A grammar requested by several clients is compiled once, and not at all once all
// clients have left. Higher priority levels go first. Within a level, API keys are served round-robin, with at most
// one running trial per key: a grammar waits for other keys only if these occupy all threads, and then for at most
// one compile.
import type { Grammar, Vocabulary } from "./grammar.ts";
import { GrammarsBusyError } from "./grammar-error.ts";

/** A client that waits for a grammar. */
export type GrammarClient = {
  /** The name of the API key. */
  key: string;
  /** Priority level; higher levels go first. */
  level: number;
  /** Aborted when the client disconnects. */
  signal?: AbortSignal | undefined;
};

export type TrialThread = {
  /** Compiles a grammar; `abandoned` ends the compile and the thread. */
  compile(grammar: Grammar, abandoned: AbortSignal, onBegun: () => void): Promise<void>;
  /** Loads a vocabulary before a grammar needs it. */
  load(vocabulary: Vocabulary): void;
};

/** When a client leaves, delay before the next compile starts: clients of other waiting grammars may leave too. */
const LEAVING_MS = 50;

type Trial = {
  readonly id: string;
  readonly grammar: Grammar;
  readonly clients: Set<GrammarClient>;
  readonly done: PromiseWithResolvers<void>;
  readonly abandoned: AbortController;
};

export class TrialQueue {
  /** Waiting trials by id, in order of arrival. */
  readonly #waiting = new Map<string, Trial>();
  /** Running trials, each with the API key of the request that started it. */
  readonly #running = new Map<Trial, string>();
  readonly #idle: TrialThread[];
  readonly #most: number;
  /** API keys by the start of their last trial, the oldest first. */
  readonly #turns = new Set<string>();

  /** `most`: maximum queued and running grammars per API key. */
  constructor(threads: readonly TrialThread[], most: number) {
    this.#idle = [...threads];
    this.#most = most;
  }

  /** Resolves once the grammar has compiled; `id` identifies it. */
  async compile(id: string, grammar: Grammar, client: GrammarClient): Promise<void> {
    const { signal } = client;
    signal?.throwIfAborted();
    const trial = this.#waiting.get(id) ?? this.#runningOf(id) ?? this.#add(id, grammar, client);
    trial.clients.add(client);
    const left = Promise.withResolvers<never>();
    const leave = () => {
      trial.clients.delete(client);
      if (trial.clients.size === 0) this.#waiting.delete(id);
      setTimeout(() => this.#startNext(), LEAVING_MS);
      left.reject(signal!.reason);
    };
    signal?.addEventListener("abort", leave);
    this.#startNext();
    try {
      await Promise.race([trial.done.promise, left.promise]);
    } finally {
      signal?.removeEventListener("abort", leave);
    }
  }

  /** Finds a running trial, except for aborted ones, which have no result. */
  #runningOf(id: string): Trial | undefined {
    return this.#running.keys().find((each) => each.id === id && !each.abandoned.signal.aborted);
  }

  #add(id: string, grammar: Grammar, { key }: GrammarClient): Trial {
    const isOwn = ({ clients }: Trial) => [...clients].some((client) => client.key === key);
    const own = [...this.#waiting.values(), ...this.#running.keys()].filter(isOwn);
    if (own.length >= this.#most) throw new GrammarsBusyError();
    const trial: Trial = {
      id,
      grammar,
      clients: new Set(),
      done: Promise.withResolvers(),
      abandoned: new AbortController(),
    };
    // Prevents an unhandled rejection if all clients have left.
    trial.done.promise.catch(() => {});
    this.#waiting.set(id, trial);
    return trial;
  }

  #startNext(): void {
    while (this.#idle.length > 0) {
      const next = this.#next();
      if (!next) break;
      const { trial, key } = next;
      this.#waiting.delete(trial.id);
      this.#running.set(trial, key);
      this.#turns.delete(key);
      this.#turns.add(key);
      void this.#run(trial, this.#idle.shift()!);
    }
    this.#endAbandoned();
  }

  /** Returns the key whose turn it is, and that key's first grammar. */
  #next(): { trial: Trial; key: string } | undefined {
    const busy = new Set(this.#running.values());
    const order = new Map([...this.#turns].map((key, i) => [key, i]));
    const turn = (key: string) => order.get(key) ?? -1;
    return [...this.#waiting.values()]
      .flatMap((trial) => [...trial.clients].map(({ key, level }) => ({ trial, key, level })))
      .filter(({ key }) => !busy.has(key))
      .sort((a, b) => b.level - a.level || turn(a.key) - turn(b.key))
      .at(0);
  }

  /** Aborts compiles that no client waits for if they block others; the rest go on and keep the vocabulary loaded. */
  #endAbandoned(): void {
    const waiting = this.#waiting.values().flatMap(({ clients }) => clients);
    const keys = new Set(waiting.map(({ key }) => key));
    for (const [{ clients, abandoned }, key] of this.#running) {
      const isBlocking = keys.has(key) || (keys.size > 0 && this.#idle.length === 0);
      if (clients.size === 0 && isBlocking) abandoned.abort();
    }
  }

  async #run(trial: Trial, thread: TrialThread): Promise<void> {
    const { grammar, abandoned, done } = trial;
    let hasFailed = false;
    // Loads the vocabulary on another idle thread as well, before another key needs it there.
    const onBegun = () => this.#idle[0]?.load(grammar.vocabulary);
    try {
      await thread.compile(grammar, abandoned.signal, onBegun);
      done.resolve();
    } catch (error) {
      hasFailed = true;
      done.reject(error);
    }
    this.#running.delete(trial);
    this.#idle.unshift(thread);
    this.#startNext();
    // Puts a failed thread last: it may have been terminated, and other idle threads have a loaded vocabulary.
    if (hasFailed && this.#idle[0] === thread) this.#idle.push(this.#idle.shift()!);
  }
}
