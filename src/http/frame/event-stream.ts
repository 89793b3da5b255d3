// A response as a stream of events. They are written as fast as the client reads them; while there are none,
// a heartbeat keeps clients and proxies from closing the connection.

/** The texts of events. */
export type EventSource = {
  /** Resolves to the next events, or to nothing if there are none yet; undefined at the end. */
  next(): Promise<string | undefined>;
  /** What is sent in place of events after a while without any, also before the first. */
  heartbeat(): string;
  /** What is sent for an error, after which the stream ends; undefined closes the connection at once. */
  failure(error: unknown): string | undefined;
  /** Called once, however the stream ends. */
  close(): void;
};

export type StreamOptions = { mediaType: string; heartbeatMs: number };

export async function streamResponse(
  source: EventSource,
  { mediaType, heartbeatMs }: StreamOptions,
): Promise<Response> {
  const reader = new EventReader(source, heartbeatMs);
  // An error before the first event still becomes an HTTP status.
  const first = await reader.read();
  let started = false;
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const text = started ? await reader.read() : first;
          started = true;
          if (text !== undefined) {
            controller.enqueue(encoder.encode(text));
            return;
          }
        } catch (error) {
          const failure = source.failure(error);
          if (failure === undefined) {
            source.close();
            controller.error(error);
            return;
          }
          controller.enqueue(encoder.encode(failure));
        }
        source.close();
        controller.close();
      },
      cancel: () => source.close(),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, {
    headers: {
      "Content-Type": mediaType,
      "Cache-Control": "no-cache",
      // Otherwise it would be written when it is complete.
      "Transfer-Encoding": "chunked",
      // Otherwise nginx buffers events.
      "X-Accel-Buffering": "no",
    },
  });
}

const encoder = new TextEncoder();

class EventReader {
  readonly #source: EventSource;
  readonly #heartbeatMs: number;
  #next: Promise<string | undefined> | undefined;

  constructor(source: EventSource, heartbeatMs: number) {
    this.#source = source;
    this.#heartbeatMs = heartbeatMs;
  }

  /** The text of events or of a heartbeat; undefined at the end. */
  async read(): Promise<string | undefined> {
    const { promise: silence, resolve } = Promise.withResolvers<"silence">();
    const timer = setTimeout(resolve, this.#heartbeatMs, "silence");
    try {
      for (;;) {
        this.#next ??= this.#source.next();
        const events = await Promise.race([this.#next.then((text) => ({ text })), silence]);
        if (events === "silence") return this.#source.heartbeat();
        this.#next = undefined;
        // While a call is read, tokens arrive that make no event: to the client that is silence.
        if (events.text !== "") return events.text;
      }
    } finally {
      clearTimeout(timer);
    }
  }
}
