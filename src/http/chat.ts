// POST /v1/chat/completions
import type { Context } from "hono";
import type { ChatResponse } from "../api/chat.ts";
import { type ChatChunk, type ChatLogprobs, type ChatMessage, ChatRequest } from "../api/chat.ts";
import type { Priority } from "../engine/protocol.ts";
import type { AnswerPiece, TokenScore } from "../serve/answer-text.ts";
import type { ServedModel } from "../serve/models.ts";
import type { ChatMessage as TemplateMessage } from "../text/template.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import type { HttpEnv } from "./env.ts";
import { badRequest } from "./errors.ts";
import { type Format, generate, type Made } from "./generate.ts";
import { readRequest } from "./json-body.ts";
import type { Serving } from "./serving.ts";
import { finiteLogprob, tokenBytes, tokenText } from "./token-text.ts";
import { fingerprint, usageOf } from "./usage.ts";

export function chat(serving: Serving, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving.settings, ChatRequest);
    return await generate(c, serving, ceiling, {
      request,
      maxTokens: request.max_completion_tokens ?? request.max_tokens,
      logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
      prompts: (model, maxTokens) => [chatPrompt(model, request, maxTokens)],
      format: (made) => chatFormat(request, made),
    });
  };
}

export type ChatPrompt = Pick<
  ChatRequest,
  "messages" | "add_generation_prompt" | "continue_final_message" | "chat_template_kwargs"
> & { reasoning_effort?: ChatRequest["reasoning_effort"] };

export function chatPrompt(model: ServedModel, asked: ChatPrompt, maxTokens: number): number[] {
  const { chat: build } = model.text;
  if (!build) {
    const message = "The model has no chat template: use /v1/completions.";
    throw badRequest("model", message, "no_chat_template");
  }
  const { continue_final_message, add_generation_prompt, reasoning_effort } = asked;
  const input = {
    messages: asked.messages.map((message) => templateMessage(message, model)),
    continueFinalMessage: continue_final_message,
    addGenerationPrompt: add_generation_prompt ?? !continue_final_message,
    kwargs: { ...(reasoning_effort && { reasoning_effort }), ...asked.chat_template_kwargs },
  };
  return build(input, maxTokens).ids;
}

/** As templates know it: text in one piece, arguments of calls as values. */
function templateMessage(message: ChatMessage, { text }: ServedModel): TemplateMessage {
  const { content } = message;
  const whole = Array.isArray(content) ? content.map((part) => part.text).join("\n") : content;
  // Few templates have heard of the developer, who took the system's place.
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
        function: { name, arguments: parsedOr(text) },
      })),
    }),
  };
}

function parsedOr(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function chatFormat(request: ChatRequest, { created, model, prompts }: Made): Format {
  const { tokenizer } = model.text;
  const isAskedUsage = request.stream_options?.include_usage === true;
  const common = {
    id: `chatcmpl-${crypto.randomUUID()}`,
    created,
    model: model.name,
    system_fingerprint: fingerprint,
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
      const { index, text, finished } = piece;
      const isContent = text !== "" || piece.scores.length > 0 || piece.tokens.length > 0;
      const content = {
        index,
        delta: { content: text },
        logprobs: logprobs(piece),
        finish_reason: null,
        ...tokenIds(piece),
      };
      const end = { index, delta: {}, logprobs: null, finish_reason: finished! };
      return [...(isContent ? [chunk(content)] : []), ...(finished ? [chunk(end)] : [])];
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
      choices: choices.map((choice) => ({
        index: choice.index,
        message: { role: "assistant", content: choice.text, refusal: null },
        logprobs: logprobs(choice),
        finish_reason: choice.finished!,
        ...tokenIds(choice),
      })),
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
