// The bytes of one connection, both ways. Input is buffered until it is wanted, and the socket paused when
// that is much, so that the client has to wait. Output waits until the client has taken it.

/** `late`: nothing has come in time. */
export type Arrival = "more" | "end" | "late";

/** Input that nothing has asked for; what a client sends behind a request that is being answered. */
const MAX_UNREAD_BYTES = 2 ** 16;
/** How much a client may still send after the last answer, and for how long. It may read the answer only then. */
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
  /** Called when the client will send no more, though it may still read. */
  onEnd = () => {};
  /** Called when the connection is closed. */
  onGone = () => {};

  /** Output of which the client takes nothing for `idleMs` closes the connection. */
  constructor(socket: Bun.Socket<unknown>, idleMs: number) {
    this.#socket = socket;
    this.#idleMs = idleMs;
  }

  /** Whether the client will send no more. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  get isGone(): boolean {
    return this.#isGone;
  }

  /** The input that has not been taken. */
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

  /** Waits for input besides that which is there. */
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

  /** Returns when the system has taken the bytes; false if the client is gone. */
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
   * Sends an interim response: the answer to `Expect: 100-continue`. The clients that may close their side
   * while they wait skip it if they did not ask for it; from the system of one that is gone a reset comes back.
   */
  writeContinue(): void {
    // So few bytes do not fit only if a client has left megabytes of earlier answers unread.
    if (this.#socket.write(CONTINUE) !== CONTINUE.length) this.destroy();
  }

  /**
   * Closes it when the client has had the chance to read the last answer. If it were closed while the client
   * sends, the system would reset the connection, and the client might never see the answer.
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

  /** Closes it; the client still gets what was written. */
  hangUp(): void {
    if (!this.#isGone) this.#socket.end();
    this.closed();
  }

  /** Resets it, so that the client does not take what it got for all there is. */
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

  /** To be called now and then: ends waits that are over. */
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
