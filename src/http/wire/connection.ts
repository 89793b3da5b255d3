// One connection: answers its requests one after another. A pipelined request is parsed once the previous one has
// been answered.
import type { Logger } from "../../log.ts";
import { RequestBody } from "./request-body.ts";
import { RequestFault } from "./request-fault.ts";
import { emptyLines, headLength, parseHead, type RequestHead } from "./request-head.ts";
import { writeResponse } from "./response-writer.ts";
import { SocketStream } from "./socket-stream.ts";

export type Service = {
  /** Answers a request. Its signal aborts when the client disconnects; a streamed response must end then. */
  answer(request: Request): Response | Promise<Response>;
  /** Returns the response to a malformed or late request (a RequestFault), or to an error of `answer`. */
  refuse(error: unknown): Response;
  /** Milliseconds after which an idle connection, or a client that does not read its output, is disconnected. */
  idleMs: number;
  /** Whether connections close after their current response. */
  isClosing: boolean;
  log: Logger;
};

/** Delay before the first probe of a client that has closed its sending side; growth factor of later delays. */
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

  /** Time since which the connection is idle; undefined while a request is in progress. */
  get idleSinceMs(): number | undefined {
    return this.#idleSinceMs;
  }

  async #run(): Promise<void> {
    try {
      while (await this.#serveNext()) {
        // Yields to the event loop, which pipelined requests would otherwise starve.
        if (this.stream.input.length > 0) await new Promise((resolve) => setImmediate(resolve));
      }
      if (!this.stream.isGone) await this.stream.close();
    } catch (error) {
      this.#service.log.error({ err: error }, "a connection failed");
      this.stream.destroy();
    }
  }

  /** Answers one request; returns whether another one may follow. */
  async #serveNext(): Promise<boolean> {
    try {
      const head = await this.#readHead();
      return head !== undefined && (await this.#answer(head));
    } catch (error) {
      const request = { method: "GET", isHttp10: false, keepAlive: false };
      return await writeResponse(this.stream, request, this.#service.refuse(error));
    }
  }

  /** Reads the next request's head; returns undefined at the end of the connection. */
  async #readHead(): Promise<RequestHead | undefined> {
    const { stream } = this;
    const { idleMs } = this.#service;
    let [startMs, scanned] = [performance.now(), 0];
    let hasBegun = false;
    // Requests that a disconnected client has sent are dropped.
    while (!stream.isGone) {
      if (stream.input.length > 0 && !hasBegun) [hasBegun, startMs] = [true, performance.now()];
      if (scanned === 0) stream.take(emptyLines(stream.input));
      if (stream.input.length > 0) {
        const length = headLength(stream.input, scanned);
        if (length !== undefined) return parseHead(stream.take(length));
        // The last byte is scanned again, since it may start the empty line that ends the head.
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
   * Answers a request. A client that has closed its sending side may still wait for the response, or may be gone.
   * Interim responses, sent until the response is ready, tell which: a client that is gone resets the connection.
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
    // HTTP/1.0 has no interim responses, so its clients are not probed.
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
