import { describe, expect, test } from "bun:test";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  Completion,
  CompletionCreateParamsNonStreaming,
  CreateEmbeddingResponse,
  Embedding,
  EmbeddingCreateParams,
  Model,
} from "openai/resources";
import {
  type CallFailure,
  failureOf,
  type Question,
  startOpenAi,
  useClient,
} from "./client-process.ts";
import { apiKey, noControlTokens, useClientServer } from "./client-server.ts";
import { testClient } from "./client-suite.ts";

type Options = { key?: string; retries?: number; take?: number; signal?: AbortSignal };
type ChatBody = Omit<Partial<ChatCompletionCreateParamsNonStreaming>, "stream">;
type CompletionBody = Omit<CompletionCreateParamsNonStreaming, "model" | "stream">;

const server = useClientServer();

const messages = [{ role: "user", content: "Say something that is new to me." }] as const;
const wrong = "invalid_value";
const wrongKey = { class: "AuthenticationError", status: 401, type: "invalid_request_error" };
const sampling = { seed: 7, max_tokens: 40, logit_bias: noControlTokens };
const standard = { model: "tiny", messages: [...messages], ...sampling };
const usage = {
  prompt_tokens: 51,
  completion_tokens: 40,
  total_tokens: 91,
  prompt_tokens_details: { cached_tokens: expect.any(Number) },
};

describe.each(["node", "Python"] as const)("OpenAI's package for %s", (language) => {
  const client = useClient(startOpenAi, language);

  const ask = (question: Question, { key = apiKey, signal, ...options }: Options = {}) =>
    client.ask({ url: server.baseUrl, key, ...options, ...question }, signal);

  const chat = async (body: ChatBody = {}, options?: Options) =>
    (await ask({ method: "chat", body: { ...standard, ...body } }, options)) as ChatCompletion;

  const chatStream = async (body: ChatBody = {}, options?: Options) => {
    const whole = { ...standard, ...body, stream: true } as const;
    return (await ask({ method: "chat", body: whole }, options)) as ChatCompletionChunk[];
  };

  const complete = async (body: CompletionBody) =>
    (await ask({ method: "completions", body: { model: "tiny", ...body } })) as Completion;

  const completeStream = async (body: CompletionBody) => {
    const whole = { model: "tiny", ...body, stream: true } as const;
    return (await ask({ method: "completions", body: whole })) as Completion[];
  };

  const embed = async (body: Omit<EmbeddingCreateParams, "model">) => {
    const whole = { model: "tiny", ...body };
    return (await ask({ method: "embeddings", body: whole })) as CreateEmbeddingResponse;
  };

  const textOf = ({ choices }: ChatCompletion) => choices[0]!.message.content!;
  const statuses = () => server.seen.map(({ status }) => status);

  test("gets an answer with its usage", async () => {
    const answer = await chat();
    expect(answer).toEqual({
      id: expect.stringMatching(/^chatcmpl-/),
      object: "chat.completion",
      created: expect.any(Number),
      model: "tiny",
      system_fingerprint: expect.any(String),
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: expect.any(String), refusal: null },
          logprobs: null,
          finish_reason: "length",
        },
      ],
      usage,
    });
    expect(textOf(answer).length).toBeGreaterThan(10);
    expect(statuses()).toEqual([200]);
  });

  test("gets the same text as a stream, and its usage when it asks for it", async () => {
    const whole = textOf(await chat());
    const chunks = await chatStream();
    expect(streamedText(chunks)).toBe(whole);
    expect(chunks.filter((chunk) => chunk.usage)).toEqual([]);
    expect(chunks.filter(({ choices }) => choices[0]?.delta.role)).toEqual([chunks[0]!]);
    expect(new Set(chunks.map(({ id, created }) => `${id} ${created}`)).size).toBe(1);
    expect(chunks.map(({ choices }) => choices[0]?.finish_reason)).toEqual([
      ...chunks.slice(1).map(() => null),
      "length",
    ]);
    const told = await chatStream({ stream_options: { include_usage: true } });
    expect(streamedText(told)).toBe(whole);
    expect(told.at(-1)).toMatchObject({ choices: [], usage });
  });

  test("gets log-probabilities, the same ones in a stream", async () => {
    const body = { logprobs: true, top_logprobs: 2 };
    const answer = await chat(body);
    const scores = answer.choices[0]!.logprobs!.content!;
    expect(scores).toHaveLength(40);
    for (const { logprob, top_logprobs: top } of scores) {
      expect(top).toHaveLength(2);
      expect(top[0]!.logprob).toBeGreaterThanOrEqual(Math.max(logprob, top[1]!.logprob));
    }
    const bytes = Uint8Array.from(scores.flatMap((score) => score.bytes!));
    expect(new TextDecoder().decode(bytes)).toBe(textOf(answer));
    const chunks = await chatStream(body);
    const streamed = chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? []);
    expect(streamed).toEqual(scores);
  });

  test("gets several answers, apart from one another in a stream too", async () => {
    const { choices, usage: used } = await chat({ n: 3 });
    const texts = choices.map(({ message }) => message.content!);
    expect(choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(new Set(texts).size).toBe(3);
    expect(used?.completion_tokens).toBe(120);
    const chunks = await chatStream({ n: 3 });
    expect([0, 1, 2].map((index) => streamedText(chunks, index))).toEqual(texts);
  });

  test("goes on with a conversation, whose beginning is not computed again", async () => {
    // Different for each package, as they share the key and with it the cache.
    const opening = { role: "user", content: `${language} asks: ${messages[0].content}` } as const;
    const first = await chat({ messages: [opening] });
    const second = await chat({
      messages: [
        opening,
        { role: "assistant", content: textOf(first) },
        { role: "user", content: [{ type: "text", text: "And what else?" }] },
      ],
    });
    const blocks = Math.floor(first.usage!.prompt_tokens / 32);
    expect(blocks).toBeGreaterThan(0);
    expect(first.usage!.prompt_tokens_details).toEqual({ cached_tokens: 0 });
    expect(second.usage!.prompt_tokens_details!.cached_tokens).toBeGreaterThanOrEqual(32 * blocks);
    expect(textOf(second)).not.toBe(textOf(first));
  });

  test("completes texts, with an echo and log-probabilities", async () => {
    const sampling = { max_tokens: 3, seed: 1, logit_bias: noControlTokens };
    const body = { prompt: ["to", "be"], echo: true, logprobs: 2, ...sampling };
    const completion = await complete(body);
    expect(completion).toEqual({
      id: expect.stringMatching(/^cmpl-/),
      object: "text_completion",
      created: expect.any(Number),
      model: "tiny",
      system_fingerprint: expect.any(String),
      choices: ["to", "be"].map((prompt, index) => ({
        index,
        text: expect.stringMatching(new RegExp(`^${prompt}`)),
        logprobs: {
          tokens: [...prompt, expect.any(String), expect.any(String), expect.any(String)],
          token_logprobs: [null, ...Array(4).fill(expect.any(Number))],
          top_logprobs: [null, ...Array(4).fill(expect.any(Object))],
          text_offset: [0, 1, 2, expect.any(Number), expect.any(Number)],
        },
        finish_reason: "length",
      })),
      usage: {
        prompt_tokens: 4,
        completion_tokens: 6,
        total_tokens: 10,
        prompt_tokens_details: { cached_tokens: 0 },
      },
    });
    const chunks = await completeStream(body);
    const choices = chunks.flatMap((chunk) => chunk.choices);
    for (const { index, text, logprobs } of completion.choices) {
      const own = choices.filter((choice) => choice.index === index);
      expect(own.map((choice) => choice.text).join("")).toBe(text);
      expect(own.flatMap((choice) => choice.logprobs?.token_logprobs ?? [])).toEqual(
        logprobs!.token_logprobs!,
      );
      expect(own.at(-1)!.finish_reason).toBe("length");
    }
  });

  test("gets embeddings, as numbers and as bytes", async () => {
    // By default the package asks for base64 and decodes it.
    const made = await embed({ input: "a text" });
    expect(made).toEqual({
      object: "list",
      model: "tiny",
      data: [{ object: "embedding", index: 0, embedding: Array(64).fill(expect.any(Number)) }],
      usage: { prompt_tokens: 6, total_tokens: 6 },
    });
    const [{ embedding }] = made.data as [Embedding];
    expect(Math.hypot(...embedding)).toBeCloseTo(1, 5);
    expect(await embed({ input: "a text", encoding_format: "float" })).toEqual(made);
    const { data } = await embed({ input: "a text", encoding_format: "base64" });
    const bytes = Buffer.from(data[0]!.embedding as unknown as string, "base64");
    const floats = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    expect([...floats]).toEqual(embedding);
    const several = await embed({ input: ["another one", "a text"], dimensions: 8 });
    expect(several.data.map((each) => [each.index, each.embedding.length])).toEqual([
      [0, 8],
      [1, 8],
    ]);
    expect(cosine(several.data[1]!.embedding, embedding.slice(0, 8))).toBeCloseTo(1, 5);
    expect(several.usage).toEqual({ prompt_tokens: 17, total_tokens: 17 });
  });

  test("lists the models and looks one up", async () => {
    const tiny = {
      id: "tiny",
      object: "model",
      created: expect.any(Number),
      owned_by: "mlx-serve",
      max_model_len: 4096,
    } as const;
    const { data } = (await ask({ method: "models", body: {} })) as { data: Model[] };
    expect(data[0]).toEqual(tiny);
    expect(await ask({ method: "model", body: "default" })).toEqual(tiny);
  });

  const invalid = { class: "BadRequestError", status: 400, type: "invalid_request_error" };
  const unknownModel = {
    class: "NotFoundError",
    status: 404,
    type: "invalid_request_error",
    param: "model",
    code: "model_not_found",
  };
  const refused: [string, () => Promise<unknown>, Partial<CallFailure>][] = [
    [
      "a wrong parameter",
      () => chat({ temperature: 3 }),
      { ...invalid, param: "temperature", code: wrong },
    ],
    [
      "a wrong parameter of a stream",
      () => chatStream({ top_p: 0 }),
      { ...invalid, param: "top_p", code: wrong },
    ],
    ["no messages", () => chat({ messages: [] }), { ...invalid, param: "messages", code: wrong }],
    [
      "a parameter that is not supported",
      () => chat({ prediction: { type: "content", content: "x" } }),
      { ...invalid, param: "prediction", code: "unsupported_parameter" },
    ],
    [
      "a prompt longer than the context",
      () => chatStream({ messages: [{ role: "user", content: "x".repeat(5000) }] }),
      { ...invalid, param: "messages", code: "context_length_exceeded" },
    ],
    [
      "too many prompts",
      () => complete({ prompt: Array(129).fill("x") }),
      { ...invalid, param: "prompt", code: wrong },
    ],
    [
      "an empty text to embed",
      () => embed({ input: "" }),
      { ...invalid, param: "input", code: wrong },
    ],
    ["an unknown model", () => chat({ model: "gpt-5" }), unknownModel],
    [
      "an unknown model's description",
      () => ask({ method: "model", body: "org/unknown" }),
      unknownModel,
    ],
    [
      "a wrong key",
      () => chat({}, { key: "sk-wrong" }),
      { ...wrongKey, param: null, code: "invalid_api_key" },
    ],
  ];
  test.each(refused)("gets %s refused at once, and does not try again", async (_, call, told) => {
    expect(await failureOf(call())).toEqual({
      ...told,
      message: expect.any(String),
      retryAfter: null,
      requestId: expect.stringMatching(/^req-/),
    } as CallFailure);
    expect(statuses()).toEqual([told.status!]);
  });

  test("asks again when the engine that died is back", async () => {
    const other = await server.occupy();
    const answer = chat();
    await server.until(async () => (await server.metric("mlx_serve_requests_waiting")) === 1);
    await server.serving.engine.kill();
    const text = textOf(await answer);
    // The other stream had started.
    expect(statuses().toSorted()).toEqual([200, 200, 500]);
    expect(textOf(await chat())).toBe(text);
    other.end();
  });

  testClient(server, {
    async whole({ key, retries, signal, maxTokens = 40, ...body } = {}) {
      const options = { ...(key && { key }), ...(retries === 0 && { retries }) };
      const whole = { ...body, max_tokens: maxTokens };
      const answer = await chat(whole, { ...options, ...(signal && { signal }) });
      return { text: textOf(answer), finish: answer.choices[0]!.finish_reason };
    },
    async streamed({ signal, maxTokens = 40, ...body } = {}) {
      const chunks = await chatStream({ ...body, max_tokens: maxTokens }, signal && { signal });
      return { text: streamedText(chunks), finish: chunks.at(-1)!.choices[0]!.finish_reason };
    },
    leave: async () => expect(await chatStream({ max_tokens: 4000 }, { take: 3 })).toHaveLength(3),
    errorOf: failureOf,
    errors: {
      limited: {
        class: "RateLimitError",
        status: 429,
        type: "requests",
        param: null,
        code: "rate_limit_exceeded",
        message: expect.stringContaining("requests at once"),
        retryAfter: "1",
        requestId: expect.stringMatching(/^req-/),
      },
      draining: { class: "InternalServerError", status: 503, retryAfter: "1" },
      broken: {
        class: "APIError",
        status: null,
        type: "server_error",
        param: null,
        code: null,
        message: "The answer failed.",
        retryAfter: null,
      },
      left: { class: expect.stringMatching(/^(APIUserAbort|Cancelled)Error$/) },
    },
    stopped: "stop",
    // Without Retry-After it would wait at most half a second.
    comesBackMs: [900, Infinity],
  });
});

function streamedText(chunks: readonly ChatCompletionChunk[], index = 0): string {
  const choices = chunks.flatMap((chunk) => chunk.choices);
  return choices
    .map((choice) => (choice.index === index ? (choice.delta.content ?? "") : ""))
    .join("");
}

function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  return dot / Math.hypot(...a) / Math.hypot(...b);
}
