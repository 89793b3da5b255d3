import { describe, expect, test } from "bun:test";
import type { AIMessageChunk, UsageMetadata } from "@langchain/core/messages";
import {
  ChatOpenAI,
  type ChatOpenAICallOptions,
  type ChatOpenAIFields,
  OpenAI,
  OpenAIEmbeddings,
} from "@langchain/openai";
import { apiKey, noControlTokens, useClientServer } from "./client-server.ts";
import { type Asked, errorIn, testClient } from "./client-suite.ts";

const server = useClientServer();

const question = "Say something that is new to me.";

const configured = (key = apiKey) => ({
  model: "tiny",
  apiKey: key,
  configuration: { baseURL: server.baseUrl },
});

const chat = ({ key, ...fields }: ChatOpenAIFields & { key?: string } = {}) =>
  new ChatOpenAI({ ...configured(key), maxTokens: 40, logitBias: noControlTokens, ...fields });

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
  const unknown = { ...invalid, lc_error_code: "MODEL_NOT_FOUND" };
  const wrongKey = { ...invalid, lc_error_code: "MODEL_AUTHENTICATION" };
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
        { ...unknown, status: 404, param: "model", code: "model_not_found" },
      ],
      [
        "a wrong key",
        () => invoke({ key: "sk-wrong" }),
        { ...wrongKey, status: 401, param: null, code: "invalid_api_key" },
      ],
      [
        "an empty text to embed",
        () => new OpenAIEmbeddings(configured()).embedQuery(""),
        { ...invalid, status: 400, param: "input", code: "invalid_value" },
      ],
    ];
  test.each(refused)("gets %s refused at once, and does not try again", async (_, call, told) => {
    expect(await errorIn(call())).toMatchObject(told);
    expect(statuses()).toEqual([told.status]);
  });

  test("knows a prompt that is too long for what it is", async () => {
    const error = await errorIn(chat().invoke("x".repeat(5000)));
    expect(error).toMatchObject({ name: "ContextOverflowError" });
    expect(statuses()).toEqual([400]);
  });

  const asked = ({ key, maxTokens, retries, seed, stop, signal }: Asked = {}) =>
    [
      {
        ...(key && { key }),
        ...(maxTokens && { maxTokens }),
        ...(retries === 0 && { maxRetries: 0 }),
      },
      {
        ...(seed !== undefined && { seed }),
        ...(stop && { stop: [stop] }),
        ...(signal && { signal }),
      },
    ] as const;
  const answerOf = ({ text, response_metadata: { finish_reason: finish } }: AIMessageChunk) => ({
    text,
    finish,
  });
  testClient(server, {
    whole: async (given) => answerOf(await invoke(...asked(given))),
    streamed: async (given) =>
      answerOf((await stream(...asked(given))).reduce((a, b) => a.concat(b))),
    async leave() {
      for await (const _ of await chat({ maxTokens: 4000 }).stream(question)) break;
    },
    errors: {
      limited: {
        status: 429,
        type: "requests",
        code: "rate_limit_exceeded",
        lc_error_code: "MODEL_RATE_LIMIT",
        retryAfterMs: 1000,
      },
      draining: { status: 503 },
      broken: { message: "The answer failed.", type: "server_error" },
      left: { name: "AbortError" },
    },
    stopped: "stop",
    comesBackMs: [0, Infinity],
  });
});
