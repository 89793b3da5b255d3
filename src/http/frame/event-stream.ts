// A response as a stream of events, with backpressure; during silence, heartbeats keep clients and proxies from closing
// the connection.

/** Produces the encoded events of a stream. */
export type EventSource = {
  /** Returns the next events, or an empty text if there is nothing to send yet; undefined at the end. */
  next(): Promise<string | undefined>;
  /** Returns the text to send after a period without events, even before the first event. */
  heartbeat(): string;
  /** Returns the final event for an error; undefined aborts the connection. */
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
  // Waits for the first event, so that an earlier error still sets the HTTP status.
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
      // Makes the server stream the response instead of buffering it whole.
      "Transfer-Encoding": "chunked",
      // Keeps nginx from buffering the events.
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

  /** Returns the next events, or a heartbeat if none arrive in time; undefined at the end. */
  async read(): Promise<string | undefined> {
    const { promise: silence, resolve } = Promise.withResolvers<"silence">();
    const timer = setTimeout(resolve, this.#heartbeatMs, "silence");
    try {
      for (;;) {
        this.#next ??= this.#source.next();
        const events = await Promise.race([this.#next.then((text) => ({ text })), silence]);
        if (events === "silence") return this.#source.heartbeat();
        this.#next = undefined;
        // An empty text, such as for tokens within a tool call, does not restart the heartbeat timer.
        if (events.text !== "") return events.text;
      }
    } finally {
      clearTimeout(timer);
    }
  }
}
