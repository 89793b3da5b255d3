// Admission of requests: bounds how many the server has at once. At shutdown it waits for them, and aborts
// the ones that take too long.

export type Phase = "open" | "draining";

/** One admitted request. */
export type Entry = {
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
  #onEmpty: (() => void) | undefined;

  /** `most`: the requests that can run and wait. */
  constructor(most: number) {
    this.#most = most;
  }

  get count(): number {
    return this.#entries.size;
  }

  enter(): Entry | Refused {
    if (this.phase === "draining") return "draining";
    if (this.count >= this.#most) return "queue_full";
    const entry: Entry = {
      onAbort: () => {},
      leave: () => {
        this.#entries.delete(entry);
        if (this.count === 0) this.#onEmpty?.();
      },
    };
    this.#entries.add(entry);
    return entry;
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
