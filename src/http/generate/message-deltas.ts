// An answer in the format of OpenAI's chat API: as deltas or as a whole message.
import type { ChatChunk, ChatResponse } from "../../api/openai/chat.ts";
import type { FinishReason } from "../../api/sampling.ts";
import type { Part } from "../../conversation/conversation.ts";
import type { AnswerEvent, End } from "../../conversation/events.ts";

type Delta = ChatChunk["choices"][number]["delta"];
type Message = ChatResponse["choices"][number]["message"];

export const finishReasons: Readonly<Record<End["reason"], FinishReason>> = {
  stop: "stop",
  length: "length",
  calls: "tool_calls",
};

/** Converts an event to deltas; returns none if the API has no delta for it. */
export function deltasOf(event: AnswerEvent): Delta[] {
  switch (event.kind) {
    case "text":
      return [{ content: event.text }];
    case "thought":
      return [{ reasoning_content: event.text }];
    case "call": {
      const { call: index, id, name } = event;
      return [{ tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }] }];
    }
    case "arguments":
      return [{ tool_calls: [{ index: event.call, function: { arguments: event.text } }] }];
    case "call_end":
    case "end":
      return [];
  }
}

export function messageOf(parts: readonly Part[]): Message {
  const calls = parts.filter((part) => part.kind === "call");
  const reasoning = textOf(parts, "thought");
  const content = textOf(parts, "text");
  return {
    role: "assistant",
    content: content === "" && calls.length > 0 ? null : content,
    ...(reasoning !== "" && { reasoning_content: reasoning }),
    ...(calls.length > 0 && {
      tool_calls: calls.map(({ id, name, arguments: given }) => ({
        id: id!,
        type: "function",
        function: { name, arguments: given },
      })),
    }),
    refusal: null,
  };
}

function textOf(parts: readonly Part[], kind: "text" | "thought"): string {
  return parts.flatMap((part) => (part.kind === kind ? [part.text] : [])).join("");
}
