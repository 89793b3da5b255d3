// The AI SDK with its provider for Anthropic's API.
import { describe, expect, test } from "bun:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { type CallSettings, generateText, Output, stepCountIs, streamText, tool } from "ai";
import * as z from "zod";
import { settled, useTestServer } from "../support/use-server.ts";
import { adapterOf, left, limited, optionsOf, streamed } from "./ai-sdk-calls.ts";
import { apiKey, useClientServer } from "./client-server.ts";
import { errorIn, testClient } from "./client-suite.ts";
import { rome, said, thought, withThinkingModel } from "./thinking-model.ts";

const server = useClientServer();
// The SDK sends no temperature to models that think.
const reciting = useTestServer(withThinkingModel({ args: ["--temperature", "0"] }), settled);

type Options = Pick<
  CallSettings,
  "abortSignal" | "maxOutputTokens" | "maxRetries" | "stopSequences"
> & { prompt?: string; model?: string; key?: string };

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
      model: provider(reciting.url)("tiny"),
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
    ["a prompt that is too long", { prompt: "x".repeat(5000) }, 400, "invalid_request_error"],
    ["an unknown model", { model: "x" }, 404, "not_found_error"],
    ["a wrong key", { key: "sk-wrong" }, 401, "authentication_error"],
  ];
  test.each(refused)(
    "gets %s refused at once, and does not try again",
    async (_, asked, statusCode, type) => {
      const data = { type: "error", error: { type, message: expect.any(String) } };
      const told = { statusCode, isRetryable: false, data };
      expect(await errorIn(generate(asked))).toMatchObject(told);
      expect(await errorIn(streamed(stream(asked)))).toMatchObject(told);
      expect(statuses()).toEqual([statusCode, statusCode]);
    },
  );

  testClient(server, {
    ...adapterOf(
      (asked) => generate(optionsOf(asked)),
      (asked) => stream(optionsOf(asked)),
    ),
    errors: {
      limited: { ...limited, data: { error: { type: "rate_limit_error" } } },
      draining: {
        statusCode: 529,
        isRetryable: true,
        data: { error: { type: "overloaded_error" } },
      },
      broken: { type: "api_error", message: "The answer failed." },
      left,
    },
    draining: 529,
    hasSeeds: false,
  });
});
