// The AI SDK as a client of client-suite.ts, whatever API it speaks.
import type { generateText, streamText } from "ai";
import type { Asked, Client } from "./client-suite.ts";

type Generated = Pick<Awaited<ReturnType<typeof generateText>>, "text" | "finishReason">;
type Streamed = ReturnType<typeof streamText>;

export const optionsOf = ({ seed, maxTokens, stop, key, retries, signal }: Asked = {}) => ({
  ...(seed !== undefined && { seed }),
  ...(maxTokens && { maxOutputTokens: maxTokens }),
  ...(stop && { stopSequences: [stop] }),
  ...(key && { key }),
  ...(retries === 0 && { maxRetries: 0 }),
  ...(signal && { abortSignal: signal }),
});

/** Of either provider. */
export function adapterOf(
  generate: (asked?: Asked) => Promise<Generated>,
  stream: (asked?: Asked) => Streamed,
) {
  return {
    async whole(asked) {
      const { text, finishReason } = await generate(asked);
      return { text, finish: finishReason };
    },
    streamed: (asked) => streamed(stream(asked)),
    async leave() {
      const leaving = new AbortController();
      const { fullStream } = stream({ maxTokens: 4000, signal: leaving.signal });
      const parts: string[] = [];
      for await (const { type } of fullStream) {
        parts.push(type);
        if (type === "text-delta") leaving.abort();
      }
      if (parts.at(-1) !== "abort") throw new Error(parts.join());
    },
    stopped: "stop",
    // A second, from Retry-After; by default it would wait for two.
    comesBackMs: [900, 1900],
  } satisfies Partial<Client>;
}

export const limited = {
  statusCode: 429,
  isRetryable: true,
  responseHeaders: { "retry-after": "1" },
};
export const left = { name: "AbortError" };

/** Rejects with the error of a stream. */
export async function streamed(result: Streamed) {
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "abort") throw new DOMException("aborted", "AbortError");
  }
  // Read before the end, these would reject if the stream fails.
  return { text: await result.text, finish: await result.finishReason };
}
