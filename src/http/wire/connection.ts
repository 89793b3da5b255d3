// One connection: its requests are answered one after the other, in the order in which they came. A request
// that arrives behind another is parsed when that one has been answered.
import type { Logger } from "../../log.ts";
import { RequestBody } from "./request-body.ts";
import { RequestFault } from "./request-fault.ts";
import { emptyLines, headLength, parseHead, type RequestHead } from "./request-head.ts";
import { writeResponse } from "./response-writer.ts";
import { SocketStream } from "./socket-stream.ts";

export type Service = {
  /** The request's signal aborts when the client is gone; streams have to end then. */
  answer(request: Request): Response | Promise<Response>;
  /** The response to a request that is malformed or late (a RequestFault), or for which `answer` threw. */
  refuse(error: unknown): Response;
  /** How long a connection may be silent, or output unread. */
  idleMs: number;
  /** Whether connections close after the response that is under way. */
  isClosing: boolean;
  log: Logger;
};

/** When to find out whether a client that has closed its side still reads: first after this, then ever later. */
const FIRST_PROBE_MS = 10;
const PROBE_GROWTH = 4;

export class Connection {
  readonly stream: SocketStream;
  readonly #service: Service;
  #idleSinceMs: number | undefined;

  constructor(socket: Bun.Socket<unknown>, service: Service) {
    this.stream = new SocketStream(socket, service.idleMs);
    this.#service = service;
    void this.#run();
  }

  /** Since when no request has been under way; undefined if one is. */
  get idleSinceMs(): number | undefined {
    return this.#idleSinceMs;
  }

  async #run(): Promise<void> {
    try {
      while (await this.#serveNext()) {
        // Requests that are there already would otherwise be answered before anything else happens.
        if (this.stream.input.length > 0) await new Promise((resolve) => setImmediate(resolve));
      }
      if (!this.stream.isGone) await this.stream.close();
    } catch (error) {
      this.#service.log.error({ err: error }, "a connection failed");
      this.stream.destroy();
    }
  }

  /** Answers one request. False if it was the last one. */
  async #serveNext(): Promise<boolean> {
    try {
      const head = await this.#readHead();
      return head !== undefined && (await this.#answer(head));
    } catch (error) {
      const request = { method: "GET", isHttp10: false, keepAlive: false };
      return await writeResponse(this.stream, request, this.#service.refuse(error));
    }
  }

  /** The next request's head; undefined if there is none. */
  async #readHead(): Promise<RequestHead | undefined> {
    const { stream } = this;
    const { idleMs } = this.#service;
    let [startMs, scanned] = [performance.now(), 0];
    let hasBegun = false;
    // Requests that a client has left behind are not answered.
    while (!stream.isGone) {
      if (stream.input.length > 0 && !hasBegun) [hasBegun, startMs] = [true, performance.now()];
      if (scanned === 0) stream.take(emptyLines(stream.input));
      if (stream.input.length > 0) {
        const length = headLength(stream.input, scanned);
        if (length !== undefined) return parseHead(stream.take(length));
        // The last byte may be the first of an empty line.
        scanned = stream.input.length - 1;
      }
      if (!hasBegun) this.#idleSinceMs = startMs;
      const arrival = await stream.more(startMs + idleMs - performance.now());
      this.#idleSinceMs = undefined;
      if (arrival === "late" && hasBegun)
        throw new RequestFault(408, "The head arrived too slowly.");
      if (arrival !== "more") return undefined;
    }
    return undefined;
  }

  async #answer(head: RequestHead): Promise<boolean> {
    const { stream } = this;
    const { method, target, headers, framing } = head;
    const gone = new AbortController();
    const body = new RequestBody(head, stream, this.#service.idleMs);
    const mayRead = framing.kind !== "none" && method !== "GET" && method !== "HEAD";
    const request = new Request(`http://localhost${target}`, {
      method,
      headers,
      signal: gone.signal,
      ...(mayRead && { body: body.readable() }),
    });
    stream.onGone = () => gone.abort();
    const response = await this.#answerOrProbe(request, head);
    const keepAlive = head.keepAlive && !this.#service.isClosing && body.canSkip;
    const isKept = await writeResponse(stream, { ...head, keepAlive }, response);
    stream.onGone = () => {};
    return isKept && !this.#service.isClosing && (await body.skip());
  }

  /**
   * A client that closes its side may wait for its answer, or be gone; both look the same until something is
   * sent to it. While there is no answer, interim responses find out.
   */
  async #answerOrProbe(request: Request, { isHttp10 }: RequestHead): Promise<Response> {
    const { stream } = this;
    let timer: NodeJS.Timeout | undefined;
    const probeIn = (ms: number) => {
      timer = setTimeout(() => {
        stream.writeContinue();
        if (!stream.isGone) probeIn(ms * PROBE_GROWTH);
      }, ms);
    };
    // HTTP/1.0 has no interim responses.
    if (!isHttp10) stream.onEnd = () => probeIn(FIRST_PROBE_MS);
    if (stream.hasEnded) stream.onEnd();
    try {
      return await this.#service.answer(request);
    } finally {
      clearTimeout(timer);
      stream.onEnd = () => {};
    }
  }
}
