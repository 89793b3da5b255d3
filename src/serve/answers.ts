// Submits one engine request per prompt of an HTTP request, each with n answers, and turns their tokens into text.
// Answers are numbered in the order of the prompts.
import { type EngineClient, EngineError } from "../engine/client.ts";
import type { EngineEvent, EngineRequest, PromptLogprob } from "../engine/protocol.ts";
import type { EventStream } from "../engine/stream.ts";
import type { ErrorAnswer } from "../error-answer.ts";
import type { PrefixMiss } from "../kv/cached-tokens.ts";
import type { Tokenizer } from "../text/tokenizer/tokenizer.ts";
import { type AnswerPiece, AnswerText } from "./answer-text.ts";

export type AnswersRequest = {
  model: string;
  tokenizer: Tokenizer;
  /** One engine request per prompt; only the prompts differ. With `maxTokens` 0, only the prompt is computed. */
  requests: readonly EngineRequest[];
  stops: readonly string[];
  /** Control tokens that are shown as part of the text. */
  markers?: readonly string[];
  /** Maximum unread tokens of a prompt's answers; the request is aborted if there are more. */
  maxBacklog?: number | undefined;
};

/** The engine could not answer the request because of NaN logits or a failed step. */
export class FailedAnswerError extends Error {
  override name = "FailedAnswerError";
  readonly answer: ErrorAnswer = { status: 500, message: "The answer failed." };
}

/** The answer cannot continue, because its grammar allows no token of the vocabulary. */
class DeadEndError extends Error {
  override name = "DeadEndError";
  readonly answer: ErrorAnswer = {
    status: 400,
    message: "The grammar allows no token of the model as the next one of the answer.",
    code: "grammar_dead_end",
  };

  constructor() {
    super("the grammar allows no token");
  }
}

/** Throws FailedAnswerError if the engine has ended; throws other errors unchanged. */
export function failedAnswer(error: unknown): never {
  throw error instanceof EngineError ? new FailedAnswerError(error.message) : error;
}

export type Usage = { promptTokens: number; cachedTokens: number; completionTokens: number };

/** Callbacks for metrics and limits. */
export type AnswersWatcher = {
  /** Called for every generated token, read or not. */
  onGenerated(): void;
  /** Called at the first token with the TTFT and the part of it that the request spent in the queue. */
  onFirst(sinceStartMs: number, queueMs: number): void;
  /** Called with the token at which a prompt diverges from the cached prefixes; only at debug level. */
  onMiss(miss: PrefixMiss): void;
  /** Called for each later event of an answer, with its number of tokens and the time since the previous one. */
  onTokens(count: number, sinceLastMs: number): void;
};

type Asked = {
  request: EngineRequest;
  events: EventStream<EngineEvent>;
  texts: AnswerText[];
  /** Index of the first answer to this prompt. */
  firstIndex: number;
  reading: Promise<{ asked: Asked; events: EngineEvent[] }> | undefined;
  cachedTokens: number;
  promptLogprobs: PromptLogprob[] | undefined;
  /** Arrival time of the prompt's latest tokens. */
  lastMs: number | undefined;
};

export class Answers {
  readonly #engine: EngineClient;
  readonly #watcher: AnswersWatcher | undefined;
  readonly #asked: Asked[];
  readonly #startMs = performance.now();
  #begun = false;

  constructor(engine: EngineClient, asked: AnswersRequest, watcher?: AnswersWatcher) {
    const { model, tokenizer, requests, stops, markers = [], maxBacklog } = asked;
    this.#engine = engine;
    this.#watcher = watcher;
    let firstIndex = 0;
    this.#asked = requests.map((request) => {
      const { n = 1, minTokens = 0 } = request;
      const first = firstIndex;
      firstIndex += n;
      // The engine samples at least one token per answer; `withoutToken` removes it if none was requested.
      const submitted = { ...request, maxTokens: request.maxTokens || 1 };
      const onEvent = (event: EngineEvent) => this.#count(asked, event);
      const asked: Asked = {
        request,
        events: engine.submit(model, submitted, { maxBacklog, onEvent }),
        texts: Array.from({ length: n }, (_, i) => {
          return new AnswerText(first + i, tokenizer, { stops, markers, minTokens });
        }),
        firstIndex: first,
        reading: undefined,
        cachedTokens: 0,
        promptLogprobs: undefined,
        lastMs: undefined,
      };
      return asked;
    });
  }

  /** Settles once the engine has ended all requests; after an abort this takes up to a step. */
  get over(): Promise<unknown> {
    return Promise.all(this.#asked.map(({ events }) => events.over));
  }

  /** Token counts of the request; generated tokens count only if the client gets them. */
  get usage(): Usage {
    const sum = (of: (asked: Asked) => number) =>
      this.#asked.reduce((total, asked) => total + of(asked), 0);
    return {
      promptTokens: sum(({ request }) => request.prompt.length),
      cachedTokens: sum(({ cachedTokens }) => cachedTokens),
      completionTokens: sum(({ texts }) => texts.reduce((total, { count }) => total + count, 0)),
    };
  }

  /** Log-probabilities of the prompt of an answer; undefined before that answer's first token. */
  promptLogprobs(index: number): PromptLogprob[] | undefined {
    return this.#asked.findLast(({ firstIndex }) => firstIndex <= index)?.promptLogprobs;
  }

  /** Waits for and returns the new pieces, at most one per answer; returns none once all answers are finished. */
  async read(): Promise<AnswerPiece[]> {
    for (;;) {
      const open = this.#asked.filter(({ texts }) => texts.some(({ finished }) => !finished));
      if (open.length === 0) return [];
      const pieces = this.#take(await this.#next(open));
      if (pieces.length > 0) return pieces;
    }
  }

  /** Aborts all answers; further reads throw the error. */
  abort(error?: Error): void {
    for (const { events } of this.#asked) events.leave(error);
  }

  #next(open: readonly Asked[]): Promise<{ asked: Asked; events: EngineEvent[] }> {
    for (const asked of open) {
      asked.reading ??= asked.events.read().then((events) => ({ asked, events }), failedAnswer);
    }
    const readings = open.map(({ reading }) => reading!);
    return readings.length === 1 ? readings[0]! : Promise.race(readings);
  }

  #take({ asked, events }: { asked: Asked; events: EngineEvent[] }): AnswerPiece[] {
    asked.reading = undefined;
    // The stream of events ends early only after an abort.
    if (events.length === 0) throw new FailedAnswerError("the request was aborted");
    this.#watch(asked, events);
    for (const event of events) {
      asked.promptLogprobs ??= event.promptLogprobs;
      const { finished } = event;
      if (finished === "error") throw new FailedAnswerError("the answer could not be computed");
      if (finished === "dead_end") throw new DeadEndError();
      if (finished === "abort" && !asked.texts[event.index]!.finished) {
        throw new FailedAnswerError("the request was aborted");
      }
    }
    const visible = asked.request.maxTokens > 0 ? events : events.map(withoutToken);
    const pieces = asked.texts.flatMap((text, index) => {
      const own = visible.filter((event) => event.index === index);
      if (own.length === 0 || text.finished) return [];
      const piece = text.push(own);
      const isOver = own.at(-1)!.finished !== undefined;
      if (text.finished && !isOver) this.#engine.abortAnswer(asked.events, index);
      return piece ? [piece] : [];
    });
    // Ends the engine's request once all answers to the prompt are finished, such as by a stop string.
    if (asked.texts.every(({ finished }) => finished)) asked.events.leave();
    return pieces;
  }

  #count(asked: Asked, { token, cachedTokens, miss }: EngineEvent): void {
    if (token === undefined) return;
    asked.cachedTokens = cachedTokens;
    if (miss) this.#watcher?.onMiss(miss);
    if (asked.request.maxTokens > 0) this.#watcher?.onGenerated();
  }

  #watch(asked: Asked, events: readonly EngineEvent[]): void {
    const { index, token, queueMs } = events[0]!;
    if (!this.#watcher || token === undefined) return;
    const now = performance.now();
    const steps = events.filter((event) => event.index === index && event.token !== undefined);
    if (asked.lastMs !== undefined) this.#watcher.onTokens(steps.length, now - asked.lastMs);
    if (!this.#begun) this.#watcher.onFirst(now - this.#startMs, queueMs ?? 0);
    this.#begun = true;
    asked.lastMs = now;
  }
}

/** Removes the token that was sampled although none was requested (`maxTokens` 0). */
function withoutToken(event: EngineEvent): EngineEvent {
  return { ...event, token: undefined, finished: event.finished && "length" };
}
