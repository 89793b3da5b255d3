// An event queue for one reader: pushed as events arrive, and read at the reader's own pace.

/** The reader fell too far behind. */
export class SlowReaderError extends Error {
  override name = "SlowReaderError";

  constructor() {
    super("the stream was read too slowly");
  }
}

export class EventStream<T> implements AsyncIterableIterator<T> {
  readonly #queue: T[] = [];
  readonly #onLeave: () => void;
  readonly #maxBacklog: number;
  /** Resolved by the next event, or at the end. */
  #arrival: PromiseWithResolvers<void> | undefined;
  #end: { error: Error | undefined } | undefined;
  readonly #over = Promise.withResolvers<void>();

  /** `onLeave` is called if the reader stops before the end, or falls behind by more than `maxBacklog`. */
  constructor(onLeave: () => void, maxBacklog = Number.POSITIVE_INFINITY) {
    this.#onLeave = onLeave;
    this.#maxBacklog = maxBacklog;
  }

  /** Number of unread events. */
  get backlog(): number {
    return this.#queue.length;
  }

  /** Resolves when the source has ended, which may be long after the reader has left. */
  get over(): Promise<void> {
    return this.#over.promise;
  }

  push(event: T): void {
    if (this.#end) return;
    this.#queue.push(event);
    if (this.backlog > this.#maxBacklog) this.leave(new SlowReaderError());
    this.#wake();
  }

  /** Ends the stream from the side of the source: the reader gets the unread events, then the error, if any. */
  end(error?: Error): void {
    this.#stop(error);
    this.#over.resolve();
  }

  /** Ends the stream for the reader: drops unread events, and lets reads throw the error. */
  leave(error?: Error): void {
    this.#queue.length = 0;
    if (this.#end) return;
    this.#stop(error);
    this.#onLeave();
  }

  #stop(error: Error | undefined): void {
    this.#end ??= { error };
    this.#wake();
  }

  /** Waits for events and returns all unread ones; an empty array at the end. */
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

  /** Whether a read must wait. Throws the error once the stream has ended with one. */
  get #isWaiting(): boolean {
    if (this.#queue.length > 0) return false;
    if (this.#end?.error) throw this.#end.error;
    return this.#end === undefined;
  }

  /** Resolves at the next event, or at the end. */
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
