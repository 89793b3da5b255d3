// Generation for a client: what chat and text completions share, from the prompt to the last token,
// streamed or whole.
import type { Context } from "hono";
import type { SamplingFields, ServiceTier } from "../api/sampling.ts";
import type { EngineRequest, Priority } from "../engine/protocol.ts";
import { SlowReaderError } from "../engine/stream.ts";
import { GrammarError } from "../grammar/grammar-error.ts";
import type { GrammarClient } from "../grammar/trial-queue.ts";
import type { AnswerPiece } from "../serve/answer-text.ts";
import { Answers, type Usage } from "../serve/answers.ts";
import type { ServedModel } from "../serve/models.ts";
import type { EncodeWork } from "../text/encode-work.ts";
import type { Encoded } from "../text/encoder.ts";
import { type Constraint, checkEnd, faultyGrammar, grammarFor } from "./constraint.ts";
import {
  checkPromptTokens,
  checkTokens,
  levelOf,
  maxTokensOf,
  priorityOf,
  saltOf,
  samplingOf,
  servedTierOf,
  stopTokensOf,
} from "./engine-request.ts";
import type { HttpEnv } from "./env.ts";
import { apiErrorOf, ClientGoneError } from "./errors.ts";
import { Generation } from "./generation.ts";
import type { Serving } from "./serving.ts";
import { sseResponse } from "./sse.ts";

/** What one API asks for, and how it writes its responses. */
export type GenerationRequest = {
  request: SamplingFields;
  maxTokens: number | undefined;
  /** Log-probabilities of each token, and how many alternatives. */
  logprobs?: number | undefined;
  promptLogprobs?: number | undefined;
  /** A prompt of more than `maxTokens` may be a TooLongError. */
  plan(model: ServedModel, maxTokens: number, encode: Encode): Promise<Plan>;
};

/** Encodes for the request. */
export type Encode = (work: EncodeWork) => Promise<Encoded>;

/** The request as one model takes it. */
export type Plan = {
  /** Token ids of each prompt. */
  prompts: readonly Uint32Array[];
  /** Lengths in tokens of what other requests' prompts may begin with too. */
  heads?: readonly number[];
  /** The constraint on the answers. */
  constraint?: Constraint | undefined;
  /** Control tokens that are part of the answers' text. */
  markers?: readonly string[];
  writer(context: ResponseContext): ResponseWriter;
};

/** What a response is written from. */
export type ResponseContext = {
  created: number;
  model: ServedModel;
  servedTier: ServiceTier | undefined;
  prompts: readonly Uint32Array[];
  answers: Answers;
};

export type ResponseWriter = {
  /** The first events of a stream. */
  opening(): object[];
  events(piece: AnswerPiece): object[];
  usageEvent(usage: Usage): object;
  whole(choices: readonly AnswerPiece[], usage: Usage): object;
};

/** `ceiling` is the highest priority that the route grants, whatever the caller's tier. */
export async function generate(
  c: Context<HttpEnv>,
  serving: Serving,
  ceiling: Priority,
  asked: GenerationRequest,
): Promise<Response> {
  const { request } = asked;
  const priority = priorityOf(c.get("caller"), ceiling, request);
  const generation = new Generation(c, serving, priority);
  try {
    const model = await generation.use(request.model);
    const encode = (work: EncodeWork) => generation.encode(model, work);
    const plan = await asked.plan(model, model.info.maxLength, encode);
    const { prompts, heads, markers = [] } = plan;
    checkTokens(request, model.info.vocabulary);
    checkPromptTokens("prompt", prompts, model.info.vocabulary);
    if (serving.settings.logPrompts) c.get("record").prompt = textOf(model, prompts);
    const grammar = await prepared(serving, request, model, plan.constraint, {
      key: c.get("caller").name,
      level: levelOf(priority),
      signal: generation.signal,
    });
    const engineRequest = engineRequestMaker(c, serving, asked, model, {
      priority,
      client: generation.client,
      heads,
      ...grammar,
    });
    const answers = generation.begin(
      (watcher) =>
        new Answers(
          serving.engine,
          {
            model: model.name,
            tokenizer: model.text.tokenizer,
            requests: prompts.map(engineRequest),
            stops: request.stop ?? [],
            markers,
            maxBacklog: request.stream ? serving.settings.streamBuffer : undefined,
          },
          watcher,
        ),
    );
    const created = Math.floor(Date.now() / 1000);
    const servedTier = servedTierOf(priority, request);
    const writer = plan.writer({ created, model, servedTier, prompts, answers });
    if (request.stream) return await streamed(c, generation, answers, writer, request);
    const choices = await collected(answers);
    c.get("record").finish = finishOf(choices);
    generation.end();
    return c.json(writer.whole(choices, answers.usage));
  } catch (error) {
    generation.end(error);
    throw error;
  }
}

type PreparedGrammar = Pick<EngineRequest, "grammar" | "grammarLane">;

/** A compiled grammar. Only this client waits for the compilation, and no longer than it stays. */
async function prepared(
  { grammars, engine }: Serving,
  request: SamplingFields,
  model: ServedModel,
  constraint: Constraint | undefined,
  client: GrammarClient,
): Promise<PreparedGrammar | undefined> {
  if (!constraint) return undefined;
  checkEnd(request, constraint.param);
  const grammar = grammarFor(model, constraint);
  try {
    return { grammar, grammarLane: await grammars.prepare(grammar, engine, client) };
  } catch (error) {
    throw error instanceof GrammarError ? faultyGrammar(constraint.param, error.message) : error;
  }
}

function engineRequestMaker(
  c: Context<HttpEnv>,
  serving: Serving,
  asked: GenerationRequest,
  model: ServedModel,
  given: Pick<EngineRequest, "priority" | "client" | "heads"> & PreparedGrammar,
): (prompt: Uint32Array) => EngineRequest {
  const { request, maxTokens, logprobs, promptLogprobs } = asked;
  const { settings } = serving;
  const common = {
    ...given,
    name: c.get("record").id,
    n: request.n,
    minTokens: request.min_tokens,
    salt: saltOf(c.get("caller"), request),
    stopTokens: stopTokensOf(request, model),
    sampling: { ...samplingOf(request, settings, model), logprobs },
    ...(promptLogprobs !== undefined && { promptLogprobs }),
  };
  return (prompt) => ({
    ...common,
    prompt: prompt.slice(),
    maxTokens: maxTokensOf(maxTokens, settings, model, prompt.length),
  });
}

async function streamed(
  c: Context<HttpEnv>,
  generation: Generation,
  answers: Answers,
  writer: ResponseWriter,
  request: SamplingFields,
): Promise<Response> {
  const finished: AnswerPiece[] = [];
  let [opened, done] = [false, false];
  let failure: unknown;
  const response = await sseResponse({
    async next() {
      if (done) return undefined;
      const pieces = await answers.read();
      finished.push(...pieces.filter((piece) => piece.finished));
      const events = [
        ...(opened ? [] : writer.opening()),
        ...pieces.flatMap((piece) => writer.events(piece)),
      ];
      opened = true;
      if (pieces.length > 0) return events;
      done = true;
      return request.stream_options?.include_usage ? [writer.usageEvent(answers.usage)] : undefined;
    },
    failure(error) {
      failure = error;
      const isUnread = error instanceof ClientGoneError || error instanceof SlowReaderError;
      return isUnread ? undefined : apiErrorOf(error).body;
    },
    close() {
      c.get("record").finish = finishOf(finished);
      // Closed before the end without an error: the client has disconnected.
      generation.end(failure ?? (done ? undefined : new ClientGoneError()));
    },
  });
  generation.continues();
  return response;
}

/** Each answer as one piece, in order. */
async function collected(answers: Answers): Promise<AnswerPiece[]> {
  const choices: AnswerPiece[] = [];
  for (;;) {
    const pieces = await answers.read();
    if (pieces.length === 0) return choices;
    for (const piece of pieces) {
      const choice = choices[piece.index];
      if (!choice) {
        choices[piece.index] = piece;
        continue;
      }
      choice.text += piece.text;
      choice.tokens.push(...piece.tokens);
      choice.scores.push(...piece.scores);
      choice.finished = piece.finished;
    }
  }
}

function finishOf(choices: readonly AnswerPiece[]): string {
  return [...new Set(choices.map(({ finished }) => finished))].join(",");
}

function textOf({ text }: ServedModel, prompts: readonly Uint32Array[]): string[] {
  return prompts.map((prompt) => text.tokenizer.decode(prompt, { skipControl: false }));
}
