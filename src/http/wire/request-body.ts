// The body of one request, read from its connection on demand; reading fails if the client sends too slowly.
import { BodyDecoder } from "./body-decoder.ts";
import { RequestFault } from "./request-fault.ts";
import type { RequestHead } from "./request-head.ts";
import type { SocketStream } from "./socket-stream.ts";

/** Maximum unread bytes of a body that are dropped to keep the connection open; it is closed if more are left. */
const MAX_SKIPPED_BYTES = 2 ** 16;
/** Bytes decoded before yielding to the event loop: decoding is slow if a body consists of one-byte chunks. */
const MAX_DECODED_BYTES = 2 ** 16;
/** Minimum bytes per window of `SLOW_WINDOW` idle timeouts; a client that sends less is timed out. */
const SLOW_BYTES = 1024;
const SLOW_WINDOW = 4;

export class RequestBody {
  readonly #stream: SocketStream;
  readonly #idleMs: number;
  readonly #decoder: BodyDecoder;
  /** Whether the client waits for 100 Continue before it sends the body. */
  #owesContinue: boolean;
  #hasFailed = false;
  #window = { startMs: performance.now(), bytes: 0 };

  constructor(head: RequestHead, stream: SocketStream, idleMs: number) {
    this.#stream = stream;
    this.#idleMs = idleMs;
    this.#decoder = new BodyDecoder(head.framing);
    this.#owesContinue = head.expectsContinue;
  }

  /** Returns the body as a stream that reads nothing before the handler does. */
  readable(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const payload = await this.#read();
          if (payload) controller.enqueue(payload);
          else controller.close();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Whether the connection can be used for another request after `skip`. */
  get canSkip(): boolean {
    if (this.#decoder.isDone) return true;
    if (this.#hasFailed || this.#owesContinue) return false;
    const { left } = this.#decoder;
    return left === undefined ? this.#endsInInput() : left <= MAX_SKIPPED_BYTES;
  }

  /** Reads and drops the rest of the body; returns false if it does not arrive. */
  async skip(): Promise<boolean> {
    try {
      while (await this.#read());
      return true;
    } catch {
      return false;
    }
  }

  /** Reads the next piece of the payload; returns undefined at the end. */
  async #read(): Promise<Uint8Array | undefined> {
    try {
      while (!this.#decoder.isDone) {
        if (this.#stream.input.length === 0) await this.#more();
        const payload = this.#decodeInput();
        const isMore = !this.#decoder.isDone && this.#stream.input.length > 0;
        if (isMore) await new Promise((resolve) => setImmediate(resolve));
        if (payload.length > 0) return payload;
      }
      return undefined;
    } catch (error) {
      this.#hasFailed = true;
      throw error;
    }
  }

  #decodeInput(): Uint8Array {
    const bytes = this.#stream.input.subarray(0, MAX_DECODED_BYTES);
    this.#owesContinue = false;
    const { payload, rest } = this.#decoder.decode(bytes);
    const taken = bytes.length - rest.length;
    this.#stream.take(taken);
    this.#window.bytes += taken;
    return payload;
  }

  /** Returns whether a chunked body's last chunk has already arrived. */
  #endsInInput(): boolean {
    try {
      this.#decodeInput();
    } catch {
      this.#hasFailed = true;
    }
    return this.#decoder.isDone;
  }

  async #more(): Promise<void> {
    if (this.#owesContinue) this.#stream.writeContinue();
    const arrival = await this.#stream.more(this.#idleMs);
    if (arrival === "end") throw new RequestFault(400, "The body ended before it was complete.");
    if (arrival === "late" || this.#isSlow()) {
      throw new RequestFault(408, "The body arrived too slowly.");
    }
  }

  #isSlow(): boolean {
    const { startMs, bytes } = this.#window;
    const nowMs = performance.now();
    if (nowMs - startMs < SLOW_WINDOW * this.#idleMs) return false;
    this.#window = { startMs: nowMs, bytes: 0 };
    return bytes < SLOW_BYTES;
  }
}
