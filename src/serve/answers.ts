// Requests on their way through the engine, and what comes back as text. One HTTP request may be several
// to the engine, one for each prompt, and each of them has n answers; they are numbered in that order.
import { type EngineClient, EngineError } from "../engine/client.ts";
import type { EngineEvent, EngineRequest, PromptLogprob } from "../engine/protocol.ts";
import type { EventStream } from "../engine/stream.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import { type AnswerPiece, AnswerText } from "./answer-text.ts";

export type AnswersRequest = {
  model: string;
  tokenizer: Tokenizer;
  /** The same but for their prompts. Where `maxTokens` is 0 only the prompt is computed. */
  requests: readonly EngineRequest[];
  stops: readonly string[];
  /** Control tokens that are part of the text. */
  markers?: readonly string[];
  /** Unread tokens of a prompt's answers before its reader is given up. */
  maxBacklog?: number | undefined;
};

/** The engine could not go on with it: its numbers were none, or its step failed. */
export class FailedAnswerError extends Error {
  override name = "FailedAnswerError";
}

/** An engine that ends takes the answers with it that it was making. */
export function failedAnswer(error: unknown): never {
  throw error instanceof EngineError ? new FailedAnswerError(error.message) : error;
}

export type Usage = { promptTokens: number; cachedTokens: number; completionTokens: number };

/** What those who measure are told. */
export type AnswersWatcher = {
  /** With the first token of all: since it was asked for, and how much of it in the queue. */
  onFirst(sinceStartMs: number, queueMs: number): void;
  /** So many tokens of an answer have come, so long after those before. */
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
  /** When tokens of it last came. */
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
      return {
        request,
        // The engine makes a token of whatever it computes.
        events: engine.submit(model, { ...request, maxTokens: request.maxTokens || 1 }, maxBacklog),
        texts: Array.from({ length: n }, (_, i) => {
          return new AnswerText(first + i, tokenizer, { stops, markers, minTokens });
        }),
        firstIndex: first,
        reading: undefined,
        cachedTokens: 0,
        promptLogprobs: undefined,
        lastMs: undefined,
      };
    });
  }

  get usage(): Usage {
    const sum = (of: (asked: Asked) => number) =>
      this.#asked.reduce((total, asked) => total + of(asked), 0);
    return {
      promptTokens: sum(({ request }) => request.prompt.length),
      cachedTokens: sum(({ cachedTokens }) => cachedTokens),
      completionTokens: sum(({ texts }) => texts.reduce((total, { count }) => total + count, 0)),
    };
  }

  /** Of the prompt that this answer is to; there once its first token is. */
  promptLogprobs(index: number): PromptLogprob[] | undefined {
    return this.#asked.findLast(({ firstIndex }) => firstIndex <= index)?.promptLogprobs;
  }

  /** What has come since the last read, at most a piece an answer; nothing when all are finished. */
  async read(): Promise<AnswerPiece[]> {
    for (;;) {
      const open = this.#asked.filter(({ texts }) => texts.some(({ finished }) => !finished));
      if (open.length === 0) return [];
      const pieces = this.#take(await this.#next(open));
      if (pieces.length > 0) return pieces;
    }
  }

  /** Ends all of them; the reader gets the error. */
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
    // Only when it was left does it end before its answers do.
    if (events.length === 0) throw new FailedAnswerError("the request was aborted");
    this.#watch(asked, events);
    for (const event of events) {
      asked.cachedTokens = event.cachedTokens;
      asked.promptLogprobs ??= event.promptLogprobs;
      const { finished } = event;
      if (finished === "error") throw new FailedAnswerError("the model gave no answer");
      if (finished === "abort" && !asked.texts[event.index]!.finished) {
        throw new FailedAnswerError("the request was aborted");
      }
    }
    const told = asked.request.maxTokens > 0 ? events : events.map(withoutToken);
    const pieces = asked.texts.flatMap((text, index) => {
      const own = told.filter((event) => event.index === index);
      if (own.length === 0 || text.finished) return [];
      const piece = text.push(own);
      const isOver = own.at(-1)!.finished !== undefined;
      if (text.finished && !isOver) this.#engine.abortAnswer(asked.events, index);
      return piece ? [piece] : [];
    });
    // What comes after a stop string is of no use to anyone.
    if (asked.texts.every(({ finished }) => finished)) asked.events.leave();
    return pieces;
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

/** Nobody has asked for the token: it is no part of the answer, nor is it what ended it. */
function withoutToken(event: EngineEvent): EngineEvent {
  return { ...event, token: undefined, finished: event.finished && "length" };
}
