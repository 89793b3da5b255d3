import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  setDefaultTimeout,
  test,
} from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  type CallSettings,
  embed,
  embedMany,
  generateText,
  type ModelMessage,
  streamText,
} from "ai";
import { callErrorOf, expectWaited } from "./ai-sdk-calls.ts";
import {
  apiKey,
  type ClientServer,
  noControlTokens,
  type Seen,
  singleKey,
  startClientServer,
} from "./client-server.ts";

// Some tests wait a second or two for a retry, and the machine may be busy.
setDefaultTimeout(30_000);

let server: ClientServer;
beforeAll(async () => {
  server = await startClientServer();
});
afterAll(() => server.stop());
beforeEach(() => {
  server.seen.length = 0;
});
afterEach(() => server.settled());

const provider = (key = apiKey) =>
  createOpenAICompatible({
    name: "tiny",
    baseURL: server.baseUrl,
    apiKey: key,
    includeUsage: true,
  });

const messages: ModelMessage[] = [{ role: "user", content: "Say something that is new to me." }];

type Options = Pick<
  CallSettings,
  "seed" | "temperature" | "stopSequences" | "abortSignal" | "maxOutputTokens" | "maxRetries"
> & { messages?: ModelMessage[]; model?: string; key?: string };

const request = ({ model = "tiny", key, ...options }: Options = {}) => ({
  model: provider(key)(model),
  messages,
  seed: 7,
  maxOutputTokens: 40,
  // Fields that the SDK does not know are passed through.
  providerOptions: { tiny: { logit_bias: noControlTokens } },
  ...options,
});

const generate = (options?: Options) => generateText(request(options));
// Errors are parts of the stream; by default the SDK also prints them.
const stream = (options?: Options) => streamText({ ...request(options), onError: () => {} });
const statuses = () => server.seen.map(({ status }) => status);

const usage = {
  inputTokens: 51,
  outputTokens: 40,
  totalTokens: 91,
  inputTokenDetails: { cacheReadTokens: expect.any(Number) },
};

describe("the AI SDK", () => {
  test("generates text, with its usage", async () => {
    const { text, usage: used, finishReason, response } = await generate();
    expect(text.length).toBeGreaterThan(10);
    expect(used).toMatchObject(usage);
    expect(finishReason).toBe("length");
    expect(response).toMatchObject({
      id: expect.stringMatching(/^chatcmpl-/),
      modelId: "tiny",
      headers: { "x-request-id": expect.any(String) },
    });
    expect(statuses()).toEqual([200]);
  });

  test("streams the same text, with its usage", async () => {
    const { text } = await generate();
    const result = stream();
    expect((await Array.fromAsync(result.textStream)).join("")).toBe(text);
    expect(await result.usage).toMatchObject(usage);
    expect(await result.finishReason).toBe("length");
    expect((await result.response).id).toMatch(/^chatcmpl-/);
  });

  test("gets an answer that ends before a stop string", async () => {
    const { text } = await generate();
    const stop = text.slice(12, 15);
    const before = text.slice(0, text.indexOf(stop));
    const whole = await generate({ stopSequences: [stop] });
    expect([whole.text, whole.finishReason]).toEqual([before, "stop"]);
    const streamed = stream({ stopSequences: [stop] });
    expect([await streamed.text, await streamed.finishReason]).toEqual([before, "stop"]);
  });

  test("gets the same answer for the same seed alone", async () => {
    const [first, same, other] = [await generate(), await generate(), await generate({ seed: 8 })];
    expect(same.text).toBe(first.text);
    expect(other.text).not.toBe(first.text);
  });

  test("goes on with a conversation, whose beginning is not computed again", async () => {
    const first = await generate();
    const { usage: used, text } = await generate({
      messages: [
        ...messages,
        ...first.response.messages,
        { role: "user", content: [{ type: "text", text: "And what else?" }] },
      ],
    });
    expect(used.inputTokenDetails.cacheReadTokens).toBeGreaterThanOrEqual(32);
    expect(text).not.toBe(first.text);
  });

  test("gets the same answers 16 at once as one after the other", async () => {
    const seeds = Array.from({ length: 16 }, (_, seed) => seed);
    const answer = async (seed: number) =>
      seed % 2 === 0
        ? (await generate({ seed, maxOutputTokens: 12 })).text
        : await stream({ seed, maxOutputTokens: 12 }).text;
    const together = await Promise.all(seeds.map(answer));
    const alone: string[] = [];
    for (const seed of seeds) alone.push(await answer(seed));
    expect(together).toEqual(alone);
    expect(new Set(together).size).toBe(16);
  });

  test("completes a text", async () => {
    const asked = { model: provider().completionModel("tiny"), prompt: "to be", seed: 1 };
    const { text, usage: used } = await generateText({ ...asked, maxOutputTokens: 8 });
    expect(used).toMatchObject({ inputTokens: expect.any(Number), outputTokens: 8 });
    expect(await streamText({ ...asked, maxOutputTokens: 8 }).text).toBe(text);
  });

  test("gets embeddings", async () => {
    const model = provider().embeddingModel("tiny");
    const one = await embed({ model, value: "a text" });
    expect(one.embedding).toHaveLength(64);
    expect(one.usage).toEqual({ tokens: 6 });
    const { embeddings, usage: used } = await embedMany({ model, values: ["another", "a text"] });
    expect(embeddings.map(({ length }) => length)).toEqual([64, 64]);
    for (const [i, value] of one.embedding.entries()) {
      expect(embeddings[1]![i]).toBeCloseTo(value, 5);
    }
    expect(used).toEqual({ tokens: 13 });
  });

  const invalid = { type: "invalid_request_error", message: expect.any(String) };
  const refused: [string, Options, number, object][] = [
    [
      "a wrong parameter",
      { temperature: 3 },
      400,
      { ...invalid, param: "temperature", code: "invalid_value" },
    ],
    [
      "a prompt longer than the context",
      { messages: [{ role: "user", content: "x".repeat(5000) }] },
      400,
      { ...invalid, param: "messages", code: "context_length_exceeded" },
    ],
    [
      "an unknown model",
      { model: "gpt-5" },
      404,
      { ...invalid, param: "model", code: "model_not_found" },
    ],
    ["a wrong key", { key: "sk-wrong" }, 401, { ...invalid, param: null, code: "invalid_api_key" }],
  ];
  test.each(refused)(
    "gets %s refused at once, and does not try again",
    async (_, asked, ...told) => {
      const [statusCode, error] = told;
      const isRetryable = false;
      const expected = { statusCode, isRetryable, data: { error } };
      expect(await callErrorOf(generate(asked))).toMatchObject(expected);
      expect(await callErrorOf(streamError(asked))).toMatchObject(expected);
      expect(statuses()).toEqual([statusCode, statusCode]);
    },
  );

  test("that is over its limit is told so, and when to come back", async () => {
    const other = await server.occupy(singleKey);
    const error = await callErrorOf(generate({ key: singleKey, maxRetries: 0 }));
    other.end();
    expect(error).toMatchObject({
      statusCode: 429,
      isRetryable: true,
      responseHeaders: { "retry-after": "1" },
      data: { error: { type: "requests", code: "rate_limit_exceeded" } },
    });
  });

  test("that is over its limit comes back by itself, when it was told to", async () => {
    const other = await server.occupy(singleKey);
    const answer = generate({ key: singleKey });
    await server.until(() => statuses().includes(429));
    other.end();
    const { text } = await answer;
    // The other request ends in between.
    expect(statuses()).toEqual([429, 200, 200]);
    const [first, , last] = server.seen as [Seen, Seen, Seen];
    expectWaited(first, last);
    expect((await generate()).text).toBe(text);
  });

  test("that finds the server shutting down comes back, when it was told to", async () => {
    const { admission } = server.serving;
    admission.phase = "draining";
    const answer = generate();
    await server.until(() => statuses().includes(503));
    admission.phase = "open";
    const { text } = await answer;
    expect(statuses()).toEqual([503, 200]);
    expectWaited(...(server.seen as [Seen, Seen]));
    expect((await generate()).text).toBe(text);
  });

  test("gets an error in the middle of a stream, and does not ask again", async () => {
    const errors: unknown[] = [];
    let deltas = 0;
    for await (const part of stream({ maxOutputTokens: 4000 }).fullStream) {
      if (part.type === "text-delta" && ++deltas === 3) await server.serving.engine.kill();
      if (part.type === "error") errors.push(part.error);
    }
    expect(errors).toEqual([
      {
        message: "The answer failed.",
        type: "server_error",
        param: null,
        code: null,
      },
    ]);
    expect(statuses()).toEqual([200]);
    // The engine is back.
    await generate();
  });

  test("that gives up in the middle of a stream ends its request", async () => {
    const before = await server.gone();
    const leaving = new AbortController();
    const result = stream({ maxOutputTokens: 4000, abortSignal: leaving.signal });
    const parts: string[] = [];
    for await (const { type } of result.fullStream) {
      parts.push(type);
      if (type === "text-delta") leaving.abort();
    }
    expect(parts.at(-1)).toBe("abort");
    await server.settled();
    expect(await server.gone()).toBe(before + 1);
  });

  test.each([
    ["before the first token", streamAborted],
    ["before its answer is there", generateAborted],
  ])("that gives up %s ends its request", async (_, call) => {
    const other = await server.occupy();
    const leaving = new AbortController();
    const left = call({ abortSignal: leaving.signal });
    await server.until(async () => (await server.metric("mlx_serve_requests_waiting")) === 1);
    leaving.abort();
    await left;
    await server.until(() => server.seen.length === 1);
    other.end();
    expect(server.seen).toMatchObject([{ status: 499 }]);
  });
});

/** Rejects with the first error of a stream. */
async function streamError(options: Options): Promise<void> {
  for await (const part of stream(options).fullStream) if (part.type === "error") throw part.error;
}

async function streamAborted(options: Options): Promise<void> {
  const parts = await Array.fromAsync(stream(options).fullStream);
  expect(parts.map(({ type }) => type)).toEqual(["start", "abort"]);
}

async function generateAborted(options: Options): Promise<void> {
  const error: unknown = await generate(options).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ name: "AbortError" });
}
