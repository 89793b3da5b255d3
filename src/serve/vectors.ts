// Embeddings of texts, computed a few at a time so that a long list does not fill the queue.
import type { EngineClient } from "../engine/client.ts";
import type { EngineEvent, EngineRequest } from "../engine/protocol.ts";
import type { EventStream } from "../engine/stream.ts";
import type { Embedding } from "../text/embedding.ts";
import { FailedAnswerError, failedAnswer, type Usage } from "./answers.ts";

const AT_ONCE = 32;

export type VectorsRequest = {
  model: string;
  embedding: Embedding;
  /** Equal except for their prompts. */
  requests: readonly Pick<EngineRequest, "name" | "prompt" | "priority" | "client" | "salt">[];
  /** Cuts each vector to its first numbers. */
  dimensions: number | undefined;
};

export class Vectors {
  readonly #engine: EngineClient;
  readonly #asked: VectorsRequest;
  readonly usage: Usage;
  #streams: EventStream<EngineEvent>[] = [];
  #aborted: Error | undefined;

  constructor(engine: EngineClient, asked: VectorsRequest) {
    this.#engine = engine;
    this.#asked = asked;
    const promptTokens = asked.requests.reduce((sum, { prompt }) => sum + prompt.length, 0);
    this.usage = { promptTokens, cachedTokens: 0, completionTokens: 0 };
  }

  async read(): Promise<Float32Array[]> {
    const { requests, model, embedding, dimensions } = this.#asked;
    const vectors: Float32Array[] = [];
    for (let at = 0; at < requests.length; at += AT_ONCE) {
      if (this.#aborted) throw this.#aborted;
      this.#streams = requests.slice(at, at + AT_ONCE).map((request) =>
        this.#engine.submit(model, {
          ...request,
          maxTokens: 1,
          sampling: { temperature: 0 },
          pooling: embedding.pooling,
        }),
      );
      vectors.push(...(await Promise.all(this.#streams.map((stream) => this.#vector(stream)))));
    }
    const cut = vectors.map((vector) => vector.subarray(0, dimensions ?? vector.length));
    return embedding.normalize ? cut.map(normalized) : cut;
  }

  abort(error: Error = new FailedAnswerError("the request was aborted")): void {
    this.#aborted = error;
    for (const stream of this.#streams) stream.leave(error);
  }

  async #vector(stream: EventStream<EngineEvent>): Promise<Float32Array> {
    const [event] = await stream.read().catch(failedAnswer);
    if (!event?.vector) throw new FailedAnswerError("the model gave no vector");
    this.usage.cachedTokens += event.cachedTokens;
    return event.vector;
  }
}

/** Scaled to length 1. */
function normalized(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector) || 1;
  return vector.map((value) => value / length);
}
