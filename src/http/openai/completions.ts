// POST /v1/completions
import {
  type CompletionChunk,
  type CompletionLogprobs,
  CompletionRequest,
  type CompletionResponse,
} from "../../api/openai/completions.ts";
import type { Answer, AnswerEvents } from "../../conversation/events.ts";
import type { PromptLogprob } from "../../engine/protocol.ts";
import type { Tokenizer } from "../../text/tokenizer/tokenizer.ts";
import { openAi } from "../frame/dialect.ts";
import { badRequest } from "../frame/errors.ts";
import { serviceTiers } from "../frame/priority.ts";
import type { Codec, ResponseContext, ResponseWriter } from "../generate/codec.ts";
import { constraintOf } from "../generate/constraint.ts";
import { finishReasons } from "../generate/message-deltas.ts";
import { commonOf } from "../generate/openai-fields.ts";
import { finiteLogprob, tokenText } from "../generate/token-text.ts";
import { fingerprint, usageOf } from "../generate/usage.ts";

/** Maximum tokens if the request has no `max_tokens`, as in OpenAI's API. */
const PRESET_TOKENS = 16;

export const completionCodec: Codec<CompletionRequest> = {
  dialect: openAi,
  request: CompletionRequest,
  exchange(request, { settings }) {
    const longest = request.max_tokens ?? settings.maxTokens ?? PRESET_TOKENS;
    if (request.min_tokens > longest) {
      const message = `Invalid 'min_tokens': expected at most ${longest}, the value of max_tokens.`;
      throw badRequest("min_tokens", message, "invalid_value");
    }
    return {
      conversation: {
        ...commonOf(request, longest),
        prompt: { kind: "texts", prompts: request.prompt },
        constraint: constraintOf(request),
        logprobs: request.logprobs,
        promptLogprobs: request.echo ? request.logprobs : undefined,
      },
      writer: (context) => completionWriter(request, context),
    };
  },
};

function completionWriter(request: CompletionRequest, context: ResponseContext): ResponseWriter {
  const { created, model, priority, prompts, reply } = context;
  const { tokenizer } = model.text;
  const { echo, n, logprobs: isAskedLogprobs } = request;
  const isAskedUsage = request.stream_options?.include_usage === true;
  const common = {
    id: `cmpl-${crypto.randomUUID()}`,
    object: "text_completion" as const,
    created,
    model: model.name,
    system_fingerprint: fingerprint,
    service_tier: request.service_tier && serviceTiers[priority],
  };
  const promptOf = (index: number) => prompts[Math.floor(index / n)]!;
  const begun = new Set<number>();
  const offsets = new Map<number, number>();
  const choiceOf = ({ index, tokens, scores }: Written, text: string) => {
    const isFirst = !begun.has(index);
    begun.add(index);
    const prompt = promptOf(index);
    const isEchoed = echo && isFirst;
    const echoed = isEchoed ? tokenizer.decode(prompt) : "";
    const logprobs = new LogprobWriter(tokenizer, offsets.get(index) ?? 0);
    if (isEchoed) logprobs.prompt(prompt, reply.promptLogprobs(index) ?? []);
    logprobs.answer(scores);
    offsets.set(index, logprobs.offset);
    return {
      index,
      text: echoed + text,
      logprobs: isAskedLogprobs === undefined ? null : logprobs.written,
      ...(request.return_token_ids && {
        token_ids: [...tokens],
        ...(isFirst && { prompt_token_ids: [...prompt] }),
      }),
    };
  };
  return {
    opening: () => [],
    events(said): CompletionChunk[] {
      const end = said.events.at(-1);
      const finish_reason = end?.kind === "end" ? finishReasons[end.reason] : null;
      const choices = [{ ...choiceOf(said, textOf(said.events)), finish_reason }];
      return [{ ...common, choices, ...(isAskedUsage && { usage: null }) }];
    },
    closing: (usage): CompletionChunk[] =>
      isAskedUsage ? [{ ...common, choices: [], usage: usageOf(usage) }] : [],
    failure: ({ body }) => [body],
    whole: (answers, usage): CompletionResponse => ({
      ...common,
      choices: answers.map((answer) => ({
        ...choiceOf(answer, textOf(answer.parts)),
        finish_reason: finishReasons[answer.end.reason],
      })),
      usage: usageOf(usage),
    }),
  };
}

type Written = Pick<Answer, "index" | "tokens" | "scores">;

/** Returns the text; a text completion has no thoughts or tool calls. */
function textOf(parts: AnswerEvents["events"] | Answer["parts"]): string {
  return parts.map((part) => (part.kind === "text" ? part.text : "")).join("");
}

/** Collects a text completion's log-probabilities, which the API returns as four parallel lists. */
class LogprobWriter {
  readonly written: CompletionLogprobs = {
    tokens: [],
    token_logprobs: [],
    top_logprobs: [],
    text_offset: [],
  };
  readonly #tokenizer: Tokenizer;
  /** Offset of the next token in the text, including the echoed prompt. */
  offset: number;

  constructor(tokenizer: Tokenizer, offset: number) {
    this.#tokenizer = tokenizer;
    this.offset = offset;
  }

  prompt(ids: Uint32Array, scores: readonly PromptLogprob[]): void {
    for (const [i, id] of ids.entries()) {
      // The first prompt token has no log-probability, because nothing precedes it.
      const { logprob, top } = scores[i - 1] ?? {};
      this.#add(id, logprob, top);
    }
  }

  answer(scores: Answer["scores"]): void {
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
      // Likelier tokens come last: if several tokens have the same text, the object keeps the last one.
      top.toReversed().map(({ token, logprob }) => {
        return [tokenText(this.#tokenizer, token), finiteLogprob(logprob)];
      }),
    );
  }
}

type TopToken = { token: number; logprob: number };
