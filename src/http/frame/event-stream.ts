// A response as a stream of events, with backpressure; during silence, heartbeats keep clients and proxies from closing
// the connection.

/** The source of a stream, in encoded events. */
export type EventSource = {
  /** The next events, or an empty text if nothing is to be sent yet; undefined at the end. */
  next(): Promise<string | undefined>;
  /** Sent after a period without events, also before the first event. */
  heartbeat(): string;
  /** The final event for an error; undefined aborts the connection. */
  failure(error: unknown): string | undefined;
  /** Called exactly once when the stream ends. */
  close(): void;
};

export type StreamOptions = { mediaType: string; heartbeatMs: number };

export async function streamResponse(
  source: EventSource,
  { mediaType, heartbeatMs }: StreamOptions,
): Promise<Response> {
  const reader = new EventReader(source, heartbeatMs);
  // An error before the first event still determines the HTTP status.
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
      // Otherwise the whole response would be buffered.
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

  /** The next events or a heartbeat; undefined at the end. */
  async read(): Promise<string | undefined> {
    const { promise: silence, resolve } = Promise.withResolvers<"silence">();
    const timer = setTimeout(resolve, this.#heartbeatMs, "silence");
    try {
      for (;;) {
        this.#next ??= this.#source.next();
        const events = await Promise.race([this.#next.then((text) => ({ text })), silence]);
        if (events === "silence") return this.#source.heartbeat();
        this.#next = undefined;
        // Tokens within a tool call may produce no event: for the client that is silence.
        if (events.text !== "") return events.text;
      }
    } finally {
      clearTimeout(timer);
    }
  }
}
