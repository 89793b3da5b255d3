// Many clients at once, half of which disconnect: the others get the same answers as alone.
import { expect, test } from "bun:test";
import { makeRandom } from "../support/random.ts";
import { settled, useTestServer } from "../support/use-server.ts";

const CLIENTS = 64;

const server = useTestServer({ args: ["--max-batch-size", "32"] }, settled);

const random = makeRandom(5);
const requests = Array.from({ length: CLIENTS }, (_, i) => ({
  messages: [{ role: "user", content: `${i}: ${"tell me more ".repeat(random.below(12))}` }],
  max_tokens: 20 + random.below(40),
  temperature: i % 2,
  seed: i,
  stream: true,
}));

/** What a client has read when the stream ends or it disconnects. */
async function read(request: object, leaveAfter = Number.POSITIVE_INFINITY): Promise<string> {
  const abort = new AbortController();
  const { signal } = abort;
  const response = await server.post("/v1/chat/completions", request, { signal });
  expect(response.status).toBe(200);
  const decoder = new TextDecoder();
  let [text, chunks] = ["", 0];
  try {
    for await (const chunk of response.body!) {
      text += decoder.decode(chunk, { stream: true });
      if (++chunks > leaveAfter) abort.abort();
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
  return text;
}

/** The text of a stream that finished normally. */
function contentOf(stream: string): string {
  expect(stream).toEndWith("data: [DONE]\n\n");
  const events = stream.split("\n\n").slice(0, -2);
  return events
    .map((event) => JSON.parse(event.slice("data: ".length)))
    .map(({ choices }) => choices[0].delta.content ?? "")
    .join("");
}

test("of 64 streams half disconnect: the others are exact, and no resources leak", async () => {
  const alone: string[] = [];
  for (const request of requests) alone.push(contentOf(await read(request)));
  await server.settled();
  const [before] = await server.serving.engine.stats();

  const leaving = requests.map(() => random.chance(0.5));
  expect(leaving.filter(Boolean).length).toBeWithin(20, 44);
  const streams = await Promise.all(
    requests.map((request, i) => read(request, leaving[i] ? 1 + random.below(15) : undefined)),
  );
  await server.settled();

  for (const [i, stream] of streams.entries()) {
    if (!leaving[i]) expect(contentOf(stream)).toBe(alone[i]!);
  }
  const [after] = await server.serving.engine.stats();
  expect(after!.liveArrays).toBe(before!.liveArrays);
  expect(after!.requests).toEqual([]);
  const steps = after!.steps - before!.steps;
  const tokens = after!.generatedTokens - before!.generatedTokens;
  // They were batched: far more tokens than steps.
  expect(tokens).toBeGreaterThan(steps * 4);
  expect(await server.metric("mlx_serve_requests_total")).toBe(2 * CLIENTS);
}, 60_000);
