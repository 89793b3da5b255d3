// Events on their way to one reader: pushed as they come, read as fast as the reader likes.

export class EventStream<T> implements AsyncIterableIterator<T> {
  readonly #queue: T[] = [];
  readonly #onLeave: () => void;
  readonly #ended = Promise.withResolvers<void>();
  /** What reads that found nothing wait for. */
  #arrival: PromiseWithResolvers<void> | undefined;
  #end: { error: Error | undefined } | undefined;

  /** `onLeave` is called when the reader stops before the end. */
  constructor(onLeave: () => void) {
    this.#onLeave = onLeave;
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
    this.#wake();
  }

  /** No more events come; the reader gets those that are there, then the error if there is one. */
  end(error?: Error): void {
    this.#end ??= { error };
    this.#ended.resolve();
    this.#wake();
  }

  async next(): Promise<IteratorResult<T>> {
    while (this.#queue.length === 0) {
      if (this.#end?.error) throw this.#end.error;
      if (this.#end) return { done: true, value: undefined };
      this.#arrival ??= Promise.withResolvers<void>();
      await this.#arrival.promise;
    }
    return { done: false, value: this.#queue.shift()! };
  }

  async return(): Promise<IteratorResult<T>> {
    if (!this.#end) {
      this.end();
      this.#onLeave();
    }
    this.#queue.length = 0;
    return { done: true, value: undefined };
  }

  #wake(): void {
    this.#arrival?.resolve();
    this.#arrival = undefined;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
