// The AI SDK, by Anthropic's API and by OpenAI's, in both turns of a conversation with tools.
import { setDefaultTimeout, test } from "bun:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, type LanguageModel, type ModelMessage, streamText, type ToolSet } from "ai";
import * as z from "zod";
import { settled, useTestServer } from "../support/use-server.ts";
import { expectRoundTrip, maxTokens, question, resultOf, system } from "./round-trip.ts";
import { withThinkingModel } from "./thinking-model.ts";

setDefaultTimeout(30_000);

// The SDK sends no temperature to models that think.
const model = useTestServer(
  withThinkingModel({ always: true, args: ["--temperature", "0"] }),
  settled,
);

const url = () => `${model.url}/v1`;
const tools: ToolSet = {
  now: { inputSchema: z.object({}) },
  get_weather: { inputSchema: z.object({ city: z.string(), days: z.int() }) },
};

test.each([
  ["Anthropic's", () => createAnthropic({ baseURL: url(), apiKey: "none" })("tiny")],
  [
    "the OpenAI-compatible",
    () => createOpenAICompatible({ name: "tiny", baseURL: url(), includeUsage: true })("tiny"),
  ],
] as [string, () => LanguageModel][])("the AI SDK with %s provider", async (_, languageModel) => {
  type Answer = {
    reasoningText: string | undefined;
    text: string;
    toolCalls: { toolCallId: string; toolName: string; input: unknown }[];
    inputTokens: number | undefined;
    messages: ModelMessage[];
  };
  await expectRoundTrip<Answer>(model, {
    async ask(stream, before) {
      const results = (before?.toolCalls ?? []).map(({ toolCallId, toolName }) => ({
        type: "tool-result" as const,
        toolCallId,
        toolName,
        output: { type: "text" as const, value: resultOf(toolName) },
      }));
      const asked = {
        model: languageModel(),
        system,
        messages: [
          { role: "user", content: question },
          ...(before ? [...before.messages, { role: "tool", content: results }] : []),
        ] as ModelMessage[],
        tools,
        maxOutputTokens: maxTokens,
        providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
      };
      const result = stream ? streamText(asked) : await generateText(asked);
      return {
        reasoningText: await result.reasoningText,
        text: await result.text,
        toolCalls: await result.toolCalls,
        inputTokens: (await result.usage).inputTokens,
        messages: (await result.response).messages,
      };
    },
    turnOf: ({ reasoningText, text, toolCalls, inputTokens }) => ({
      thought: reasoningText ?? "",
      said: text,
      calls: toolCalls.map(({ toolName, input }) => [toolName, input]),
      tokens: inputTokens ?? 0,
    }),
  });
});
