import { afterEach, expect, test } from "bun:test";
import { openServerTarget } from "../../src/bench/server-target.ts";
import { settled, useTestServer } from "../support/use-server.ts";

const server = useTestServer({ args: ["--api-key", "sk-bench"] }, settled);

const open = (more: { chat?: boolean; model?: string } = {}) =>
  openServerTarget({ url: server.url, apiKey: "sk-bench", chat: false, ...more });

test("a server is asked for its model, and tells what it is", async () => {
  const { about } = await open();
  const version = expect.stringMatching(/^mlx-serve-/);
  expect(about).toEqual({ kind: "server", model: "tiny", url: server.url, server: version });
});

test("answers have all their tokens, whatever the model thinks of ending", async () => {
  for (const chat of [false, true]) {
    const target = await open({ chat });
    let begun = 0;
    const request = { prompt: "What is a tide?", maxTokens: 12 };
    const sample = await target.send(request, () => (begun += 1));
    expect(sample.tokens).toBe(12);
    expect(begun).toBe(1);
    expect(sample.promptTokens).toBeGreaterThanOrEqual(request.prompt.length);
    expect(sample.arrivalsMs.length).toBeWithin(1, 13);
    const times = [sample.startMs, ...sample.arrivalsMs, sample.endMs];
    expect(times).toEqual(times.toSorted((a, b) => a - b));
  }
  await server.settled();
});

test("what was found computed is told", async () => {
  const target = await open();
  const prompt = "Tides follow the moon. ".repeat(10);
  const [first, second] = [
    await target.send({ prompt, maxTokens: 1 }),
    await target.send({ prompt, maxTokens: 1 }),
  ];
  expect(first.cachedTokens).toBe(0);
  expect(second.cachedTokens).toBeGreaterThan(100);
});

test("a wrong key, an unknown model and a server that is not there are told in a line", async () => {
  const wrong = [
    [{ url: server.url, apiKey: "sk-other", chat: false }, /answers 401: /],
    [{ url: server.url, apiKey: "sk-bench", model: "no/such", chat: false }, /answers 404: /],
    [{ url: "http://127.0.0.1:1", chat: false }, /^http:\/\/127\.0\.0\.1:1 cannot be reached/],
  ] as const;
  for (const [options, message] of wrong) {
    await expect(openServerTarget(options)).rejects.toThrow(message);
  }
});

type Body = { ignore_eos?: boolean; model?: string; service_tier?: string; prompt?: string };

let stub: ReturnType<typeof Bun.serve> | undefined;
afterEach(() => stub?.stop(true));

/** Another server, of which only the answers are known. */
function stubOf(answer: (body: Body) => Response) {
  stub = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    routes: { "/v1/completions": async (request) => answer((await request.json()) as Body) },
    fetch: () => new Response("no such path", { status: 404 }),
  });
  return openServerTarget({ url: `${stub.url}v1/`, model: "other", chat: false });
}

const events = (...chunks: (object | string)[]) =>
  new Response(
    chunks
      .map((chunk) => `data: ${typeof chunk === "string" ? chunk : JSON.stringify(chunk)}\r\n\r\n`)
      .join(""),
  );
const piece = (text: string) => ({ choices: [{ text }] });
const usage = (tokens: number) => ({
  choices: [],
  usage: { prompt_tokens: 3, completion_tokens: tokens },
});

test("a server that refuses what OpenAI does not define is asked without it", async () => {
  const bodies: Body[] = [];
  const target = await stubOf((body) => {
    bodies.push(body);
    if (body.ignore_eos) return new Response("unknown field", { status: 400 });
    return events(piece("a"), usage(1), "[DONE]");
  });
  expect(await target.send({ prompt: "hi", maxTokens: 1 })).toMatchObject({ tokens: 1 });
  expect(bodies.map((body) => body.ignore_eos)).toEqual([true, undefined, undefined]);
});

test("tokens are counted by the usage, not by the pieces", async () => {
  const target = await stubOf(() =>
    events(piece(""), piece("ab"), piece("cd"), usage(9), "[DONE]"),
  );
  const sample = await target.send({ prompt: "hi", maxTokens: 9 });
  expect(sample).toMatchObject({ tokens: 9, promptTokens: 3, cachedTokens: 0 });
  expect(sample.arrivalsMs).toHaveLength(2);
});

test("an answer without text begins at its end", async () => {
  const target = await stubOf(() => events(piece(""), usage(2), "[DONE]"));
  const { arrivalsMs, endMs } = await target.send({ prompt: "hi", maxTokens: 2 });
  expect(arrivalsMs).toEqual([endMs]);
});

test("low priority is asked for as OpenAI has it", async () => {
  const bodies: Body[] = [];
  const target = await stubOf((body) => {
    bodies.push(body);
    return events(piece("a"), usage(1));
  });
  await target.send({ prompt: "hi", maxTokens: 1, priority: "LOW" });
  await target.send({ prompt: "hi", maxTokens: 1, priority: "HIGH" });
  expect(bodies.map((body) => body.service_tier)).toEqual([undefined, "flex", undefined]);
});

test("an error in a stream, and a stream without usage, are errors", async () => {
  const failing = await stubOf((body) =>
    body.prompt === "Hello" ? events(usage(1)) : events(piece("a"), { error: { message: "no" } }),
  );
  await expect(failing.send({ prompt: "hi", maxTokens: 1 })).rejects.toThrow("the server says: no");
  void stub!.stop(true);
  const silent = await stubOf(() => events(piece("a"), "[DONE]"));
  await expect(silent.send({ prompt: "hi", maxTokens: 1 })).rejects.toThrow("sends no usage");
});
