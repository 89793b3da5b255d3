// The requests of one HTTP request in the engine, and their answers as text. The engine gets one request for
// each prompt, each with n answers; the answers are numbered in that order.
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
  /** Equal except for their prompts. With `maxTokens` 0 only the prompt is computed. */
  requests: readonly EngineRequest[];
  stops: readonly string[];
  /** Control tokens that are part of the text. */
  markers?: readonly string[];
  /** Unread tokens of a prompt's answers before the request is aborted. */
  maxBacklog?: number | undefined;
};

/** The engine failed the request: its logits were NaN, or its step failed. */
export class FailedAnswerError extends Error {
  override name = "FailedAnswerError";
  readonly answer: ErrorAnswer = { status: 500, message: "The answer failed." };
}

/** No token of the model continues the answer as its grammar requires. */
class DeadEndError extends Error {
  override name = "DeadEndError";
  readonly answer: ErrorAnswer = {
    status: 400,
    message: "The model has no token for what the grammar requires next in the answer.",
    code: "grammar_dead_end",
  };

  constructor() {
    super("the grammar requires what no token begins");
  }
}

/** When the engine ends, so do its answers. */
export function failedAnswer(error: unknown): never {
  throw error instanceof EngineError ? new FailedAnswerError(error.message) : error;
}

export type Usage = { promptTokens: number; cachedTokens: number; completionTokens: number };

/** For metrics and limits. */
export type AnswersWatcher = {
  /** The engine has generated a token, whether or not it is read. */
  onGenerated(): void;
  /** At the first token: the time to it, and how much of that was spent in the queue. */
  onFirst(sinceStartMs: number, queueMs: number): void;
  /** A prompt parts from what is cached; at debug level. */
  onMiss(miss: PrefixMiss): void;
  /** Tokens of an answer have arrived, this long after the ones before. */
  onTokens(count: number, sinceLastMs: number): void;
};

type Asked = {
  request: EngineRequest;
  events: EventStream<EngineEvent>;
  texts: AnswerText[];
  /** Of its first answer. */
  firstIndex: number;
  reading: Promise<{ asked: Asked; events: EngineEvent[] }> | undefined;
  cachedTokens: number;
  promptLogprobs: PromptLogprob[] | undefined;
  /** When its last tokens arrived. */
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
      // The engine samples at least one token.
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

  /** Settles when the engine is done with all of them, which is some time after an abort. */
  get over(): Promise<unknown> {
    return Promise.all(this.#asked.map(({ events }) => events.over));
  }

  /** Of what the client gets. */
  get usage(): Usage {
    const sum = (of: (asked: Asked) => number) =>
      this.#asked.reduce((total, asked) => total + of(asked), 0);
    return {
      promptTokens: sum(({ request }) => request.prompt.length),
      cachedTokens: sum(({ cachedTokens }) => cachedTokens),
      completionTokens: sum(({ texts }) => texts.reduce((total, { count }) => total + count, 0)),
    };
  }

  /** Of this answer's prompt; undefined before the answer's first token. */
  promptLogprobs(index: number): PromptLogprob[] | undefined {
    return this.#asked.findLast(({ firstIndex }) => firstIndex <= index)?.promptLogprobs;
  }

  /** What has arrived since the last read, at most one piece for each answer; empty when all are finished. */
  async read(): Promise<AnswerPiece[]> {
    for (;;) {
      const open = this.#asked.filter(({ texts }) => texts.some(({ finished }) => !finished));
      if (open.length === 0) return [];
      const pieces = this.#take(await this.#next(open));
      if (pieces.length > 0) return pieces;
    }
  }

  /** Aborts all answers; reads throw the error. */
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
    // A stream ends before its answers do only if it was aborted.
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
    // Nothing after a stop string is used.
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

/** The token was not requested: it is neither part of the answer nor the reason for its end. */
function withoutToken(event: EngineEvent): EngineEvent {
  return { ...event, token: undefined, finished: event.finished && "length" };
}
