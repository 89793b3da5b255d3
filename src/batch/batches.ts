// All batches of a server. Their lines fill the places that other requests leave free; keys take turns.
import type { Batch, BatchOrder } from "./batch.ts";
import { isEnded } from "./batch.ts";
import { BatchRun, type RunOptions } from "./batch-run.ts";
import { BatchStore } from "./store.ts";

export type BatchesOptions = RunOptions & {
  folder: string;
  /** How many lines may be in flight now. */
  places(): number;
  /** And how many of one key. */
  placesOf(owner: string): number;
};

/** When to look again for places, if there is none at all. */
const NO_PLACE_MS = 1000;
/** How often expired files are removed. */
const SWEEP_MS = 60_000;

export class Batches {
  readonly store: BatchStore;
  readonly #options: BatchesOptions;
  readonly #runs = new Map<string, BatchRun>();
  readonly #ends = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  readonly #sweep: NodeJS.Timeout;
  #later: NodeJS.Timeout | undefined;

  /** Goes on with unfinished batches. Throws StoreBusyError if another process has them. */
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

  /** A batch that has ended, or is about to, stays as it is. */
  cancel(batch: Batch): Batch {
    if (isEnded(batch) || batch.status === "cancelling" || batch.status === "finalizing") {
      return batch;
    }
    const cancelling = this.store.advance(batch.id, "cancelling");
    this.#runs.get(batch.id)?.interrupt();
    return cancelling;
  }

  /** Returns when no batch is unfinished. */
  async finished(): Promise<void> {
    while (this.#ends.size > 0) await Promise.all(this.#ends);
  }

  /** Lines in flight are dropped, and answered after the next start. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    clearInterval(this.#sweep);
    clearTimeout(this.#later);
    for (const run of this.#runs.values()) run.interrupt();
    await this.finished();
    this.store.close();
  }

  /** What cannot be removed, as on a full disk, stays until the next sweep. */
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
    // There is no line whose end would start others.
    if (sum(runs) === 0 && this.#options.places() === 0) this.#startLater();
    while (sum(runs) < this.#options.places()) {
      // Keys take turns; of one key's batches the oldest goes first.
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
