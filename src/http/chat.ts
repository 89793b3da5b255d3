// POST /v1/chat/completions
import type { Context } from "hono";
import type { ChatResponse } from "../api/chat.ts";
import { type ChatChunk, type ChatLogprobs, type ChatMessage, ChatRequest } from "../api/chat.ts";
import type { Priority } from "../engine/protocol.ts";
import type { AnswerPiece, TokenScore } from "../serve/answer-text.ts";
import type { ServedModel } from "../serve/models.ts";
import type { ChatInput, ChatMessage as TemplateMessage } from "../text/template.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import type { Tool, ToolFormat } from "../tools/format.ts";
import { formatOf } from "../tools/formats.ts";
import { jsonOrText } from "../tools/json-call.ts";
import { messageParser } from "../tools/message.ts";
import { thinkingOf, thinkTags, withThought } from "../tools/reasoning.ts";
import { type Constraint, constraintOf } from "./constraint.ts";
import type { HttpEnv } from "./env.ts";
import { badRequest } from "./errors.ts";
import {
  type Encode,
  generate,
  type Plan,
  type ResponseContext,
  type ResponseWriter,
} from "./generate.ts";
import { readRequest } from "./json-body.ts";
import { MessageDeltas, type MessageReader } from "./message-deltas.ts";
import type { Serving } from "./serving.ts";
import { finiteLogprob, tokenBytes, tokenText } from "./token-text.ts";
import { templateInput, toolUseOf, withCalls } from "./tool-use.ts";
import { fingerprint, usageOf } from "./usage.ts";

export function chat(serving: Serving, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, ChatRequest);
    return await generate(c, serving, ceiling, {
      request,
      maxTokens: request.max_completion_tokens ?? request.max_tokens,
      logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
      plan: (model, maxTokens, encode) => chatPlan(request, model, maxTokens, encode),
    });
  };
}

async function chatPlan(
  request: ChatRequest,
  model: ServedModel,
  maxTokens: number,
  encode: Encode,
): Promise<Plan> {
  const use = toolUseOf(request, model);
  const input = chatInput(model, request, use?.tools);
  // What recurrent layers keep is found only where it was kept on purpose; blocks are found anywhere.
  const wantsHeads = model.info.slots !== undefined;
  const { prompts, ending, heads } = await encode({ kind: "chat", input, maxTokens, wantsHeads });
  const { format } = use ?? formatOf(model.text.template);
  const thought = format.thought ?? thinkTags;
  const thinking = thinkingOf(model.text.template, ending, thought);
  const constraint = withCalls(inFormat(constraintOf(request), format), use);
  return {
    prompts,
    heads,
    constraint: constraint && {
      ...constraint,
      format: format.thinks ? constraint.format : withThought(constraint.format, thinking, thought),
      markers: [...(constraint.markers ?? []), ...thought.tokens],
    },
    markers: [...thought.tokens, ...(use || format.thinks ? format.markers : [])],
    writer: (context) =>
      chatWriter(request, context, () => ({
        parser: messageParser({ thinking, format, tools: use?.tools }),
        newCallId: format.newCallId,
        // Without a grammar, only this keeps a model from calling twice.
        maxCalls: use?.isParallel === false ? 1 : Infinity,
      })),
  };
}

/** A constraint on the answer's text, wrapped in the markup that the model's format puts around text. */
function inFormat(form: Constraint | undefined, format: ToolFormat): Constraint | undefined {
  if (!form || !format.wrapText) return form;
  return { ...form, format: format.wrapText(form.format), markers: format.markers };
}

export type ChatPrompt = Pick<
  ChatRequest,
  "messages" | "add_generation_prompt" | "continue_final_message" | "chat_template_kwargs"
> & { reasoning_effort?: ChatRequest["reasoning_effort"] };

/** What the model's template is given. */
export function chatInput(
  model: ServedModel,
  asked: ChatPrompt,
  tools: readonly Tool[] = [],
): ChatInput {
  if (!model.text.chat) {
    const message = "The model has no chat template: use /v1/completions.";
    throw badRequest("model", message, "no_chat_template");
  }
  const { continue_final_message, add_generation_prompt, reasoning_effort } = asked;
  const messages = asked.messages.map((message) => templateMessage(message, model));
  return {
    ...templateInput(model, messages, tools),
    continueFinalMessage: continue_final_message,
    addGenerationPrompt: add_generation_prompt ?? !continue_final_message,
    kwargs: { ...(reasoning_effort && { reasoning_effort }), ...asked.chat_template_kwargs },
  };
}

/** As templates expect it: the text as one string, the arguments of calls as values. */
function templateMessage(message: ChatMessage, { text }: ServedModel): TemplateMessage {
  const { content } = message;
  const whole = Array.isArray(content) ? content.map((part) => part.text).join("\n") : content;
  // Few templates know the role developer, which replaced system.
  const isKnown = text.knowsRole(message.role);
  const role = message.role === "developer" && !isKnown ? "system" : message.role;
  const calls = message.role === "assistant" ? message.tool_calls : undefined;
  return {
    ...message,
    role,
    content: whole ?? "",
    ...(calls && {
      tool_calls: calls.map(({ function: { name, arguments: text }, ...call }) => ({
        ...call,
        function: { name, arguments: jsonOrText(text) },
      })),
    }),
  };
}

function chatWriter(
  request: ChatRequest,
  { created, model, servedTier, prompts }: ResponseContext,
  newReader: () => MessageReader,
): ResponseWriter {
  const { tokenizer } = model.text;
  const isAskedUsage = request.stream_options?.include_usage === true;
  const common = {
    id: `chatcmpl-${crypto.randomUUID()}`,
    created,
    model: model.name,
    system_fingerprint: fingerprint,
    service_tier: servedTier,
  };
  const promptIds = request.return_token_ids && { prompt_token_ids: [...prompts[0]!] };
  const tokenIds = ({ tokens }: AnswerPiece) => request.return_token_ids && { token_ids: tokens };
  const logprobs = (piece: AnswerPiece): ChatLogprobs | null =>
    request.logprobs ? chatLogprobs(tokenizer, piece.scores) : null;
  const chunk = (choice: ChatChunk["choices"][number]): ChatChunk => ({
    ...common,
    object: "chat.completion.chunk",
    choices: [choice],
    ...(isAskedUsage && { usage: null }),
  });
  const messages = Array.from({ length: request.n }, () => new MessageDeltas(newReader()));
  return {
    opening: () =>
      Array.from({ length: request.n }, (_, index) => ({
        ...chunk({
          index,
          delta: { role: "assistant", content: "" },
          logprobs: null,
          finish_reason: null,
        }),
        ...(index === 0 && promptIds),
      })),
    events(piece) {
      const { index, finished } = piece;
      const message = messages[index]!;
      const deltas = message.push(piece);
      const showsTokens = request.logprobs || request.return_token_ids;
      if (deltas.length === 0 && showsTokens && piece.tokens.length > 0) deltas.push({});
      const chunks = deltas.map((delta, i) =>
        chunk({
          index,
          delta,
          logprobs: i === 0 ? logprobs(piece) : null,
          finish_reason: null,
          ...(i === 0 && tokenIds(piece)),
        }),
      );
      if (!finished) return chunks;
      const finish_reason = message.finishReason(finished);
      return [...chunks, chunk({ index, delta: {}, logprobs: null, finish_reason })];
    },
    usageEvent: (usage): ChatChunk => ({
      ...common,
      object: "chat.completion.chunk",
      choices: [],
      usage: usageOf(usage),
    }),
    whole: (choices, usage): ChatResponse => ({
      ...common,
      object: "chat.completion",
      choices: choices.map((choice) => {
        const message = messages[choice.index]!;
        return {
          index: choice.index,
          message: message.whole(choice),
          logprobs: logprobs(choice),
          finish_reason: message.finishReason(choice.finished!),
          ...tokenIds(choice),
        };
      }),
      usage: usageOf(usage),
      ...promptIds,
    }),
  };
}

function chatLogprobs(tokenizer: Tokenizer, scores: readonly TokenScore[]): ChatLogprobs {
  const entry = (token: number, logprob: number) => ({
    token: tokenText(tokenizer, token),
    logprob: finiteLogprob(logprob),
    bytes: [...tokenBytes(tokenizer, token)],
  });
  const content = scores.map(({ token, logprob, top }) => ({
    ...entry(token, logprob),
    top_logprobs: top.map((each) => entry(each.token, each.logprob)),
  }));
  return { content, refusal: null };
}
