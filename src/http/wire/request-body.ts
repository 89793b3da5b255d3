// The body of one request, read from its connection on demand. The total time is unlimited while data keeps coming.
import { BodyDecoder } from "./body-decoder.ts";
import { RequestFault } from "./request-fault.ts";
import type { RequestHead } from "./request-head.ts";
import type { SocketStream } from "./socket-stream.ts";

/** Maximum remainder that is read and dropped to keep the connection; with more, it closes. */
const MAX_SKIPPED_BYTES = 2 ** 16;
/** Bytes decoded before yielding to the event loop: a body may consist of one-byte chunks. */
const MAX_DECODED_BYTES = 2 ** 16;
/** Minimum bytes per `SLOW_WINDOW` idle timeouts: an occasional byte is not progress. */
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

  /** The stream for a Request; nothing is read before the handler pulls. */
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

  /** Whether another request can follow, after `skip`. */
  get canSkip(): boolean {
    if (this.#decoder.isDone) return true;
    if (this.#hasFailed || this.#owesContinue) return false;
    const { left } = this.#decoder;
    return left === undefined ? this.#endsInInput() : left <= MAX_SKIPPED_BYTES;
  }

  /** Reads and drops the rest; returns false if it does not arrive. */
  async skip(): Promise<boolean> {
    try {
      while (await this.#read());
      return true;
    } catch {
      return false;
    }
  }

  /** The next piece of payload; undefined at the end. */
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

  /** For chunked bodies: whether the last chunk has arrived. */
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
