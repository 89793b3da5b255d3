// Runs all batches of a server. Their lines use the capacity that other requests leave; API keys share it evenly.
import type { Batch, BatchOrder } from "./batch.ts";
import { isEnded } from "./batch.ts";
import { BatchRun, type RunOptions } from "./batch-run.ts";
import { BatchStore } from "./store.ts";

export type BatchesOptions = RunOptions & {
  folder: string;
  /** Returns how many lines may be in flight at present, of all keys together. */
  places(): number;
  /** Returns how many lines of one API key may be in flight. */
  placesOf(owner: string): number;
};

/** Polling interval while no line may be started. */
const NO_PLACE_MS = 1000;
/** Interval at which expired files are removed. */
const SWEEP_MS = 60_000;

export class Batches {
  readonly store: BatchStore;
  readonly #options: BatchesOptions;
  readonly #runs = new Map<string, BatchRun>();
  readonly #ends = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  readonly #sweep: NodeJS.Timeout;
  #later: NodeJS.Timeout | undefined;

  /** Resumes unfinished batches. Throws StoreBusyError if another process uses the folder. */
  constructor(options: BatchesOptions) {
    this.#options = options;
    this.store = new BatchStore(options.folder);
    this.#sweep = setInterval(() => this.#removeUnused(), SWEEP_MS).unref();
    for (const batch of this.store.unfinished()) this.#begin(batch);
  }

  get endpoints(): readonly string[] {
    return this.#options.endpoints;
  }

  create(order: BatchOrder): Batch {
    const batch = this.store.addBatch(order);
    this.#begin(batch);
    return batch;
  }

  /** Cancels a batch, unless it has ended or is already being finalized or cancelled. */
  cancel(batch: Batch): Batch {
    if (isEnded(batch) || batch.status === "cancelling" || batch.status === "finalizing") {
      return batch;
    }
    const cancelling = this.store.advance(batch.id, "cancelling");
    this.#runs.get(batch.id)?.interrupt();
    return cancelling;
  }

  /** Resolves once all batches have ended. */
  async finished(): Promise<void> {
    while (this.#ends.size > 0) await Promise.all(this.#ends);
  }

  /** Stops all batches. Lines in flight are dropped, and answered after the next start. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#sweep);
    clearTimeout(this.#later);
    for (const run of this.#runs.values()) run.interrupt();
    await this.finished();
    this.store.close();
  }

  /** Removes expired files; after an error, such as a full disk, the next sweep tries again. */
  #removeUnused(): void {
    try {
      this.store.removeUnused();
    } catch (error) {
      this.#options.onError(undefined, error);
    }
  }

  #startLater(): void {
    this.#later ??= setTimeout(() => {
      this.#later = undefined;
      this.#startLines();
    }, NO_PLACE_MS);
  }

  #begin(batch: Batch): void {
    const run = new BatchRun(batch, this.store, this.#options, this.#stopping.signal, () =>
      this.#startLines(),
    );
    this.#runs.set(batch.id, run);
    const end = run.run().finally(() => {
      this.#runs.delete(batch.id);
      this.#ends.delete(end);
    });
    this.#ends.add(end);
  }

  #startLines(): void {
    if (this.#stopping.signal.aborted) return;
    const runs = [...this.#runs.values()];
    // If no line is in flight, no end of a line will trigger the next start, so polls for capacity.
    if (sum(runs) === 0 && this.#options.places() === 0) this.#startLater();
    while (sum(runs) < this.#options.places()) {
      // Chooses the key with the fewest lines in flight, and its oldest batch.
      const lines = Map.groupBy(runs, ({ owner }) => owner);
      const [next] = runs
        .filter(({ owner }) => sum(lines.get(owner)!) < this.#options.placesOf(owner))
        .filter(({ hasNext }) => hasNext)
        .sort((a, b) => sum(lines.get(a.owner)!) - sum(lines.get(b.owner)!));
      if (!next) return;
      next.startNext();
    }
  }
}

function sum(runs: readonly BatchRun[]): number {
  return runs.reduce((count, { inFlight }) => count + inFlight, 0);
}
