// Admission control: bounds the number of concurrent requests. At shutdown, waits for them and aborts those that take
// too long.

export type Phase = "open" | "draining";

/** An admitted request. */
export type Entry = {
  /** The request's name, by which `cancel` finds it. */
  name: string;
  /** Aborts the request; called by `cancel`, and at the deadline of a shutdown. */
  onAbort: (error: Error) => void;
  leave(): void;
};

export type Refused = "queue_full" | "draining";

/** Time for aborted requests to end at shutdown: a client that does not read never notices the abort. */
const LEAVE_MS = 1000;

export class Admission {
  phase: Phase = "open";
  readonly #most: number;
  readonly #entries = new Set<Entry>();
  readonly #perClient = new Map<string, number>();
  #lines = 0;
  #onEmpty: (() => void) | undefined;

  /** `most`: maximum number of running and waiting requests. */
  constructor(most: number) {
    this.#most = most;
  }

  get count(): number {
    return this.#entries.size;
  }

  /** Number of admitted requests other than lines of batches. */
  get others(): number {
    return this.count - this.#lines;
  }

  /**
   * Admits a request unless its client holds at least as many places as are free. One client gets half of all places,
   * two get a third each, so none fills the queue alone. Lines of batches do not count: batches limit them.
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

  /** Aborts all requests of this name; returns false if there are none. */
  cancel(name: string, error: Error): boolean {
    const own = [...this.#entries].filter((entry) => entry.name === name);
    for (const { onAbort } of own) onAbort(error);
    return own.length > 0;
  }

  /** Refuses new requests and waits until the admitted ones have ended; aborts those that remain at the deadline. */
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
