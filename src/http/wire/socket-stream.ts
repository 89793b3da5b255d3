// The bytes of one connection. Input is buffered until it is read; when the buffer is large, the socket is paused for
// backpressure. Output waits until the client has read.

/** Outcome of waiting for input. `late`: nothing arrived before the deadline. */
export type Arrival = "more" | "end" | "late";

/** Maximum buffered input, such as pipelined requests. */
const MAX_UNREAD_BYTES = 2 ** 16;
/** Maximum bytes and time of input read before closing: a client may read the response only after sending all. */
const [LINGER_BYTES, LINGER_MS] = [2 ** 24, 5000];

const CONTINUE = Buffer.from("HTTP/1.1 100 Continue\r\n\r\n");
const EMPTY: Buffer = Buffer.alloc(0);

type Waiter<T> = { deadlineMs: number; resolve(outcome: T): void };

export class SocketStream {
  readonly #socket: Bun.Socket<unknown>;
  readonly #idleMs: number;
  #input = EMPTY;
  #isPaused = false;
  #hasEnded = false;
  #isGone = false;
  #reader: Waiter<Arrival> | undefined;
  #writer: Waiter<boolean> | undefined;
  /** Called when the client has closed its sending side; it may still read. */
  onEnd = () => {};
  /** Called when the connection is closed. */
  onGone = () => {};

  /** Reads and writes a socket; resets the connection if the client reads no output for `idleMs`. */
  constructor(socket: Bun.Socket<unknown>, idleMs: number) {
    this.#socket = socket;
    this.#idleMs = idleMs;
  }

  /** Whether the client has closed its sending side. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  get isGone(): boolean {
    return this.#isGone;
  }

  /** Input that has arrived and was not taken yet. */
  get input(): Buffer {
    return this.#input;
  }

  take(count: number): Buffer {
    const taken = this.#input.subarray(0, count);
    this.#input = this.#input.subarray(count);
    return taken;
  }

  takeAll(): Buffer {
    const taken = this.#input;
    this.#input = EMPTY;
    return taken;
  }

  /** Waits until more input arrives. */
  more(timeoutMs: number): Promise<Arrival> {
    if (this.#hasEnded || this.#isGone) return Promise.resolve("end");
    if (this.#isPaused) {
      this.#isPaused = false;
      this.#socket.resume();
    }
    const { promise, resolve } = Promise.withResolvers<Arrival>();
    this.#reader = { resolve, deadlineMs: performance.now() + timeoutMs };
    return promise;
  }

  /** Writes bytes; resolves once the system has accepted them, to false if the client is gone. */
  async write(bytes: Uint8Array): Promise<boolean> {
    let rest = bytes;
    let deadlineMs: number | undefined;
    while (!this.#isGone) {
      const written = this.#socket.write(rest);
      if (written === rest.length) return true;
      if (written > 0) rest = rest.subarray(written);
      if (written > 0 || !deadlineMs) deadlineMs = performance.now() + this.#idleMs;
      if (written < 0 || !(await this.#isDrained(deadlineMs))) this.destroy();
    }
    return false;
  }

  /**
   * Sends 100 Continue, either because the client's `Expect` header requests it or as a probe. A client that still
   * reads ignores it; the system of a client that is gone replies with a reset.
   */
  writeContinue(): void {
    // These few bytes fit, unless the client has left megabytes of output unread.
    if (this.#socket.write(CONTINUE) !== CONTINUE.length) this.destroy();
  }

  /**
   * Closes the connection after the client had a chance to read the last answer. Closing while the client sends would
   * reset the connection, and the client might lose the answer.
   */
  async close(): Promise<void> {
    this.#socket.shutdown();
    const untilMs = performance.now() + LINGER_MS;
    let left = LINGER_BYTES - this.takeAll().length;
    while (left > 0 && (await this.more(untilMs - performance.now())) === "more") {
      left -= this.takeAll().length;
    }
    this.hangUp();
  }

  /** Closes the connection; output already written is still delivered. */
  hangUp(): void {
    if (!this.#isGone) this.#socket.end();
    this.closed();
  }

  /** Resets the connection, so that the client does not mistake a partial response for a complete one. */
  destroy(): void {
    if (!this.#isGone) this.#socket.terminate();
    this.closed();
  }

  received(bytes: Buffer): void {
    this.#input = this.#input.length === 0 ? bytes : Buffer.concat([this.#input, bytes]);
    if (this.#reader) {
      this.#wakeReader("more");
    } else if (this.#input.length >= MAX_UNREAD_BYTES && !this.#isPaused) {
      this.#isPaused = true;
      this.#socket.pause();
    }
  }

  ended(): void {
    this.#hasEnded = true;
    this.#wakeReader("end");
    this.onEnd();
  }

  drained(): void {
    this.#wakeWriter(true);
  }

  closed(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.#wakeReader("end");
    this.#wakeWriter(false);
    this.onGone();
  }

  /** Ends the pending read or write if its deadline has passed; called periodically. */
  checkTime(nowMs: number): void {
    if (this.#reader && nowMs >= this.#reader.deadlineMs) this.#wakeReader("late");
    if (this.#writer && nowMs >= this.#writer.deadlineMs) this.#wakeWriter(false);
  }

  #isDrained(deadlineMs: number): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#writer = { resolve, deadlineMs };
    return promise;
  }

  #wakeReader(arrival: Arrival): void {
    this.#reader?.resolve(arrival);
    this.#reader = undefined;
  }

  #wakeWriter(isReady: boolean): void {
    this.#writer?.resolve(isReady);
    this.#writer = undefined;
  }
}
