import { beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { type AIMessageChunk, HumanMessage } from "@langchain/core/messages";
import { tool as langChainTool } from "@langchain/core/tools";
import { ChatOpenAI, type ChatOpenAICallOptions } from "@langchain/openai";
import { generateText, stepCountIs, streamText, type ToolChoice, tool } from "ai";
import OpenAI from "openai";
import { zodFunction } from "openai/helpers/zod";
import type { RunnableToolFunctionWithParse } from "openai/lib/RunnableFunction";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionFunctionTool,
  ChatCompletionMessageFunctionToolCall,
} from "openai/resources";
import * as z from "zod";
import { settled, useTestServer } from "../support/use-server.ts";
import { startOpenAi, useClient } from "./client-process.ts";

setDefaultTimeout(30_000);

/** Small, so that a random model finishes it soon. */
const Trip = z.object({ city: z.enum(["Paris", "Rome"]), days: z.int().min(1).max(9) });
type Trip = z.infer<typeof Trip>;
const trip = { city: expect.stringMatching(/^(Paris|Rome)$/), days: expect.any(Number) };
const [name, description] = ["get_weather", "The weather of the next days in a city."];
const days = { type: "integer", minimum: 1, maximum: 9 };
const weather = {
  type: "function",
  function: {
    name,
    description,
    parameters: {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] }, days },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
} satisfies ChatCompletionFunctionTool;
const time: ChatCompletionFunctionTool = { type: "function", function: { name: "get_time" } };
const question = "What will the weather be?";
const result = "Sunny, 21 degrees.";
const callId = expect.stringMatching(/^call_\w{24}$/);

/** A call and its result as they appear in the prompt. */
const told =
  /<tool_call>\n\{"name": "get_weather", "arguments": \{"city":"(Paris|Rome)","days":[1-9]\}\}\n<\/tool_call>.*<tool_response>\nSunny, 21 degrees\.\n<\/tool_response>/s;

const server = useTestServer({ args: ["--log-prompts"] }, settled);
let url: string;
let prompts: string[];
beforeAll(() => {
  url = `${server.url}/v1`;
  prompts = server.prompts;
});
beforeEach(() => {
  prompts.length = 0;
});

describe.each(["node", "Python"] as const)("OpenAI's package for %s", (language) => {
  const client = useClient(startOpenAi, language);

  type Body = Partial<Omit<ChatCompletionCreateParamsNonStreaming, "stream">>;
  const standard: ChatCompletionCreateParamsNonStreaming = {
    model: "tiny",
    messages: [{ role: "user", content: question }],
    tools: [weather],
    tool_choice: "required",
    max_tokens: 1000,
    seed: 7,
  };
  const ask = (body: Body & { stream?: boolean }) =>
    client.ask({ url, key: "none", method: "chat", body: { ...standard, ...body } });
  const chat = async (body: Body = {}) => (await ask(body)) as ChatCompletion;
  const chatStream = async (body: Body = {}) =>
    (await ask({ ...body, stream: true })) as ChatCompletionChunk[];

  test("gets a call, the same one as a stream", async () => {
    const body = { parallel_tool_calls: false };
    const { choices } = await chat(body);
    expect(choices).toEqual([
      {
        index: 0,
        message: {
          role: "assistant",
          content: null,
          tool_calls: [
            { id: callId, type: "function", function: { name, arguments: expect.any(String) } },
          ],
          refusal: null,
        },
        logprobs: null,
        finish_reason: "tool_calls",
      },
    ]);
    const calls = callsOf(choices[0]!.message);
    expect(calls.map(argumentsOf)).toEqual([trip]);
    const chunks = await chatStream(body);
    expect(streamedCalls(chunks)).toEqual(anyIds(calls));
    expect(chunks.map((chunk) => chunk.choices[0]!.finish_reason)).toEqual([
      ...chunks.slice(1).map(() => null),
      "tool_calls",
    ]);
    expect(chunks.map((chunk) => chunk.choices[0]!.delta.content ?? "").join("")).toBe("");
  });

  test("gets several calls at once, or one if it allows one", async () => {
    const asked = { n: 16, tools: [weather, time] };
    const several = (await chat(asked)).choices.map(({ message }) => callsOf(message));
    expect(new Set(several.map(({ length }) => length)).size).toBeGreaterThan(1);
    const calls = several.flat();
    expect(new Set(calls.map(({ id }) => id)).size).toBe(calls.length);
    for (const call of calls) {
      expect(argumentsOf(call)).toEqual(call.function.name === name ? trip : {});
    }
    const chunks = await chatStream(asked);
    const streamed = several.map((_, index) => streamedCalls(chunks, index));
    expect(streamed).toEqual(several.map(anyIds));
    const { choices } = await chat({ ...asked, parallel_tool_calls: false });
    expect(choices.map(({ message }) => callsOf(message).length)).toEqual(Array(16).fill(1));
  });

  test("gets a call of the function that it names", async () => {
    const tool_choice = { type: "function", function: { name: "get_time" } } as const;
    const { choices } = await chat({ n: 8, tools: [weather, time], tool_choice });
    const calls = choices.map(({ message }) => callsOf(message).map((call) => call.function));
    expect(calls).toEqual(Array(8).fill([{ name: "get_time", arguments: "{}" }]));
  });

  test("tells the model what a function returned", async () => {
    const { choices } = await chat({ parallel_tool_calls: false });
    const { message } = choices[0]!;
    const { choices: next } = await chat({
      messages: [
        ...standard.messages,
        message,
        ...callsOf(message).map(({ id }) => ({
          role: "tool" as const,
          tool_call_id: id,
          content: result,
        })),
      ],
      tool_choice: "none",
      max_tokens: 8,
    });
    expect(next[0]!.message.content).toEqual(expect.any(String));
    expect(next[0]!.message.tool_calls).toBeUndefined();
    expect(next[0]!.finish_reason).not.toBe("tool_calls");
    await server.settled();
    expect(prompts[0]).not.toContain(result);
    expect(prompts[1]).toMatch(told);
  });

  test("gets a function that is none of its tools refused", async () => {
    const tool_choice = { type: "function", function: { name: "get_news" } } as const;
    const error: unknown = await chat({ tool_choice }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      failure: {
        class: "BadRequestError",
        status: 400,
        param: "tool_choice",
        code: "invalid_value",
      },
    });
  });
});

describe("OpenAI's helpers", () => {
  const client = () => new OpenAI({ baseURL: url, apiKey: "none" });
  const common = {
    model: "tiny",
    messages: [{ role: "user" as const, content: question }],
    tool_choice: "required" as const,
    parallel_tool_calls: false,
    max_tokens: 200,
    seed: 7,
  };

  test("read a stream, and the arguments in it", async () => {
    const stream = client().chat.completions.stream({
      ...common,
      tools: [zodFunction({ name, description, parameters: Trip })],
    });
    const done: unknown[] = [];
    let deltas = "";
    stream.on("tool_calls.function.arguments.delta", ({ arguments_delta: delta }) => {
      deltas += delta;
    });
    stream.on("tool_calls.function.arguments.done", (call) => done.push(call));
    const { choices } = await stream.finalChatCompletion();
    const { finish_reason, message } = choices[0]!;
    const called = message.tool_calls![0]!.function;
    expect(called).toEqual({ name, arguments: deltas, parsed_arguments: trip });
    expect(done).toEqual([{ index: 0, ...called }]);
    expect(finish_reason).toBe("tool_calls");
  });

  test.each([false, true])(
    "call functions and send on what they return; a stream: %p",
    async (stream) => {
      const given: Trip[] = [];
      const tools: [RunnableToolFunctionWithParse<Trip>] = [
        {
          type: "function",
          function: {
            ...weather.function,
            parse: (text) => Trip.parse(JSON.parse(text)),
            function: (trip) => {
              given.push(trip);
              return result;
            },
          },
        },
      ];
      const { completions } = client().chat;
      const twice = { maxChatCompletions: 2 };
      const runner = stream
        ? completions.runTools({ ...common, tools, stream }, twice)
        : completions.runTools({ ...common, tools }, twice);
      await runner.done();
      expect(given).toEqual([trip, trip]);
      const roles = runner.messages.map(({ role }) => role).join(", ");
      expect(roles).toBe("user, assistant, tool, assistant, tool");
      await server.settled();
      expect(prompts[1]).toMatch(told);
    },
  );
});

describe("the AI SDK", () => {
  const given: unknown[] = [];
  beforeEach(() => {
    given.length = 0;
  });
  const tools = {
    [name]: tool({
      description,
      inputSchema: Trip,
      execute: (asked) => {
        given.push(asked);
        return result;
      },
    }),
  };
  /** Must call a function first, then answer with text. */
  const asked = () => ({
    model: createOpenAICompatible({ name: "tiny", baseURL: url })("tiny"),
    prompt: question,
    tools,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }: { stepNumber: number }) => ({
      toolChoice: (stepNumber === 0 ? "required" : "none") as ToolChoice<typeof tools>,
    }),
    seed: 7,
    maxOutputTokens: 200,
    providerOptions: { tiny: { parallel_tool_calls: false } },
  });

  test("calls a function and goes on with what it returned", async () => {
    const { steps, text } = await generateText(asked());
    expect(given).toEqual([trip]);
    const [first, second] = steps;
    expect(first).toMatchObject({
      finishReason: "tool-calls",
      toolCalls: [{ toolName: name, toolCallId: callId, input: given[0] }],
      toolResults: [{ toolName: name, output: result }],
    });
    expect(second!.toolCalls).toEqual([]);
    expect(second!.finishReason).not.toBe("tool-calls");
    expect(text.length).toBeGreaterThan(0);
    await server.settled();
    expect(prompts).toHaveLength(2);
    expect(prompts[1]).toMatch(told);
  });

  test("does the same in a stream", async () => {
    const whole = await generateText(asked());
    const streamed = streamText(asked());
    const parts = await Array.fromAsync(streamed.fullStream);
    const own = parts.filter(({ type }) => type.startsWith("tool-"));
    expect(own).toMatchObject([
      { type: "tool-input-start", toolName: name, id: callId },
      ...own.filter(({ type }) => type === "tool-input-delta"),
      { type: "tool-input-end" },
      { type: "tool-call", toolName: name, input: trip },
      { type: "tool-result", output: result },
    ]);
    expect(given).toHaveLength(2);
    expect(given[1]).toEqual(given[0]);
    expect(await streamed.text).toBe(whole.text);
    expect((await streamed.steps).map(({ finishReason }) => finishReason)).toEqual(
      whole.steps.map(({ finishReason }) => finishReason),
    );
    await server.settled();
    expect(prompts[3]).toBe(prompts[1]!);
  });

  test("calls several functions at once", async () => {
    const more = { seed: 6, maxOutputTokens: 1000, providerOptions: {} };
    const { steps } = await generateText({ ...asked(), ...more });
    expect(steps[0]!.toolCalls.length).toBeGreaterThan(1);
    expect(given).toEqual(steps[0]!.toolCalls.map(({ input }) => input));
    await server.settled();
    expect(prompts[1]!.split(result)).toHaveLength(given.length + 1);
  });
});

describe("LangChain", () => {
  const getWeather = langChainTool(() => result, { name, description, schema: Trip });
  const model = (options: Partial<ChatOpenAICallOptions>) =>
    new ChatOpenAI({
      model: "tiny",
      apiKey: "none",
      configuration: { baseURL: url },
      maxTokens: 200,
    }).bindTools([getWeather], { seed: 7, parallel_tool_calls: false, ...options });

  test("calls a function and goes on with what it returned", async () => {
    const opening = new HumanMessage(question);
    const answer = await model({ tool_choice: "required" }).invoke([opening]);
    expect(answer.tool_calls).toEqual([{ name, args: trip, id: callId, type: "tool_call" }]);
    expect(answer.response_metadata.finish_reason).toBe("tool_calls");
    const returned = await getWeather.invoke(answer.tool_calls![0]!);
    const next = await model({ tool_choice: "none" }).invoke([opening, answer, returned]);
    expect(next.tool_calls).toEqual([]);
    expect(next.text.length).toBeGreaterThan(0);
    await server.settled();
    expect(prompts[1]).toMatch(told);
  });

  test("streams the same call", async () => {
    const bound = model({ tool_choice: name });
    const { tool_calls: whole } = await bound.invoke(question);
    const chunks: AIMessageChunk[] = await Array.fromAsync(await bound.stream(question));
    const { tool_calls: calls } = chunks.reduce((a, b) => a.concat(b));
    expect(calls).toEqual([{ ...whole![0]!, id: callId }]);
  });
});

function callsOf({ tool_calls: calls }: ChatCompletion["choices"][number]["message"]) {
  return calls as ChatCompletionMessageFunctionToolCall[];
}

function argumentsOf(call: ChatCompletionMessageFunctionToolCall): unknown {
  return JSON.parse(call.function.arguments);
}

/** Ids differ between answers. */
function anyIds(calls: readonly ChatCompletionMessageFunctionToolCall[]) {
  return calls.map((call) => ({ ...call, id: callId }));
}

/** The calls of a stream; id and name come once, at the start of a call. */
function streamedCalls(chunks: readonly ChatCompletionChunk[], index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((each) => each.index === index);
  const calls: ChatCompletionMessageFunctionToolCall[] = [];
  for (const { index: at, ...delta } of choices.flatMap(({ delta }) => delta.tool_calls ?? [])) {
    const call = calls[at];
    if (!call) {
      expect(at).toBe(calls.length);
      calls.push(delta as ChatCompletionMessageFunctionToolCall);
      continue;
    }
    expect(delta).toEqual({ function: { arguments: expect.any(String) } });
    call.function.arguments += delta.function!.arguments;
  }
  return calls;
}
