// OpenAI's and Anthropic's packages, for node and Python, in both turns of a conversation with tools.
import { afterAll, beforeAll, describe, setDefaultTimeout, test } from "bun:test";
import type { Message, MessageParam } from "@anthropic-ai/sdk/resources/messages";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionMessageParam,
} from "openai/resources";
import type {
  Response,
  ResponseInputItem,
  ResponseStreamEvent,
} from "openai/resources/responses/responses";
import { messageOf, type StreamEvent } from "../support/anthropic-events.ts";
import { settled, useTestServer } from "../support/use-server.ts";
import { type ClientProcess, startAnthropic, startOpenAi } from "./client-process.ts";
import {
  expectRoundTrip,
  functions,
  maxTokens,
  question,
  resultOf,
  system,
  type Turn,
} from "./round-trip.ts";
import { withThinkingModel } from "./thinking-model.ts";

setDefaultTimeout(30_000);

const model = useTestServer(
  withThinkingModel({ always: true, args: ["--temperature", "0"] }),
  settled,
);

const url = () => model.url;
const parsed = (text: string): unknown => JSON.parse(text);

type Streamed = {
  thought: string;
  said: string;
  calls: Map<number, { id: string; name: string; json: string }>;
};

describe.each(["node", "Python"] as const)("in %s", (language) => {
  let openai: ClientProcess;
  let anthropic: ClientProcess;
  beforeAll(() => {
    openai = startOpenAi(language);
    anthropic = startAnthropic(language);
  }, 300_000);
  afterAll(async () => {
    await openai.stop();
    await anthropic.stop();
  });

  test("OpenAI's package with chat completions", async () => {
    type Answer = Streamed & { tokens: number };
    const messagesOf = (before: Answer | undefined): ChatCompletionMessageParam[] => {
      const opening: ChatCompletionMessageParam[] = [
        { role: "system", content: system },
        { role: "user", content: question },
      ];
      if (!before) return opening;
      const calls = [...before.calls.values()];
      const message = {
        role: "assistant" as const,
        content: before.said,
        reasoning_content: before.thought,
        tool_calls: calls.map(({ id, name, json }) => ({
          id,
          type: "function" as const,
          function: { name, arguments: json },
        })),
      };
      const results = calls.map(({ id, name }) => {
        return { role: "tool" as const, tool_call_id: id, content: resultOf(name) };
      });
      return [...opening, message, ...results];
    };
    await expectRoundTrip<Answer>(model, {
      async ask(stream, before) {
        const body = {
          model: "tiny",
          messages: messagesOf(before),
          tools: functions.map((each) => ({ type: "function" as const, function: each })),
          max_tokens: maxTokens,
          ...(stream && { stream, stream_options: { include_usage: true } }),
        };
        const result = await openai.ask({ url: `${url()}/v1`, key: "none", method: "chat", body });
        const answer: Answer = { thought: "", said: "", calls: new Map(), tokens: 0 };
        const parts = stream ? (result as ChatCompletionChunk[]) : [result as ChatCompletion];
        for (const { choices, usage } of parts) {
          answer.tokens += usage?.prompt_tokens ?? 0;
          for (const choice of choices) {
            const delta = "delta" in choice ? choice.delta : choice.message;
            answer.thought += (delta as { reasoning_content?: string }).reasoning_content ?? "";
            answer.said += delta.content ?? "";
            for (const [i, call] of (delta.tool_calls ?? []).entries()) {
              if (!("function" in call)) throw new Error("a call of another kind");
              const index = "index" in call ? call.index : i;
              const known = answer.calls.get(index) ?? { id: "", name: "", json: "" };
              answer.calls.set(index, {
                id: known.id + (call.id ?? ""),
                name: known.name + (call.function?.name ?? ""),
                json: known.json + (call.function?.arguments ?? ""),
              });
            }
          }
        }
        return answer;
      },
      turnOf: ({ calls, ...answer }) => ({
        ...answer,
        calls: [...calls.values()].map(({ name, json }) => [name, parsed(json)]),
      }),
    });
  });

  test.each([
    ["that are stored", true],
    ["that it sends back", false],
  ])("OpenAI's package with responses %s", async (_, store) => {
    const opening = { role: "user" as const, content: question };
    await expectRoundTrip<Response>(model, {
      async ask(stream, before) {
        const results = (before?.output ?? []).flatMap((item): ResponseInputItem[] => {
          if (item.type !== "function_call") return [];
          const output = resultOf(item.name);
          return [{ type: "function_call_output", call_id: item.call_id, output }];
        });
        const sent = store || !before ? [] : [opening, ...(before.output as ResponseInputItem[])];
        const body = {
          model: "tiny",
          instructions: system,
          input: before ? [...sent, ...results] : [opening],
          tools: functions.map((each) => ({ type: "function" as const, strict: false, ...each })),
          max_output_tokens: maxTokens,
          stream,
          store,
          ...(store && before && { previous_response_id: before.id }),
        };
        const result = await openai.ask({
          url: `${url()}/v1`,
          key: "none",
          method: "responses",
          body,
        });
        if (!stream) return result as Response;
        const last = (result as ResponseStreamEvent[]).at(-1)!;
        if (last.type !== "response.completed") throw new Error(`it ended with ${last.type}`);
        return last.response;
      },
      turnOf({ output, usage }) {
        const textsOf = (type: string) =>
          output.map((item) =>
            item.type === type && "content" in item
              ? (item.content as { text: string }[]).map(({ text }) => text).join("")
              : "",
          );
        return {
          thought: textsOf("reasoning").join(""),
          said: textsOf("message").join(""),
          calls: output.flatMap((item): Turn["calls"] =>
            item.type === "function_call" ? [[item.name, parsed(item.arguments)]] : [],
          ),
          tokens: usage!.input_tokens,
        };
      },
    });
  });

  test("Anthropic's package", async () => {
    const bodyOf = (before: Message | undefined) => {
      const messages: MessageParam[] = [{ role: "user", content: question }];
      if (before) {
        const results = before.content.flatMap((block) =>
          block.type === "tool_use"
            ? [
                {
                  type: "tool_result" as const,
                  tool_use_id: block.id,
                  content: resultOf(block.name),
                },
              ]
            : [],
        );
        messages.push({ role: "assistant", content: before.content });
        messages.push({ role: "user", content: results });
      }
      return {
        model: "tiny",
        system,
        messages,
        tools: functions.map(({ parameters, ...each }) => ({ ...each, input_schema: parameters })),
        thinking: { type: "enabled" as const, budget_tokens: 1024 },
      };
    };
    const calling = () => ({ url: url(), key: "none" });
    await expectRoundTrip<Message>(model, {
      async ask(stream, before) {
        const body = { ...bodyOf(before), max_tokens: maxTokens, stream };
        const result = await anthropic.ask({ ...calling(), method: "messages", body });
        return stream
          ? (messageOf(result as StreamEvent[]) as unknown as Message)
          : (result as Message);
      },
      turnOf: ({ content, usage }) => ({
        thought: content.map((each) => (each.type === "thinking" ? each.thinking : "")).join(""),
        said: content.map((each) => (each.type === "text" ? each.text : "")).join(""),
        calls: content.flatMap((each): Turn["calls"] =>
          each.type === "tool_use" ? [[each.name, each.input]] : [],
        ),
        tokens: usage.input_tokens + (usage.cache_read_input_tokens ?? 0),
      }),
      async count(before) {
        const body = bodyOf(before);
        const counted = await anthropic.ask({ ...calling(), method: "count tokens", body });
        return (counted as { input_tokens: number }).input_tokens;
      },
    });
  });
});
