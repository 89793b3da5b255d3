// POST /v1/chat/completions
import type { ChatResponse } from "../../api/openai/chat.ts";
import {
  type ChatChunk,
  type ChatLogprobs,
  type ChatMessage,
  ChatRequest,
} from "../../api/openai/chat.ts";
import type { Chat, Message, Part } from "../../conversation/conversation.ts";
import type { Answer, AnswerEvents } from "../../conversation/events.ts";
import type { TokenScore } from "../../serve/answer-text.ts";
import type { Tokenizer } from "../../text/tokenizer/tokenizer.ts";
import { openAi } from "../frame/dialect.ts";
import { serviceTiers } from "../frame/priority.ts";
import type { Codec, ResponseContext, ResponseWriter } from "../generate/codec.ts";
import { constraintOf } from "../generate/constraint.ts";
import { deltasOf, finishReasons, messageOf } from "../generate/message-deltas.ts";
import { commonOf, offeredTool, toolChoiceOf } from "../generate/openai-fields.ts";
import { finiteLogprob, tokenBytes, tokenText } from "../generate/token-text.ts";
import { fingerprint, usageOf } from "../generate/usage.ts";

export const chatCodec: Codec<ChatRequest> = {
  dialect: openAi,
  request: ChatRequest,
  exchange: (request) => ({
    conversation: {
      ...commonOf(request, request.max_completion_tokens ?? request.max_tokens),
      prompt: {
        ...chatOf(request),
        tools: (request.tools ?? []).map(offeredTool),
        toolChoice: toolChoiceOf(request.tool_choice),
        isParallel: request.parallel_tool_calls,
      },
      constraint: constraintOf(request),
      logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
    },
    writer: (context) => chatWriter(request, context),
  }),
};

export type ChatFields = Pick<
  ChatRequest,
  "messages" | "add_generation_prompt" | "continue_final_message" | "chat_template_kwargs"
> & { reasoning_effort?: ChatRequest["reasoning_effort"] };

/** Converts the request to a chat, except for its tools. */
export function chatOf(asked: ChatFields): Chat {
  return {
    kind: "chat",
    messages: asked.messages.map((message, i) => ({
      ...messageIn(message),
      field: `messages[${i}]`,
    })),
    tools: [],
    toolChoice: "auto",
    isParallel: true,
    effort: asked.reasoning_effort,
    addGenerationPrompt: asked.add_generation_prompt,
    continueFinalMessage: asked.continue_final_message,
    templateKwargs: asked.chat_template_kwargs,
  };
}

function messageIn(message: ChatMessage): Message {
  const { role } = message;
  const texts = textParts(message.content);
  if (role === "tool") return { role, parts: texts, callId: message.tool_call_id };
  if (role !== "assistant") return { role, parts: texts, name: message.name };
  const { name, refusal, reasoning, tool_calls: calls = [] } = message;
  const { reasoning_content: thought = reasoning } = message;
  const parts: Part[] = [
    ...(thought === undefined ? [] : [{ kind: "thought" as const, text: thought }]),
    ...texts,
    ...calls.map(({ id, function: call }) => ({ kind: "call" as const, id, ...call })),
  ];
  return { role, parts, name, refusal };
}

function textParts(content: ChatMessage["content"]): Part[] {
  if (content === undefined) return [];
  const texts = typeof content === "string" ? [content] : content.map(({ text }) => text);
  return texts.map((text) => ({ kind: "text", text }));
}

function chatWriter(
  request: ChatRequest,
  { created, model, priority, prompts }: ResponseContext,
): ResponseWriter {
  const { tokenizer } = model.text;
  const isAskedUsage = request.stream_options?.include_usage === true;
  const common = {
    id: `chatcmpl-${crypto.randomUUID()}`,
    created,
    model: model.name,
    system_fingerprint: fingerprint,
    service_tier: request.service_tier && serviceTiers[priority],
  };
  const promptIds = request.return_token_ids && { prompt_token_ids: [...prompts[0]!] };
  const tokenIds = ({ tokens }: Pick<Answer, "tokens">) =>
    request.return_token_ids && { token_ids: [...tokens] };
  const logprobs = ({ scores }: Pick<Answer, "scores">): ChatLogprobs | null =>
    request.logprobs ? chatLogprobs(tokenizer, scores) : null;
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
    events(said: AnswerEvents) {
      const { index, events, tokens } = said;
      const deltas = events.flatMap(deltasOf);
      const showsTokens = request.logprobs || request.return_token_ids;
      if (deltas.length === 0 && showsTokens && tokens.length > 0) deltas.push({});
      const chunks = deltas.map((delta, i) =>
        chunk({
          index,
          delta,
          logprobs: i === 0 ? logprobs(said) : null,
          finish_reason: null,
          ...(i === 0 && tokenIds(said)),
        }),
      );
      const end = events.at(-1);
      if (end?.kind !== "end") return chunks;
      const finish_reason = finishReasons[end.reason];
      return [...chunks, chunk({ index, delta: {}, logprobs: null, finish_reason })];
    },
    closing: (usage): ChatChunk[] =>
      isAskedUsage
        ? [{ ...common, object: "chat.completion.chunk", choices: [], usage: usageOf(usage) }]
        : [],
    failure: ({ body }) => [body],
    whole: (answers, usage): ChatResponse => ({
      ...common,
      object: "chat.completion",
      choices: answers.map((answer) => ({
        index: answer.index,
        message: messageOf(answer.parts),
        logprobs: logprobs(answer),
        finish_reason: finishReasons[answer.end.reason],
        ...tokenIds(answer),
      })),
      usage: usageOf(usage),
      ...promptIds,
    }),
  };
}

export function chatLogprobs(tokenizer: Tokenizer, scores: readonly TokenScore[]): ChatLogprobs {
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
