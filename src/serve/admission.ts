// The requests that are under way. It says who may come in, and ends whoever is left when the server does.

export type Phase = "open" | "draining";

/** One request under way. */
export type Entry = {
  /** Called when the server cannot wait for it any longer. */
  onAbort: (error: Error) => void;
  leave(): void;
};

export type Refused = "queue_full" | "draining";

/** One who does not read cannot be told to leave, and is left behind. */
const LEAVE_MS = 1000;

export class Admission {
  phase: Phase = "open";
  readonly #most: number;
  readonly #entries = new Set<Entry>();
  #onEmpty: (() => void) | undefined;

  /** As many as can run and wait. */
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

  /** Lets nobody in any more; returns when all have left, having ended those that were too slow. */
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
