// One answer's text as a message of content, thoughts and calls: in deltas as OpenAI streams them, or whole.
import type { ChatChunk, ChatResponse } from "../api/chat.ts";
import type { FinishReason } from "../api/sampling.ts";
import type { AnswerPiece } from "../serve/answer-text.ts";
import type { Call, MessagePart, ToolFormat } from "../tools/format.ts";
import type { MessageParser } from "../tools/message.ts";

type Delta = ChatChunk["choices"][number]["delta"];
type Message = ChatResponse["choices"][number]["message"];

/** How an answer's text is parsed and its calls get ids. Calls beyond `maxCalls` are dropped. */
export type MessageReader = Pick<ToolFormat, "newCallId"> & {
  parser: MessageParser;
  maxCalls: number;
};

export class MessageDeltas {
  readonly #reader: MessageReader;
  readonly #ids = new Set<string>();
  #calls = 0;

  constructor(reader: MessageReader) {
    this.#reader = reader;
  }

  push(piece: AnswerPiece): Delta[] {
    return this.#parts(piece).flatMap((part) => this.#deltas(part));
  }

  /** The whole message, if nothing was pushed before. */
  whole(piece: AnswerPiece): Message {
    const parts = this.#parts(piece);
    const calls = parts.filter((part) => part.kind === "call").slice(0, this.#reader.maxCalls);
    this.#calls += calls.length;
    const reasoning = textOf(parts, "reasoning");
    const content = textOf(parts, "content");
    return {
      role: "assistant",
      content: content === "" && calls.length > 0 ? null : content,
      ...(reasoning !== "" && { reasoning_content: reasoning }),
      ...(calls.length > 0 && {
        tool_calls: calls.map((call) => ({
          id: this.#idOf(call),
          type: "function",
          function: { name: call.name, arguments: call.arguments },
        })),
      }),
      refusal: null,
    };
  }

  /** As with OpenAI, the token limit takes precedence over calls: the last one may be cut off. */
  finishReason(finished: "stop" | "length"): FinishReason {
    return finished === "stop" && this.#calls > 0 ? "tool_calls" : finished;
  }

  /** The model's own id, unless it used it before. */
  #idOf({ id }: Call): string {
    const own = id === undefined || this.#ids.has(id) ? this.#reader.newCallId() : id;
    this.#ids.add(own);
    return own;
  }

  #parts({ text, finished }: AnswerPiece): MessagePart[] {
    const { parser } = this.#reader;
    return [...parser.push(text), ...(finished ? parser.end(finished === "length") : [])];
  }

  #deltas(part: MessagePart): Delta[] {
    switch (part.kind) {
      case "content":
        return [{ content: part.text }];
      case "reasoning":
        return [{ reasoning_content: part.text }];
      case "call": {
        if (this.#calls >= this.#reader.maxCalls) return [];
        const index = this.#calls++;
        const head = {
          index,
          id: this.#idOf(part),
          type: "function" as const,
          function: { name: part.name, arguments: "" },
        };
        const rest = { index, function: { arguments: part.arguments } };
        return [{ tool_calls: [head] }, { tool_calls: [rest] }];
      }
    }
  }
}

function textOf(parts: readonly MessagePart[], kind: "content" | "reasoning"): string {
  return parts.flatMap((part) => (part.kind === kind ? [part.text] : [])).join("");
}
