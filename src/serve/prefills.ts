// Computes prompts without generating, for a pooled vector or the logits at the last position. A few run at a time, so
// that a long list does not fill the queue.
import type { EngineClient } from "../engine/client.ts";
import type { EngineEvent, EngineRequest } from "../engine/protocol.ts";
import type { EventStream } from "../engine/stream.ts";
import { FailedAnswerError, failedAnswer, type Usage } from "./answers.ts";

const AT_ONCE = 32;

export type PrefillsRequest = {
  model: string;
  /** One request per prompt; only the prompts differ. */
  requests: readonly Omit<EngineRequest, "maxTokens">[];
  /** Whether prompts share a prefix: the first then runs alone, so that the others hit the blocks that it caches. */
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

  /** Computes the prompts; returns an event with the vector or logits of each. */
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
