// The AI SDK with its provider for Anthropic's API.
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
import { createAnthropic } from "@ai-sdk/anthropic";
import { type CallSettings, generateText, Output, stepCountIs, streamText, tool } from "ai";
import * as z from "zod";
import { callErrorOf, expectWaited } from "./ai-sdk-calls.ts";
import {
  apiKey,
  type ClientServer,
  type Seen,
  singleKey,
  startClientServer,
} from "./client-server.ts";
import { rome, said, startThinkingModel, type ThinkingModel, thought } from "./thinking-model.ts";

// Some tests wait a second or two for a retry, and the machine may be busy.
setDefaultTimeout(30_000);

let server: ClientServer;
let reciting: ThinkingModel;
beforeAll(async () => {
  server = await startClientServer();
  // The SDK sends no temperature to models that think.
  reciting = await startThinkingModel({ args: ["--temperature", "0"] });
});
afterAll(async () => {
  await server.stop();
  await reciting.stop();
});
beforeEach(() => {
  server.seen.length = 0;
});
afterEach(async () => {
  await server.settled();
  await reciting.server.settled();
});

type Options = Pick<CallSettings, "abortSignal" | "maxOutputTokens" | "maxRetries"> & {
  prompt?: string;
  model?: string;
  key?: string;
};

const provider = (url: string, key = apiKey) =>
  createAnthropic({ baseURL: `${url}/v1`, apiKey: key });
const request = ({ model = "tiny", key, ...options }: Options = {}) => ({
  model: provider(server.url, key)(model),
  prompt: "Say something that is new to me.",
  temperature: 0,
  maxOutputTokens: 40,
  ...options,
});
const generate = (options?: Options) => generateText(request(options));
// Errors are parts of the stream; by default the SDK also prints them.
const stream = (options?: Options) => streamText({ ...request(options), onError: () => {} });
const statuses = () => server.seen.map(({ status }) => status);

describe("the AI SDK with Anthropic's provider", () => {
  test("generates a text, and streams the same one", async () => {
    const { text, finishReason, usage } = await generate();
    expect(text).toMatch(/./s);
    expect([finishReason, usage.outputTokens]).toEqual(["length", 40]);
    const streamed = stream();
    expect((await Array.fromAsync(streamed.textStream)).join("")).toBe(text);
    expect((await streamed.usage).outputTokens).toBe(40);
    expect(await streamed.finishReason).toBe("length");
  });

  test("thinks, calls tools and goes on with what they returned", async () => {
    const called: unknown[] = [];
    const execute = (input: unknown) => {
      called.push(input);
      return "Sunny.";
    };
    const { temperature: _, ...others } = request();
    const options = {
      ...others,
      model: provider(reciting.server.url)("tiny"),
      maxOutputTokens: 2000,
      providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
      tools: {
        now: tool({ inputSchema: z.object({}), execute }),
        get_weather: tool({ inputSchema: z.object({ city: z.string(), days: z.int() }), execute }),
      },
      stopWhen: stepCountIs(2),
    };
    const { steps } = await generateText(options);
    const step = { reasoningText: thought, text: said, finishReason: "tool-calls" };
    expect(steps).toMatchObject([step, step] as never);
    expect(called).toEqual([{}, rome, {}, rome]);
    const streamed = streamText({ ...options, onError: () => {} });
    expect(await streamed.steps).toMatchObject([step, step] as never);
  });

  test("gets objects that match a schema, the same one as a stream", async () => {
    const schema = z.object({ city: z.enum(["Paris", "Rome"]) });
    const asked = { ...request({ maxOutputTokens: 400 }), output: Output.object({ schema }) };
    const { output } = await generateText(asked);
    expect(schema.parse(output)).toEqual(output);
    expect(await streamText(asked).output).toEqual(output);
  });

  const refused: [string, Options, number, string][] = [
    [
      "a prompt longer than the context",
      { prompt: "x".repeat(5000) },
      400,
      "invalid_request_error",
    ],
    ["an unknown model", { model: "x" }, 404, "not_found_error"],
    ["a wrong key", { key: "sk-wrong" }, 401, "authentication_error"],
  ];
  test.each(refused)(
    "gets %s refused at once, and does not try again",
    async (_, asked, statusCode, type) => {
      const data = { type: "error", error: { type, message: expect.any(String) } };
      const told = { statusCode, isRetryable: false, data };
      expect(await callErrorOf(generate(asked))).toMatchObject(told);
      expect(await callErrorOf(failing(asked))).toMatchObject(told);
      expect(statuses()).toEqual([statusCode, statusCode]);
    },
  );

  test("that is over its limit is told so, and comes back by itself", async () => {
    const other = await server.occupy(singleKey);
    const error = await callErrorOf(generate({ key: singleKey, maxRetries: 0 }));
    expect(error).toMatchObject({
      statusCode: 429,
      isRetryable: true,
      responseHeaders: { "retry-after": "1" },
      data: { error: { type: "rate_limit_error" } },
    });
    const answer = generate({ key: singleKey });
    await server.until(() => statuses().length === 2);
    other.end();
    const { text } = await answer;
    // The other request ends in between.
    expect(statuses()).toEqual([429, 429, 200, 200]);
    const [, first, , last] = server.seen as [Seen, Seen, Seen, Seen];
    expectWaited(first, last);
    expect((await generate()).text).toBe(text);
  });

  test("that finds the server overloaded comes back, when it was told to", async () => {
    const { admission } = server.serving;
    admission.phase = "draining";
    const error = await callErrorOf(generate({ maxRetries: 0 }));
    expect(error).toMatchObject({
      statusCode: 529,
      isRetryable: true,
      data: { error: { type: "overloaded_error" } },
    });
    const answer = stream().text;
    await server.until(() => statuses().length === 2);
    admission.phase = "open";
    const text = await answer;
    expect(statuses()).toEqual([529, 529, 200]);
    expectWaited(...(server.seen.slice(1) as [Seen, Seen]));
    expect((await generate()).text).toBe(text);
  });

  test("gets an error in the middle of a stream, and does not ask again", async () => {
    const errors: unknown[] = [];
    let deltas = 0;
    for await (const part of stream({ maxOutputTokens: 4000 }).fullStream) {
      if (part.type === "text-delta" && ++deltas === 3) await server.serving.engine.kill();
      if (part.type === "error") errors.push(part.error);
    }
    expect(errors).toMatchObject([{ type: "api_error", message: "The answer failed." }]);
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
    ["before the first token", async (options: Options) => await stream(options).consumeStream()],
    [
      "before its answer is there",
      async (options: Options) => await generate(options).catch(() => {}),
    ],
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
async function failing(options: Options): Promise<void> {
  for await (const part of stream(options).fullStream) if (part.type === "error") throw part.error;
}
