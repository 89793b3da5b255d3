// Writes a long JSON response in parts, so that it neither blocks the event loop nor is in memory as a whole.
import type { Context } from "hono";
import type { HttpEnv } from "./env.ts";

const encoder = new TextEncoder();
/** Characters per chunk. */
const CHUNK = 2 ** 16;

/** Streams a response; parts are produced only as fast as the client reads. */
export function jsonParts(c: Context<HttpEnv>, parts: Iterator<string>): Response {
  let { text, isLast } = chunkOf(parts);
  const type = { "Content-Type": "application/json" };
  if (isLast) return c.body(text, 200, type);
  const over = Promise.withResolvers<void>();
  c.get("record").over = over.promise;
  c.get("lease")?.endWith(over.promise);
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        controller.enqueue(encoder.encode(text));
        if (isLast) {
          controller.close();
          over.resolve();
          return;
        }
        // Yields to the event loop between chunks.
        await new Promise((resolve) => setImmediate(resolve));
        ({ text, isLast } = chunkOf(parts));
      },
      cancel: () => over.resolve(),
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { headers: { ...type, "Transfer-Encoding": "chunked" } });
}

function chunkOf(parts: Iterator<string>): { text: string; isLast: boolean } {
  let text = "";
  while (text.length < CHUNK) {
    const { done, value } = parts.next();
    if (done) return { text, isLast: true };
    text += value;
  }
  return { text, isLast: false };
}
