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
import type { AIMessageChunk, UsageMetadata } from "@langchain/core/messages";
import {
  ChatOpenAI,
  type ChatOpenAICallOptions,
  type ChatOpenAIFields,
  OpenAI,
  OpenAIEmbeddings,
} from "@langchain/openai";
import {
  apiKey,
  type ClientServer,
  noControlTokens,
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

const question = "Say something that is new to me.";

const configured = (key = apiKey) => ({
  model: "tiny",
  apiKey: key,
  configuration: { baseURL: server.baseUrl },
});

const chat = ({ key, ...fields }: ChatOpenAIFields & { key?: string } = {}) =>
  new ChatOpenAI({
    ...configured(key),
    maxTokens: 40,
    logitBias: noControlTokens,
    ...fields,
  });

type Options = Partial<ChatOpenAICallOptions>;

const invoke = (fields?: Parameters<typeof chat>[0], options?: Options) =>
  chat(fields).invoke(question, { seed: 7, ...options });

const stream = async (fields?: Parameters<typeof chat>[0], options?: Options) =>
  Array.fromAsync(await chat(fields).stream(question, { seed: 7, ...options }));

const statuses = () => server.seen.map(({ status }) => status);
const joined = (chunks: readonly AIMessageChunk[]) => chunks.map(({ text }) => text).join("");

const usage = {
  input_tokens: 51,
  output_tokens: 40,
  total_tokens: 91,
  input_token_details: { cache_read: expect.any(Number) },
};

describe("LangChain", () => {
  test("gets an answer with its usage", async () => {
    const answer = await invoke();
    expect(answer.text.length).toBeGreaterThan(10);
    expect(answer.usage_metadata).toMatchObject(usage);
    expect(answer.response_metadata).toMatchObject({ finish_reason: "length", model_name: "tiny" });
    expect(answer.id).toMatch(/^chatcmpl-/);
    expect(statuses()).toEqual([200]);
  });

  test("streams the same text, with its usage", async () => {
    const { text } = await invoke();
    const chunks = await stream();
    expect(joined(chunks)).toBe(text);
    const whole = chunks.reduce((a, b) => a.concat(b));
    expect(whole.usage_metadata).toMatchObject(usage);
    expect(whole.response_metadata).toMatchObject({ finish_reason: "length", model_name: "tiny" });
  });

  test("gets log-probabilities, the same ones in a stream", async () => {
    const asked = { logprobs: true, topLogprobs: 2 };
    const { text, response_metadata: whole } = await invoke(asked);
    const { content } = whole.logprobs as {
      content: { bytes: number[]; top_logprobs: object[] }[];
    };
    expect(content).toHaveLength(40);
    expect(content.every(({ top_logprobs: top }) => top.length === 2)).toBe(true);
    const bytes = Uint8Array.from(content.flatMap((each) => each.bytes));
    expect(new TextDecoder().decode(bytes)).toBe(text);
    const chunks = await stream(asked);
    const streamed = chunks.flatMap(({ response_metadata: part }) => {
      return (part.logprobs as { content: object[] } | undefined)?.content ?? [];
    });
    expect(streamed).toEqual(content);
  });

  test("gets the answers of a batch, 16 at once, as one after the other", async () => {
    const model = chat({ maxTokens: 12, temperature: 0 });
    const questions = Array.from({ length: 16 }, (_, i) => `${i}: ${question}`);
    const together = (await model.batch(questions)).map(({ text }) => text);
    const alone: string[] = [];
    for (const each of questions) alone.push((await model.invoke(each)).text);
    expect(together).toEqual(alone);
    expect(new Set(together).size).toBeGreaterThan(8);
  });

  test("gets several answers", async () => {
    const { generations } = await chat({ n: 3 }).generate([[["user", question]]], { seed: 7 });
    expect(new Set(generations[0]!.map(({ text }) => text)).size).toBe(3);
  });

  test("gets an answer that ends before a stop string", async () => {
    const { text } = await invoke();
    const stop = [text.slice(12, 15)];
    const before = text.slice(0, text.indexOf(stop[0]!));
    const answer = await invoke({}, { stop });
    expect(answer.text).toBe(before);
    expect(answer.response_metadata.finish_reason).toBe("stop");
    expect(joined(await stream({}, { stop }))).toBe(before);
  });

  test("gets the same answer for the same seed alone", async () => {
    const [first, same] = [await invoke(), await invoke()];
    const other = await invoke({}, { seed: 8 });
    expect(same.text).toBe(first.text);
    expect(other.text).not.toBe(first.text);
  });

  test("goes on with a conversation, whose beginning is not computed again", async () => {
    const first = await invoke();
    const second = await chat().invoke([["user", question], first, ["user", "And what else?"]]);
    const used = second.usage_metadata as UsageMetadata | undefined;
    expect(used?.input_token_details?.cache_read).toBeGreaterThanOrEqual(32);
  });

  test("completes texts", async () => {
    const model = new OpenAI({ ...configured(), maxTokens: 8, temperature: 0 });
    const { generations, llmOutput } = await model.generate(["to be", "or not"]);
    const texts = generations.map(([generation]) => generation!.text);
    expect(llmOutput).toMatchObject({ tokenUsage: { promptTokens: 11, completionTokens: 16 } });
    const streamed = await Array.fromAsync(await model.stream("to be"));
    expect(streamed.join("")).toBe(texts[0]!);
    // Both in one request.
    expect(statuses()).toEqual([200, 200]);
  });

  test("gets embeddings", async () => {
    const model = new OpenAIEmbeddings(configured());
    const one = await model.embedQuery("a text");
    expect(one).toHaveLength(64);
    const floats = new OpenAIEmbeddings({ ...configured(), encodingFormat: "float" });
    expect(await floats.embedQuery("a text")).toEqual(one);
    const both = await model.embedDocuments(["another", "a text"]);
    expect(both.map(({ length }) => length)).toEqual([64, 64]);
    for (const [i, value] of one.entries()) expect(both[1]![i]).toBeCloseTo(value, 5);
  });

  const invalid = { type: "invalid_request_error" };
  const refused: [string, () => Promise<unknown>, { status: number } & Record<string, unknown>][] =
    [
      [
        "a wrong parameter",
        () => invoke({ temperature: 3 }),
        { ...invalid, status: 400, param: "temperature", code: "invalid_value" },
      ],
      [
        "a wrong parameter of a stream",
        () => stream({ topP: 2 }),
        { ...invalid, status: 400, param: "top_p", code: "invalid_value" },
      ],
      [
        "an unknown model",
        () => invoke({ model: "gpt-4" }),
        {
          ...invalid,
          status: 404,
          param: "model",
          code: "model_not_found",
          lc_error_code: "MODEL_NOT_FOUND",
        },
      ],
      [
        "a wrong key",
        () => invoke({ key: "sk-wrong" }),
        {
          ...invalid,
          status: 401,
          param: null,
          code: "invalid_api_key",
          lc_error_code: "MODEL_AUTHENTICATION",
        },
      ],
      [
        "an empty text to embed",
        () => new OpenAIEmbeddings(configured()).embedQuery(""),
        { ...invalid, status: 400, param: "input", code: "invalid_value" },
      ],
    ];
  test.each(refused)("gets %s refused at once, and does not try again", async (_, call, told) => {
    expect(await errorOf(call())).toMatchObject(told);
    expect(statuses()).toEqual([told.status]);
  });

  test("knows a prompt that is too long for what it is", async () => {
    const error = await errorOf(chat().invoke("x".repeat(5000)));
    expect(error).toMatchObject({ name: "ContextOverflowError" });
    expect(statuses()).toEqual([400]);
  });

  test("that is over its limit is told so, and when to come back", async () => {
    const other = await server.occupy(singleKey);
    const error = await errorOf(invoke({ key: singleKey, maxRetries: 0 }));
    other.end();
    expect(error).toMatchObject({
      status: 429,
      type: "requests",
      code: "rate_limit_exceeded",
      lc_error_code: "MODEL_RATE_LIMIT",
      retryAfterMs: 1000,
    });
  });

  test("that is over its limit comes back by itself", async () => {
    const other = await server.occupy(singleKey);
    const answer = invoke({ key: singleKey });
    await server.until(() => statuses().includes(429));
    other.end();
    const { text } = await answer;
    // The other request ends in between.
    expect(statuses()).toEqual([429, 200, 200]);
    expect((await invoke()).text).toBe(text);
  });

  test("that finds the server shutting down comes back by itself", async () => {
    const { admission } = server.serving;
    admission.phase = "draining";
    const answer = invoke();
    await server.until(() => statuses().includes(503));
    admission.phase = "open";
    const { text } = await answer;
    expect(statuses()).toEqual([503, 200]);
    expect((await invoke()).text).toBe(text);
  });

  test("gets an error in the middle of a stream, and does not ask again", async () => {
    const read = async () => {
      let chunks = 0;
      for await (const _ of await chat({ maxTokens: 4000 }).stream(question)) {
        if (++chunks === 3) await server.serving.engine.kill();
      }
    };
    expect(await errorOf(read())).toMatchObject({
      message: "The answer failed.",
      type: "server_error",
    });
    expect(statuses()).toEqual([200]);
    // The engine is back.
    await invoke();
  });

  test("that gives up in the middle of a stream ends its request", async () => {
    const before = await server.gone();
    for await (const _ of await chat({ maxTokens: 4000 }).stream(question)) break;
    await server.settled();
    expect(await server.gone()).toBe(before + 1);
  });

  test.each([
    ["before the first token", stream],
    ["before its answer is there", invoke],
  ])("that gives up %s ends its request", async (_, call) => {
    const other = await server.occupy();
    const leaving = new AbortController();
    const left = errorOf(call({}, { signal: leaving.signal }));
    await server.until(async () => (await server.metric("mlx_serve_requests_waiting")) === 1);
    leaving.abort();
    expect(await left).toMatchObject({ name: "AbortError" });
    await server.until(() => server.seen.length === 1);
    other.end();
    expect(server.seen).toMatchObject([{ status: 499 }]);
  });
});

async function errorOf(call: Promise<unknown>): Promise<Error> {
  const error = await call.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof Error)) throw new Error("it did not fail");
  return error;
}
