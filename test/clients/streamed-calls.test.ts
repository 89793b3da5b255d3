// Calls whose arguments clients get while the model writes them: in many pieces, which together are the arguments of
// the whole response; and a client that leaves after a few of them ends the call in its middle.
import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, jsonSchema, type LanguageModel, streamText, type ToolSet } from "ai";
import OpenAI from "openai";
import { settled, useTestServer } from "../support/use-server.ts";

setDefaultTimeout(60_000);

const server = useTestServer({}, settled);
let url: string;
beforeAll(() => {
  url = `${server.url}/v1`;
});

const model = "tiny";
const [name, question] = ["note", "Write something down."];
const messages = [{ role: "user" as const, content: question }];
const maxTokens = 3000;

/** Of exactly this many characters. */
const parameters = (length: number) => ({
  type: "object" as const,
  properties: { text: { type: "string" as const, minLength: length, maxLength: length } },
  required: ["text"],
  additionalProperties: false,
});

type Client = {
  /** The arguments of the call in a whole response. */
  whole(length: number): Promise<unknown>;
  /** The pieces of the call in a stream. `leave` is called to end it early. */
  stream(length: number, take: (piece: string, leave: () => void) => void): Promise<void>;
};

const openai = () => new OpenAI({ baseURL: url, apiKey: "none" });

const chat: Client = {
  async whole(length) {
    const { choices } = await openai().chat.completions.create(chatRequest(length));
    const [call] = choices[0]!.message.tool_calls!;
    return call!.type === "function" && JSON.parse(call!.function.arguments);
  },
  async stream(length, take) {
    const stream = openai().chat.completions.stream(chatRequest(length));
    stream.on("tool_calls.function.arguments.delta", ({ arguments_delta }) =>
      take(arguments_delta, () => stream.abort()),
    );
    await stream.done();
  },
};

const chatRequest = (length: number) => ({
  ...{ model, messages, temperature: 0, max_tokens: maxTokens, parallel_tool_calls: false },
  tool_choice: "required" as const,
  tools: [{ type: "function" as const, function: { name, parameters: parameters(length) } }],
});

/** `take` gets the pieces of the arguments, which are the input itself if the tool is a custom one. */
function responses(tools: (length: number) => OpenAI.Responses.Tool[]): Client {
  const request = (length: number) => ({
    ...{ model, input: question, temperature: 0, max_output_tokens: maxTokens },
    parallel_tool_calls: false,
    tool_choice: "required" as const,
    tools: tools(length),
  });
  return {
    async whole(length) {
      const [call] = (await openai().responses.create(request(length))).output;
      if (call?.type === "custom_tool_call") return { text: call.input };
      return call?.type === "function_call" && JSON.parse(call.arguments);
    },
    async stream(length, take) {
      const stream = openai().responses.stream(request(length));
      const isCustom = request(length).tools[0]!.type === "custom";
      if (isCustom) take('{"text":"', () => {});
      for await (const event of stream) {
        if (event.type === "response.function_call_arguments.delta") {
          take(event.delta, () => stream.abort());
        }
        if (event.type === "response.custom_tool_call_input.delta") {
          take(JSON.stringify(event.delta).slice(1, -1), () => stream.abort());
        }
      }
      if (isCustom) take('"}', () => {});
    },
  };
}

const functionTool = (length: number): OpenAI.Responses.Tool => ({
  ...{ type: "function", name, strict: null },
  parameters: parameters(length),
});
const customTool = (length: number): OpenAI.Responses.Tool => ({
  ...{ type: "custom", name },
  // Longer repetitions are refused.
  format: {
    ...{ type: "grammar", syntax: "regex" },
    definition: length > 100 ? '[a-z"]{100,}' : `[a-z"]{${length}}`,
  },
});

const anthropic: Client = {
  async whole(length) {
    const { content } = await new Anthropic({
      baseURL: server.url,
      apiKey: "none",
    }).messages.create(messagesRequest(length));
    return content[0]!.type === "tool_use" && content[0]!.input;
  },
  async stream(length, take) {
    const { messages } = new Anthropic({ baseURL: server.url, apiKey: "none" });
    const stream = messages.stream(messagesRequest(length));
    stream.on("inputJson", (piece) => take(piece, () => stream.abort()));
    await stream.done();
  },
};

const messagesRequest = (length: number) => ({
  ...{ model, messages, temperature: 0, max_tokens: maxTokens },
  tool_choice: { type: "any" as const, disable_parallel_tool_use: true },
  tools: [{ name, input_schema: parameters(length) }],
});

function aiSdk(languageModel: () => LanguageModel): Client {
  const request = (length: number) => ({
    ...{ model: languageModel(), prompt: question, temperature: 0, maxOutputTokens: maxTokens },
    tools: { [name]: { inputSchema: jsonSchema(parameters(length)) } } as ToolSet,
    toolChoice: { type: "tool" as const, toolName: name },
  });
  return {
    whole: async (length) => (await generateText(request(length))).toolCalls[0]!.input,
    async stream(length, take) {
      const leaving = new AbortController();
      const { fullStream } = streamText({ ...request(length), abortSignal: leaving.signal });
      for await (const part of fullStream) {
        if (part.type === "tool-input-delta") take(part.delta, () => leaving.abort());
      }
    },
  };
}

const clients: [string, Client][] = [
  ["OpenAI's package, by chat completions", chat],
  ["OpenAI's package, by responses", responses((length) => [functionTool(length)])],
  ["OpenAI's package, with a custom tool", responses((length) => [customTool(length)])],
  ["Anthropic's package", anthropic],
  ["the AI SDK", aiSdk(() => createOpenAICompatible({ name: model, baseURL: url })(model))],
  [
    "the AI SDK, by Anthropic's API",
    aiSdk(() => createAnthropic({ baseURL: url, apiKey: "none" })(model)),
  ],
];

describe.each(clients)("%s", (_, { whole, stream }) => {
  test("gets a call's arguments in pieces that are those of the whole response", async () => {
    const pieces: string[] = [];
    await stream(100, (piece) => pieces.push(piece));
    expect(pieces.filter((piece) => piece !== "").length).toBeGreaterThan(50);
    expect(JSON.parse(pieces.join(""))).toEqual(await whole(100));
  });

  test("has them before the call is complete", async () => {
    const tokens = () => server.metric("mlx_serve_inter_token_seconds_count");
    const before = await tokens();
    let pieces = 0;
    const ended = stream(2000, (_, leave) => {
      pieces += 1;
      if (pieces === 5) leave();
    });
    // Some clients throw.
    await ended.catch(() => {});
    expect(pieces).toBeGreaterThanOrEqual(5);
    await server.settled();
    expect((await tokens()) - before).toBeWithin(1, 400);
  });
});
