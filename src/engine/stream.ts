// Events on their way to one reader: pushed as they come, read as fast as the reader likes.

/** The reader has fallen too far behind. */
export class SlowReaderError extends Error {
  override name = "SlowReaderError";

  constructor() {
    super("the stream was not read");
  }
}

export class EventStream<T> implements AsyncIterableIterator<T> {
  readonly #queue: T[] = [];
  readonly #onLeave: () => void;
  readonly #maxBacklog: number;
  readonly #ended = Promise.withResolvers<void>();
  /** What reads that found nothing wait for. */
  #arrival: PromiseWithResolvers<void> | undefined;
  #end: { error: Error | undefined } | undefined;

  /** `onLeave` is called when the reader stops before the end, or falls further behind than it may. */
  constructor(onLeave: () => void, maxBacklog = Number.POSITIVE_INFINITY) {
    this.#onLeave = onLeave;
    this.#maxBacklog = maxBacklog;
  }

  /** Events that were not read yet. */
  get backlog(): number {
    return this.#queue.length;
  }

  /** Settles when the stream is over, however it ended. */
  get ended(): Promise<void> {
    return this.#ended.promise;
  }

  push(event: T): void {
    this.#queue.push(event);
    if (this.backlog > this.#maxBacklog) this.leave(new SlowReaderError());
    this.#wake();
  }

  /** No more events come; the reader gets those that are there, then the error if there is one. */
  end(error?: Error): void {
    this.#end ??= { error };
    this.#ended.resolve();
    this.#wake();
  }

  /** Ends it from this side: what is not read yet is dropped, and the reader gets the error. */
  leave(error?: Error): void {
    this.#queue.length = 0;
    if (this.#end) return;
    this.end(error);
    this.#onLeave();
  }

  /** All that has come since the last read, once there is something; nothing at the end. */
  async read(): Promise<T[]> {
    while (this.#isWaiting) await this.#arrived();
    return this.#queue.splice(0);
  }

  async next(): Promise<IteratorResult<T>> {
    while (this.#isWaiting) await this.#arrived();
    if (this.#queue.length === 0) return { done: true, value: undefined };
    return { done: false, value: this.#queue.shift()! };
  }

  async return(): Promise<IteratorResult<T>> {
    this.leave();
    return { done: true, value: undefined };
  }

  /** Whether there is nothing to read, and something may come. Throws at an end with an error. */
  get #isWaiting(): boolean {
    if (this.#queue.length > 0) return false;
    if (this.#end?.error) throw this.#end.error;
    return this.#end === undefined;
  }

  /** Settles with the next event, or at the end. */
  #arrived(): Promise<void> {
    this.#arrival ??= Promise.withResolvers<void>();
    return this.#arrival.promise;
  }

  #wake(): void {
    this.#arrival?.resolve();
    this.#arrival = undefined;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
