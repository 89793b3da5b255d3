// Writes a reply in the format of Anthropic's API: a message of blocks, whole or as events.
import type {
  AnswerBlock,
  MessagesEvent,
  MessagesRequest,
  MessagesResponse,
} from "../../api/anthropic/messages.ts";
import type { Part } from "../../conversation/conversation.ts";
import type { AnswerEvent, End } from "../../conversation/events.ts";
import type { Priority } from "../../engine/protocol.ts";
import type { Usage } from "../../serve/answers.ts";
import { callArguments } from "../generate/call-arguments.ts";
import type { ResponseContext, ResponseWriter } from "../generate/codec.ts";
import { signatureOf } from "../generate/thought-signature.ts";
import { anthropicError } from "./dialect.ts";

type StopReason = NonNullable<MessagesResponse["stop_reason"]>;

export function messagesWriter(
  request: MessagesRequest,
  { model, priority, reply }: ResponseContext,
): ResponseWriter {
  const { thinking } = request;
  const isOmitted =
    thinking !== undefined && "display" in thinking && thinking.display === "omitted";
  const message = (usage: Usage): MessagesResponse => ({
    id,
    type: "message",
    role: "assistant",
    model: model.name,
    content: [],
    stop_reason: null,
    stop_sequence: null,
    usage: { ...usageOf(usage), service_tier: serviceTiers[priority] },
  });
  const id = `msg_${crypto.randomUUID().replaceAll("-", "")}`;
  const blocks = new BlockEvents(isOmitted);
  let end: End = { reason: "stop" };
  return {
    whole: ([answer], usage) => ({
      ...message(usage),
      content: answer!.parts.flatMap((part) => blockOf(part, isOmitted)),
      ...stopOf(answer!.end),
    }),
    opening: (): MessagesEvent[] => [{ type: "message_start", message: message(reply.usage) }],
    events(said): MessagesEvent[] {
      const last = said.events.at(-1);
      if (last?.kind === "end") end = last;
      return said.events.flatMap((event) => blocks.push(event));
    },
    closing: (usage): MessagesEvent[] => [
      { type: "message_delta", delta: stopOf(end), usage: usageOf(usage) },
      { type: "message_stop" },
    ],
    failure: (error) => [anthropicError(error)],
    heartbeat: (): MessagesEvent => ({ type: "ping" }),
  };
}

const serviceTiers: Readonly<Record<Priority, MessagesResponse["usage"]["service_tier"]>> = {
  LOW: "batch",
  NORMAL: "standard",
  HIGH: "priority",
};

function usageOf({ promptTokens, cachedTokens, completionTokens }: Usage) {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  };
}

function stopOf({ reason, stop }: End): { stop_reason: StopReason; stop_sequence: string | null } {
  if (reason === "calls") return { stop_reason: "tool_use", stop_sequence: null };
  if (reason === "length") return { stop_reason: "max_tokens", stop_sequence: null };
  if (stop === undefined) return { stop_reason: "end_turn", stop_sequence: null };
  return { stop_reason: "stop_sequence", stop_sequence: stop };
}

/** Converts a part to blocks; returns none for a tool call whose arguments the token limit cut off. */
function blockOf(part: Part, isOmitted: boolean): AnswerBlock[] {
  switch (part.kind) {
    case "text":
      return [{ type: "text", text: part.text }];
    case "thought": {
      const signature = signatureOf(part.text, isOmitted);
      return [{ type: "thinking", thinking: isOmitted ? "" : part.text, signature }];
    }
    case "call": {
      const input = callArguments(part.arguments);
      return input ? [{ type: "tool_use", id: part.id!, name: part.name, input }] : [];
    }
  }
}

/** Turns answer events into events of blocks; at most one block is open at a time. */
class BlockEvents {
  readonly #isOmitted: boolean;
  #open: AnswerBlock["type"] | undefined;
  #index = -1;
  #thought = "";

  constructor(isOmitted: boolean) {
    this.#isOmitted = isOmitted;
  }

  push(event: AnswerEvent): MessagesEvent[] {
    switch (event.kind) {
      case "text":
        return [
          ...this.#in({ type: "text", text: "" }),
          this.#delta({ type: "text_delta", text: event.text }),
        ];
      case "thought": {
        const opened = this.#in({ type: "thinking", thinking: "", signature: "" });
        this.#thought += event.text;
        if (this.#isOmitted) return opened;
        return [...opened, this.#delta({ type: "thinking_delta", thinking: event.text })];
      }
      case "call": {
        const { id, name } = event;
        return [...this.#close(), ...this.#in({ type: "tool_use", id, name, input: {} })];
      }
      case "arguments":
        return [this.#delta({ type: "input_json_delta", partial_json: event.text })];
      case "call_end":
      case "end":
        return this.#close();
    }
  }

  /** Returns the events that end the open block and start `block`; no events if the open block has the same type. */
  #in(block: AnswerBlock): MessagesEvent[] {
    if (this.#open === block.type) return [];
    const closed = this.#close();
    this.#open = block.type;
    this.#index += 1;
    return [...closed, { type: "content_block_start", index: this.#index, content_block: block }];
  }

  #delta(delta: Extract<MessagesEvent, { type: "content_block_delta" }>["delta"]): MessagesEvent {
    return { type: "content_block_delta", index: this.#index, delta };
  }

  #close(): MessagesEvent[] {
    if (!this.#open) return [];
    const signature = signatureOf(this.#thought, this.#isOmitted);
    const signed =
      this.#open === "thinking" ? [this.#delta({ type: "signature_delta", signature })] : [];
    this.#open = undefined;
    this.#thought = "";
    return [...signed, { type: "content_block_stop", index: this.#index }];
  }
}
