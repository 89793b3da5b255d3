// POST /v1/completions
import type { Context } from "hono";
import {
  type CompletionChunk,
  type CompletionLogprobs,
  CompletionRequest,
  type CompletionResponse,
} from "../api/completions.ts";
import type { Prompt } from "../api/prompts.ts";
import type { Priority, PromptLogprob } from "../engine/protocol.ts";
import type { AnswerPiece } from "../serve/answer-text.ts";
import { type Tokenizer, TooLongError } from "../text/tokenizer.ts";
import { constraintOf } from "./constraint.ts";
import type { HttpEnv } from "./env.ts";
import { badRequest } from "./errors.ts";
import { type Encode, generate, type ResponseContext, type ResponseWriter } from "./generate.ts";
import { readRequest } from "./json-body.ts";
import type { Serving } from "./serving.ts";
import { finiteLogprob, tokenText } from "./token-text.ts";
import { fingerprint, usageOf } from "./usage.ts";

/** OpenAI's default. */
const PRESET_TOKENS = 16;

export function completions(serving: Serving, ceiling: Priority) {
  return async (c: Context<HttpEnv>): Promise<Response> => {
    const request = await readRequest(c, serving, CompletionRequest);
    const longest = request.max_tokens ?? serving.settings.maxTokens ?? PRESET_TOKENS;
    if (request.min_tokens > longest) {
      const message = `Invalid 'min_tokens': expected at most ${longest}, as max_tokens is.`;
      throw badRequest("min_tokens", message, "invalid_value");
    }
    return await generate(c, serving, ceiling, {
      request,
      maxTokens: longest,
      logprobs: request.logprobs,
      promptLogprobs: request.echo ? request.logprobs : undefined,
      plan: async (_, maxTokens, encode) => ({
        prompts: await promptTokens(request.prompt, maxTokens, encode),
        constraint: constraintOf(request),
        writer: (context) => completionWriter(request, context),
      }),
    });
  };
}

/** Control tokens in a text are text; a client that wants tokens sends their ids. */
export async function promptTokens(
  prompts: readonly Prompt[],
  maxTokens: number,
  encode: Encode,
): Promise<Uint32Array[]> {
  const texts = prompts.filter((prompt) => typeof prompt === "string");
  if (texts.length > 0) {
    return (await encode({ kind: "texts", texts, addSpecialTokens: true, maxTokens })).prompts;
  }
  return prompts.map((ids) => {
    if (ids.length > maxTokens) throw new TooLongError(maxTokens);
    return Uint32Array.from(ids as number[]);
  });
}

function completionWriter(request: CompletionRequest, context: ResponseContext): ResponseWriter {
  const { created, model, servedTier, prompts, answers } = context;
  const { tokenizer } = model.text;
  const { echo, n, logprobs: isAskedLogprobs } = request;
  const isAskedUsage = request.stream_options?.include_usage === true;
  const common = {
    id: `cmpl-${crypto.randomUUID()}`,
    object: "text_completion" as const,
    created,
    model: model.name,
    system_fingerprint: fingerprint,
    service_tier: servedTier,
  };
  const promptOf = (index: number) => prompts[Math.floor(index / n)]!;
  const begun = new Set<number>();
  const offsets = new Map<number, number>();
  const choiceOf = (piece: AnswerPiece) => {
    const { index, finished } = piece;
    const isFirst = !begun.has(index);
    begun.add(index);
    const prompt = promptOf(index);
    const isEchoed = echo && isFirst;
    const echoed = isEchoed ? tokenizer.decode(prompt) : "";
    const logprobs = new LogprobWriter(tokenizer, offsets.get(index) ?? 0);
    if (isEchoed) logprobs.prompt(prompt, answers.promptLogprobs(index) ?? []);
    logprobs.answer(piece);
    offsets.set(index, logprobs.offset);
    return {
      index,
      text: echoed + piece.text,
      logprobs: isAskedLogprobs === undefined ? null : logprobs.written,
      finish_reason: finished ?? null,
      ...(request.return_token_ids && {
        token_ids: piece.tokens,
        ...(isFirst && { prompt_token_ids: [...prompt] }),
      }),
    };
  };
  return {
    opening: () => [],
    events: (piece): CompletionChunk[] => [
      { ...common, choices: [choiceOf(piece)], ...(isAskedUsage && { usage: null }) },
    ],
    usageEvent: (usage): CompletionChunk => ({ ...common, choices: [], usage: usageOf(usage) }),
    whole: (choices, usage): CompletionResponse => ({
      ...common,
      choices: choices.map((choice) => ({
        ...choiceOf(choice),
        finish_reason: choice.finished!,
      })),
      usage: usageOf(usage),
    }),
  };
}

/** The four parallel lists of a text completion's log-probabilities. */
class LogprobWriter {
  readonly written: CompletionLogprobs = {
    tokens: [],
    token_logprobs: [],
    top_logprobs: [],
    text_offset: [],
  };
  readonly #tokenizer: Tokenizer;
  /** Characters so far, including the echoed prompt. */
  offset: number;

  constructor(tokenizer: Tokenizer, offset: number) {
    this.#tokenizer = tokenizer;
    this.offset = offset;
  }

  prompt(ids: Uint32Array, scores: readonly PromptLogprob[]): void {
    for (const [i, id] of ids.entries()) {
      // The first token has no logprob: nothing precedes it.
      const { logprob, top } = scores[i - 1] ?? {};
      this.#add(id, logprob, top);
    }
  }

  answer({ scores }: AnswerPiece): void {
    for (const { token, logprob, top } of scores) this.#add(token, logprob, top);
  }

  #add(id: number, logprob: number | undefined, top: readonly TopToken[] | undefined): void {
    const text = tokenText(this.#tokenizer, id);
    this.written.tokens.push(text);
    this.written.token_logprobs.push(logprob === undefined ? null : finiteLogprob(logprob));
    this.written.top_logprobs!.push(top === undefined ? null : this.#record(top));
    this.written.text_offset.push(this.offset);
    this.offset += [...text].length;
  }

  #record(top: readonly TopToken[]): Record<string, number> {
    return Object.fromEntries(
      // If two tokens have the same text, the likelier one wins.
      top.toReversed().map(({ token, logprob }) => {
        return [tokenText(this.#tokenizer, token), finiteLogprob(logprob)];
      }),
    );
  }
}

type TopToken = { token: number; logprob: number };
