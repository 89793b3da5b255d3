// The grammars that wait for their trial. A grammar that several clients wait for is compiled once; one that
// nobody waits for any longer is not compiled. Higher levels go first. Within a level keys take turns: the key
// whose last turn is the longest ago is next, and a key has at most one trial at a time. So while there are
// fewer other keys than threads a grammar never waits for theirs, and otherwise for one compile of a thread.
import type { Grammar, Vocabulary } from "./grammar.ts";
import { GrammarsBusyError } from "./grammar-error.ts";

/** Who waits for a grammar. */
export type GrammarClient = {
  /** The name of the API key. */
  key: string;
  /** A higher one goes first. */
  level: number;
  /** Aborted when the client leaves. */
  signal?: AbortSignal | undefined;
};

export type TrialThread = {
  /** `abandoned` ends the compile, and the thread with it. */
  compile(grammar: Grammar, abandoned: AbortSignal, onBegun: () => void): Promise<void>;
  /** Ahead of the first compile for this vocabulary. */
  load(vocabulary: Vocabulary): void;
};

type Trial = {
  readonly id: string;
  readonly grammar: Grammar;
  readonly clients: Set<GrammarClient>;
  readonly done: PromiseWithResolvers<void>;
  readonly abandoned: AbortController;
  /** The key whose turn it is run in. */
  turnOf?: string;
};

export class TrialQueue {
  /** Waiting and running, in order of arrival. */
  readonly #trials = new Map<string, Trial>();
  /** The one used last comes first. */
  readonly #idle: TrialThread[];
  readonly #most: number;
  /** Keys that had a turn, the longest ago first. */
  readonly #turns = new Set<string>();

  /** `most`: the grammars of one key that can run and wait. */
  constructor(threads: readonly TrialThread[], most: number) {
    this.#idle = [...threads];
    this.#most = most;
  }

  /** Returns when the grammar has compiled; `id` tells grammars apart. */
  async compile(id: string, grammar: Grammar, client: GrammarClient): Promise<void> {
    const { signal } = client;
    signal?.throwIfAborted();
    const trial = this.#trials.get(id) ?? this.#add(id, grammar, client);
    trial.clients.add(client);
    const left = Promise.withResolvers<never>();
    const leave = () => {
      trial.clients.delete(client);
      if (trial.clients.size === 0) this.#abandon(trial);
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

  #add(id: string, grammar: Grammar, { key }: GrammarClient): Trial {
    const isOwn = ({ clients }: Trial) => [...clients].some((client) => client.key === key);
    const own = [...this.#trials.values()].filter(isOwn);
    if (own.length >= this.#most) throw new GrammarsBusyError();
    const trial: Trial = {
      id,
      grammar,
      clients: new Set(),
      done: Promise.withResolvers(),
      abandoned: new AbortController(),
    };
    // All its clients may have left when it fails.
    trial.done.promise.catch(() => {});
    this.#trials.set(id, trial);
    return trial;
  }

  #waiting(): Trial[] {
    return [...this.#trials.values()].filter(({ turnOf }) => turnOf === undefined);
  }

  #abandon(trial: Trial): void {
    if (trial.turnOf === undefined) this.#trials.delete(trial.id);
    else this.#startNext();
  }

  #startNext(): void {
    for (let next = this.#next(); next; next = this.#next()) {
      const thread = this.#idle.shift();
      if (!thread) {
        this.#endAbandoned();
        return;
      }
      next.trial.turnOf = next.client.key;
      this.#turns.delete(next.client.key);
      this.#turns.add(next.client.key);
      void this.#run(next.trial, thread);
    }
  }

  /** The client whose turn it is. */
  #next(): { trial: Trial; client: GrammarClient } | undefined {
    const busy = new Set([...this.#trials.values()].map(({ turnOf }) => turnOf));
    const order = new Map([...this.#turns].map((key, i) => [key, i]));
    const turn = ({ key }: GrammarClient) => order.get(key) ?? -1;
    return this.#waiting()
      .flatMap((trial) => [...trial.clients].map((client) => ({ trial, client })))
      .filter(({ client }) => !busy.has(client.key))
      .sort((a, b) => b.client.level - a.client.level || turn(a.client) - turn(b.client))
      .at(0);
  }

  /** Only while somebody waits for its thread: another thread has to load the vocabulary first. */
  #endAbandoned(): void {
    const running = this.#trials.values().filter(({ turnOf }) => turnOf !== undefined);
    const trial = running.find(({ clients }) => clients.size === 0);
    if (!trial) return;
    // A client that sends the same grammar from now on begins anew.
    this.#trials.delete(trial.id);
    trial.abandoned.abort();
  }

  async #run(trial: Trial, thread: TrialThread): Promise<void> {
    const { id, grammar, abandoned, done } = trial;
    // Another thread is ready by the time that another key needs it.
    const onBegun = () => this.#idle[0]?.load(grammar.vocabulary);
    try {
      await thread.compile(grammar, abandoned.signal, onBegun);
      done.resolve();
    } catch (error) {
      done.reject(error);
    }
    if (this.#trials.get(id) === trial) this.#trials.delete(id);
    this.#idle.unshift(thread);
    this.#startNext();
  }
}
