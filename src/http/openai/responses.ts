// OpenAI's POST /v1/responses
import type { InputItem } from "../../api/openai/response-items.ts";
import { ResponsesRequest } from "../../api/openai/responses.ts";
import { type Constraint, jsonDocument } from "../../conversation/constraint.ts";
import type { Conversation, Message, Part } from "../../conversation/conversation.ts";
import type { StoredResponses } from "../../serve/stored-responses.ts";
import { openAiEvents } from "../frame/dialect.ts";
import { badRequest } from "../frame/errors.ts";
import { askedPriority } from "../frame/priority.ts";
import type { Codec } from "../generate/codec.ts";
import { thoughtOf } from "../generate/thought-signature.ts";
import { customArguments, flatName, ResponseTools } from "./response-tools.ts";
import { responseWriter } from "./response-writer.ts";

export const responsesCodec: Codec<ResponsesRequest> = {
  dialect: openAiEvents,
  request: ResponsesRequest,
  exchange(request, serving, c) {
    const key = c.get("caller").name;
    const input = [...itemsBefore(request, serving.responses, key), ...itemsIn(request.input)];
    const tools = new ResponseTools(request.tools ?? []);
    return {
      conversation: conversationOf(request, input, tools),
      writer: (context) =>
        responseWriter(request, context, tools, (response) => {
          if (!request.store) return false;
          try {
            return serving.responses.save(key, { id: response.id, response, input });
          } catch (error) {
            const told = { id: c.get("record").id, error: (error as Error).message };
            serving.log.error(told, "a response could not be stored");
            return false;
          }
        }),
    };
  },
};

/** Returns all items of the conversation up to and including the previous response. */
function itemsBefore(
  { previous_response_id: id }: ResponsesRequest,
  responses: StoredResponses,
  key: string,
): InputItem[] {
  if (id === undefined) return [];
  const stored = responses.find(key, id);
  if (!stored) {
    const message = "The previous response does not exist or is no longer stored.";
    throw badRequest("previous_response_id", message, "previous_response_not_found");
  }
  const { output } = stored.response as { output: InputItem[] };
  return [...(stored.input as InputItem[]), ...output];
}

/** Returns the input as items, each with an id, which the list of input items needs. */
function itemsIn(input: ResponsesRequest["input"]): InputItem[] {
  const items: readonly InputItem[] =
    typeof input === "string" ? [{ type: "message", role: "user", content: input }] : input;
  return items.map((item) => ({ ...item, id: item.id ?? `item_${crypto.randomUUID()}` }));
}

function conversationOf(
  request: ResponsesRequest,
  input: readonly InputItem[],
  tools: ResponseTools,
): Conversation {
  const { instructions, reasoning } = request;
  const effort = reasoning?.effort;
  return {
    model: request.model,
    prompt: {
      kind: "chat",
      messages: [
        ...(instructions === undefined
          ? []
          : [
              {
                role: "developer" as const,
                parts: [textPart(instructions)],
                field: "instructions",
              },
            ]),
        ...messagesOf(input),
      ],
      ...tools.choice(request.tool_choice),
      isParallel: request.parallel_tool_calls,
      thinks: effort === "none" ? false : undefined,
      effort: effort === "max" ? "xhigh" : effort,
    },
    constraint: constraintOf(request),
    sampling: { temperature: request.temperature, topP: request.top_p },
    limits: { maxTokens: request.max_output_tokens },
    n: 1,
    priority: askedPriority(request.service_tier),
  };
}

function constraintOf({ text }: ResponsesRequest): Constraint | undefined {
  const format = text?.format;
  if (format?.type === "json_object") return { param: "text", ...jsonDocument({ type: "object" }) };
  if (format?.type !== "json_schema") return undefined;
  return { param: "text", ...jsonDocument(format.schema) };
}

/** Merges consecutive items of the assistant into one message. */
function messagesOf(items: readonly InputItem[]): Message[] {
  const messages: Message[] = [];
  for (const [i, item] of items.entries()) {
    const message = { ...messageOf(item), field: `input[${i}]` };
    const last = messages.at(-1);
    const goesOn = last?.role === "assistant" && message.role === "assistant";
    if (last && goesOn) {
      messages.splice(-1, 1, { ...last, parts: [...last.parts, ...message.parts] });
    } else messages.push(message);
  }
  return messages;
}

function messageOf(item: InputItem): Message {
  switch (item.type) {
    case "message":
      return { role: item.role, parts: partsOf(item.content) };
    case "reasoning":
      return { role: "assistant", parts: [{ kind: "thought", text: thoughtIn(item) }] };
    case "function_call": {
      const { call_id: id, arguments: given } = item;
      const call: Part = { kind: "call", id, name: flatName(item), arguments: given };
      return { role: "assistant", parts: [call] };
    }
    case "custom_tool_call": {
      const { call_id: id, input } = item;
      const given = customArguments(input);
      return {
        role: "assistant",
        parts: [{ kind: "call", id, name: flatName(item), arguments: given }],
      };
    }
    case "function_call_output":
    case "custom_tool_call_output":
      return { role: "tool", callId: item.call_id, parts: partsOf(item.output) };
  }
}

/** Returns the text of a thought, restored from the encrypted content if the client returns only that. */
function thoughtIn(item: Extract<InputItem, { type: "reasoning" }>): string {
  const thinking = (item.content ?? []).map(({ text }) => text).join("\n");
  return thoughtOf({ thinking, signature: item.encrypted_content ?? "" });
}

/** Converts content to parts, which are all text: the schema has rejected other types. */
function partsOf(content: string | readonly object[]): Part[] {
  if (typeof content === "string") return [textPart(content)];
  return content.map((part) => {
    const { text, refusal } = part as { text?: string; refusal?: string };
    return textPart(text ?? refusal ?? "");
  });
}

function textPart(text: string): Part {
  return { kind: "text", text };
}
