// Prompts that are computed only for what is read of them: a vector, or logits behind them. A few at a time, so
// that a long list does not fill the queue.
import type { EngineClient } from "../engine/client.ts";
import type { EngineEvent, EngineRequest } from "../engine/protocol.ts";
import type { EventStream } from "../engine/stream.ts";
import { FailedAnswerError, failedAnswer, type Usage } from "./answers.ts";

const AT_ONCE = 32;

export type PrefillsRequest = {
  model: string;
  /** Equal except for their prompts. */
  requests: readonly Omit<EngineRequest, "maxTokens">[];
  /** Whether the prompts begin alike: the first one is computed alone, and the others find that in the cache. */
  shareHead?: boolean;
};

export class Prefills {
  readonly #engine: Pick<EngineClient, "submit">;
  readonly #asked: PrefillsRequest;
  readonly usage: Usage;
  #streams: EventStream<EngineEvent>[] = [];
  #aborted: Error | undefined;

  constructor(engine: Pick<EngineClient, "submit">, asked: PrefillsRequest) {
    this.#engine = engine;
    this.#asked = asked;
    const promptTokens = asked.requests.reduce((sum, { prompt }) => sum + prompt.length, 0);
    this.usage = { promptTokens, cachedTokens: 0, completionTokens: 0 };
  }

  /** What came with the token behind each prompt. */
  async read(): Promise<EngineEvent[]> {
    const { requests, model, shareHead = false } = this.#asked;
    const events: EngineEvent[] = [];
    while (events.length < requests.length) {
      if (this.#aborted) throw this.#aborted;
      const end = events.length + (shareHead && events.length === 0 ? 1 : AT_ONCE);
      this.#streams = requests
        .slice(events.length, end)
        .map((request) => this.#engine.submit(model, { ...request, maxTokens: 1 }));
      events.push(...(await Promise.all(this.#streams.map((stream) => this.#first(stream)))));
    }
    return events;
  }

  abort(error: Error = new FailedAnswerError("the request was aborted")): void {
    this.#aborted = error;
    for (const stream of this.#streams) stream.leave(error);
  }

  async #first(stream: EventStream<EngineEvent>): Promise<EngineEvent> {
    const [event] = await stream.read().catch(failedAnswer);
    if (event?.token === undefined) throw new FailedAnswerError("the prompt could not be computed");
    this.usage.cachedTokens += event.cachedTokens;
    return event;
  }
}
