// Streams one answer: turns the server's chunks into successive states of the message.
import type { ErrorResponse } from "../../api/error.ts";
import type { ChatChunk } from "../../api/openai/chat.ts";
import { ask, messageOf, serverEvents } from "../parts/server.ts";
import type { Call, Message } from "./chat.ts";

type Delta = NonNullable<ChatChunk["choices"][number]>["delta"];

/** Calls `onChange` with each state of the message; the last one is no longer streaming. */
export async function streamAnswer(
  start: Message,
  body: object,
  signal: AbortSignal,
  onChange: (message: Message) => void,
): Promise<void> {
  let message: Message = { ...start, state: "streaming" };
  const startMs = performance.now();
  let [firstMs, lastMs] = [0, 0];
  const change = (next: Partial<Message>) => {
    message = { ...message, ...next };
    onChange(message);
  };
  try {
    const response = await ask("/v1/chat/completions", { body, signal });
    for await (const { data } of serverEvents(response)) {
      if (data === "[DONE]") continue;
      const chunk = JSON.parse(data) as ChatChunk | ErrorResponse;
      if ("error" in chunk) throw new Error(chunk.error.message);
      const [choice] = chunk.choices;
      if (choice && hasText(choice.delta)) {
        lastMs = performance.now();
        firstMs ||= lastMs;
        change({
          ...grown(message, choice.delta),
          figures: { ...message.figures, ttftMs: firstMs - startMs },
        });
      }
      if (choice?.finish_reason) change({ finish: choice.finish_reason });
      if (chunk.usage) {
        const { prompt_tokens, completion_tokens, prompt_tokens_details } = chunk.usage;
        const decodeMs = lastMs - firstMs;
        change({
          figures: {
            ...message.figures,
            promptTokens: prompt_tokens,
            completionTokens: completion_tokens,
            cachedTokens: prompt_tokens_details?.cached_tokens ?? 0,
            ...(decodeMs > 0 && { tokensPerSecond: ((completion_tokens - 1) * 1000) / decodeMs }),
          },
        });
      }
    }
    change({ state: "done" });
  } catch (error) {
    if (signal.aborted) change({ state: "stopped" });
    else change({ state: "failed", error: messageOf(error) });
  }
}

const hasText = ({ content, reasoning_content, tool_calls }: Delta) =>
  Boolean(content || reasoning_content || tool_calls?.length);

function grown(message: Message, delta: Delta): Partial<Message> {
  const { content = "", reasoning_content = "", tool_calls = [] } = delta;
  const calls = [...(message.calls ?? [])];
  for (const { index, id, function: called } of tool_calls) {
    const before: Call = calls[index] ?? { id: "", name: "", arguments: "" };
    calls[index] = {
      id: id ?? before.id,
      name: called.name ?? before.name,
      arguments: before.arguments + called.arguments,
    };
  }
  return {
    text: message.text + content,
    ...(reasoning_content && { thought: (message.thought ?? "") + reasoning_content }),
    ...(calls.length > 0 && { calls }),
  };
}
