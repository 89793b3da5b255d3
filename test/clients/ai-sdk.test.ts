import { describe, expect, test } from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  type CallSettings,
  embed,
  embedMany,
  generateText,
  type ModelMessage,
  streamText,
} from "ai";
import { adapterOf, left, limited, optionsOf, streamed } from "./ai-sdk-calls.ts";
import { apiKey, noControlTokens, useClientServer } from "./client-server.ts";
import { errorIn, testClient } from "./client-suite.ts";

const server = useClientServer();

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
  const wrong = { ...invalid, code: "invalid_value" };
  const unknown = "model_not_found";
  const refused: [string, Options, number, object][] = [
    ["a wrong parameter", { temperature: 3 }, 400, { ...wrong, param: "temperature" }],
    [
      "a prompt longer than the context",
      { messages: [{ role: "user", content: "x".repeat(5000) }] },
      400,
      { ...invalid, param: "messages", code: "context_length_exceeded" },
    ],
    ["an unknown model", { model: "gpt-5" }, 404, { ...invalid, param: "model", code: unknown }],
    ["a wrong key", { key: "sk-wrong" }, 401, { ...invalid, param: null, code: "invalid_api_key" }],
  ];
  test.each(refused)(
    "gets %s refused at once, and does not try again",
    async (_, asked, ...told) => {
      const [statusCode, error] = told;
      const isRetryable = false;
      const expected = { statusCode, isRetryable, data: { error } };
      expect(await errorIn(generate(asked))).toMatchObject(expected);
      expect(await errorIn(streamed(stream(asked)))).toMatchObject(expected);
      expect(statuses()).toEqual([statusCode, statusCode]);
    },
  );

  testClient(server, {
    ...adapterOf(
      (asked) => generate(optionsOf(asked)),
      (asked) => stream(optionsOf(asked)),
    ),
    errors: {
      limited: { ...limited, data: { error: { type: "requests", code: "rate_limit_exceeded" } } },
      draining: { statusCode: 503, isRetryable: true },
      broken: { message: "The answer failed.", type: "server_error", param: null, code: null },
      left,
    },
  });
});
