// Admission of requests: bounds how many the server has at once. At shutdown it waits for them, and aborts
// the ones that take too long.

export type Phase = "open" | "draining";

/** One admitted request. */
export type Entry = {
  /** What `cancel` finds it by. */
  name: string;
  /** Called when the shutdown does not wait for it any longer. */
  onAbort: (error: Error) => void;
  leave(): void;
};

export type Refused = "queue_full" | "draining";

/** How long aborted requests may take to end. A client that does not read never notices the abort. */
const LEAVE_MS = 1000;

export class Admission {
  phase: Phase = "open";
  readonly #most: number;
  readonly #entries = new Set<Entry>();
  readonly #perClient = new Map<string, number>();
  #lines = 0;
  #onEmpty: (() => void) | undefined;

  /** `most`: the requests that can run and wait. */
  constructor(most: number) {
    this.#most = most;
  }

  get count(): number {
    return this.#entries.size;
  }

  /** Requests that are no lines of batches. */
  get others(): number {
    return this.count - this.#lines;
  }

  /**
   * A client with a name may have as many places as it leaves free: one has half of them at most, two have a
   * third each, and no one fills the queue for all others. Lines of batches take no places: they are started
   * only as the engine has room for them.
   */
  enter(client?: string, isLine = false): Entry | Refused {
    if (this.phase === "draining") return "draining";
    const own = client === undefined ? 0 : (this.#perClient.get(client) ?? 0);
    if (!isLine && own >= this.#most - this.others) return "queue_full";
    const entry: Entry = {
      name: "",
      onAbort: () => {},
      leave: () => {
        if (!this.#entries.delete(entry)) return;
        this.#add(-1, client, isLine);
        if (this.count === 0) this.#onEmpty?.();
      },
    };
    this.#entries.add(entry);
    this.#add(1, client, isLine);
    return entry;
  }

  #add(change: 1 | -1, client: string | undefined, isLine: boolean): void {
    if (isLine) this.#lines += change;
    if (isLine || client === undefined) return;
    const own = (this.#perClient.get(client) ?? 0) + change;
    if (own > 0) this.#perClient.set(client, own);
    else this.#perClient.delete(client);
  }

  /** Aborts the requests of this name; false if there is none. */
  cancel(name: string, error: Error): boolean {
    const own = [...this.#entries].filter((entry) => entry.name === name);
    for (const { onAbort } of own) onAbort(error);
    return own.length > 0;
  }

  /** Refuses new requests, and returns when all have ended; those that remain at the deadline are aborted. */
  async drain(deadlineMs: number, error: Error): Promise<void> {
    this.phase = "draining";
    if (this.count === 0) return;
    const { promise: empty, resolve } = Promise.withResolvers<void>();
    this.#onEmpty = resolve;
    let timer = setTimeout(() => {
      for (const { onAbort } of this.#entries) onAbort(error);
      timer = setTimeout(resolve, LEAVE_MS);
    }, deadlineMs);
    await empty;
    clearTimeout(timer);
  }
}
