// Anthropic's POST /v1/messages and /v1/messages/count_tokens
import type { Context } from "hono";
import type { AnthropicMessage, ContentBlock } from "../../api/anthropic/content.ts";
import { CountTokensRequest, MessagesRequest } from "../../api/anthropic/messages.ts";
import { chatWithoutAgentMarks } from "../../conversation/agent-marks.ts";
import { jsonDocument } from "../../conversation/constraint.ts";
import type {
  Chat,
  Conversation,
  Message,
  Part,
  ToolChoice,
} from "../../conversation/conversation.ts";
import { chatInput } from "../../conversation/template-messages.ts";
import type { HttpEnv } from "../frame/env.ts";
import { readRequest } from "../frame/json-body.ts";
import type { BodyReader, Models } from "../frame/serving.ts";
import type { Codec } from "../generate/codec.ts";
import { objectSchema } from "../generate/openai-fields.ts";
import { thoughtOf } from "../generate/thought-signature.ts";
import { countableTokens } from "../openai/tokenize.ts";
import { anthropicDialect } from "./dialect.ts";
import { messagesWriter } from "./writer.ts";

export const messagesCodec: Codec<MessagesRequest> = {
  dialect: anthropicDialect,
  request: MessagesRequest,
  exchange: (request) => ({
    conversation: conversationOf(request),
    writer: (context) => messagesWriter(request, context),
  }),
};

function conversationOf(request: MessagesRequest): Conversation {
  const { output_config: output, output_format: format = output?.format } = request;
  return {
    model: request.model,
    prompt: chatOf(request),
    constraint: format && {
      param: output?.format ? "output_config" : "output_format",
      ...jsonDocument(format.schema),
    },
    sampling: { temperature: request.temperature, topP: request.top_p, topK: request.top_k },
    limits: { maxTokens: request.max_tokens, stops: request.stop_sequences ?? [] },
    n: 1,
    priority: request.service_tier === "standard_only" ? "NORMAL" : "HIGH",
  };
}

export function countTokens(serving: BodyReader & Models) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, CountTokensRequest);
    const model = await serving.models.get(request.model);
    const chat = chatWithoutAgentMarks(chatOf(request), serving.settings);
    const input = chatInput(model, chat);
    const tokens = await countableTokens(c, serving, model, { kind: "chat", input });
    return c.json({ input_tokens: tokens.length });
  };
}

type PromptFields = Pick<
  MessagesRequest,
  "messages" | "system" | "tools" | "tool_choice" | "thinking" | "output_config"
>;

function chatOf(request: PromptFields): Chat {
  const { messages, system, tools = [], tool_choice: choice, thinking } = request;
  const parallel = choice && "disable_parallel_tool_use" in choice ? choice : undefined;
  return {
    kind: "chat",
    messages: [
      ...(system === undefined
        ? []
        : [{ role: "system" as const, parts: textsOf(system), field: "system" }]),
      ...joinedTurns(messages.flatMap(fieldMessages)),
    ],
    tools: tools.map(({ name, description, input_schema, strict }) => ({
      name,
      description,
      parameters: objectSchema(input_schema),
      isStrict: strict,
    })),
    toolChoice: toolChoiceOf(choice),
    isParallel: !parallel?.disable_parallel_tool_use,
    thinks: thinking && thinking.type !== "disabled",
    effort: effortOf(request.output_config?.effort),
    continueFinalMessage: messages.at(-1)?.role === "assistant",
  };
}

function toolChoiceOf(choice: MessagesRequest["tool_choice"]): ToolChoice {
  if (choice?.type === "tool") return { name: choice.name };
  if (choice?.type === "any") return "required";
  return choice?.type ?? "auto";
}

type Effort = NonNullable<MessagesRequest["output_config"]>["effort"];

/** Converts an effort level to OpenAI's name for it, which chat templates expect. */
function effortOf(effort: Effort): string | undefined {
  return effort === "max" ? "xhigh" : effort;
}

function fieldMessages(message: AnthropicMessage, i: number): Message[] {
  return messagesIn(message).map((each) => ({ ...each, field: `messages[${i}]` }));
}

/** Turns each block of a message into a message; tool results get the role `tool`. */
function messagesIn({ role, content }: AnthropicMessage): Message[] {
  if (typeof content === "string") return [{ role, parts: textsOf(content) }];
  return content.map((block) =>
    block.type === "tool_result"
      ? { role: "tool", parts: [resultOf(block)], callId: block.tool_use_id }
      : { role, parts: partsOf(block) },
  );
}

/** Merges consecutive messages of the user, or of the assistant, into one turn. */
function joinedTurns(messages: readonly Message[]): Message[] {
  const turns: Message[] = [];
  for (const message of messages) {
    const last = turns.at(-1);
    const isSame = last?.role === message.role && message.role !== "tool";
    if (last && isSame) turns.splice(-1, 1, { ...last, parts: [...last.parts, ...message.parts] });
    else turns.push(message);
  }
  return turns;
}

function textsOf(content: string | readonly { text: string }[]): Part[] {
  const texts = typeof content === "string" ? [{ text: content }] : content;
  return texts.map(({ text }) => ({ kind: "text", text }));
}

/** Converts a tool result to text, with a prefix for an error, because chat templates have no field for errors. */
function resultOf({ content = "", is_error }: ContentBlock & { type: "tool_result" }): Part {
  const texts = typeof content === "string" ? [content] : content.map(textIn);
  return { kind: "text", text: (is_error ? "Error: " : "") + texts.join("\n") };
}

/** Returns a block's text, which the schema guarantees for this type of block. */
function textIn(block: object): string {
  return (block as { text: string }).text;
}

function partsOf(block: ContentBlock): Part[] {
  switch (block.type) {
    case "text":
      return [{ kind: "text", text: block.text }];
    case "thinking":
      return [{ kind: "thought", text: thoughtOf(block) }];
    case "tool_use": {
      const { id, name, input } = block;
      return [{ kind: "call", id, name, arguments: JSON.stringify(input) }];
    }
    default:
      return [];
  }
}
