// The lifetime of one generation request: acquires an admission slot, a model, part of the key's limits and engine
// work, and releases each exactly once, however the request ends.
import type { Context } from "hono";
import type { Priority } from "../../engine/protocol.ts";
import { type AnswersWatcher, FailedAnswerError, type Usage } from "../../serve/answers.ts";
import { ContextLengthError, checkLengths } from "../../serve/context-length.ts";
import type { ServedModel } from "../../serve/models.ts";
import type { EncodeWork } from "../../text/encoder/encode-work.ts";
import type { Encoded } from "../../text/encoder/encoder.ts";
import { TooLongError } from "../../text/tokenizer/tokenizer.ts";
import type { HttpEnv } from "../frame/env.ts";
import {
  ApiError,
  apiErrorOf,
  ClientGoneError,
  draining,
  tooManyRequests,
} from "../frame/errors.ts";
import type { Outcome } from "../frame/metrics.ts";
import type { Generating } from "../frame/serving.ts";
import { tokenText } from "./token-text.ts";

/** The engine's work for a request. */
type Work = {
  readonly usage: Usage;
  /** Settles once the engine has finished or aborted the work. */
  readonly over?: Promise<unknown>;
  abort(error?: Error): void;
};

export class Generation {
  readonly #c: Context<HttpEnv>;
  readonly #serving: Generating;
  readonly #over = Promise.withResolvers<void>();
  /** Resolves once the final token count is known: an aborted request may still generate a few tokens. */
  readonly #counted = Promise.withResolvers<void>();
  #generatedTokens = 0;
  /** Rejects when the request is aborted, so that `wait` rejects too. */
  readonly #aborted = Promise.withResolvers<never>();
  readonly #abortController = new AbortController();
  readonly #entry;
  /** The client's key name, for fair sharing; undefined if the server has no keys: all clients then share as one. */
  readonly client: string | undefined;
  readonly #track;
  #endUse = () => {};
  #textOf: (token: number) => string = String;
  #timer: NodeJS.Timeout | undefined;
  #work: Work | undefined;
  /** Prompt tokens that encoding has already charged to the API key's limits. */
  #encodedTokens = 0;
  #ended = false;
  readonly #startMs = performance.now();

  /** Admits the request, or throws. */
  constructor(c: Context<HttpEnv>, serving: Generating, tier: Priority) {
    this.client = serving.ring.open ? undefined : c.get("caller").name;
    const entry = serving.admission.enter(this.client, c.get("isLine"));
    const { signal } = c.req.raw;
    if (entry === "draining") throw signal.aborted ? new ClientGoneError() : draining();
    if (entry === "queue_full") {
      throw tooManyRequests(1, "Too many requests are waiting.", { code: "queue_full" });
    }
    this.#c = c;
    this.#serving = serving;
    this.#entry = entry;
    this.#track = serving.metrics.begin(c.get("caller").name, tier);
    c.get("record").tier = tier;
    this.#aborted.promise.catch(() => {});
    signal.addEventListener("abort", this.#onGone);
    // The abort event is missed if the client disconnected while its body was read.
    if (signal.aborted) this.#onGone();
    entry.name = c.get("record").id;
    entry.onAbort = (error) => this.abort(error);
    c.get("record").over = this.#counted.promise;
    const { requestTimeout } = serving.settings;
    if (requestTimeout !== undefined) {
      const error = new ApiError(504, "The request took too long.", { code: "timeout" });
      this.#timer = setTimeout(() => this.abort(error), requestTimeout);
    }
  }

  /** Waits until the model is loaded. `keepAliveMs`: how long the model then stays loaded without requests. */
  async use(name: string, keepAliveMs?: number): Promise<ServedModel> {
    const use = this.#serving.models.use(name, keepAliveMs);
    this.#endUse = () => void use.then(({ end }) => end()).catch(() => {});
    const { model } = await this.wait(use);
    this.#textOf = (token) => tokenText(model.text.tokenizer, token);
    this.#c.get("record").model = model.name;
    this.#track.model(model.name);
    return model;
  }

  /** Aborts work outside the engine, such as tokenizing, when the request is aborted. */
  get signal(): AbortSignal {
    return this.#abortController.signal;
  }

  /** Awaits the promise; rejects if the request is aborted first. */
  wait<T>(promise: Promise<T>): Promise<T> {
    return Promise.race([promise, this.#aborted.promise]);
  }

  /** Tokenizes texts or a chat; rejects if the request is aborted first. */
  async encode({ text, info }: ServedModel, work: EncodeWork): Promise<Encoded> {
    const client = {
      key: this.#c.get("caller").name,
      signal: this.signal,
      charge: (tokens: number) => {
        this.#encodedTokens += tokens;
        this.#c.get("lease")?.use(tokens);
      },
    };
    try {
      const encoded = await this.#serving.encoder.encode(text, work, client);
      checkLengths(encoded.prompts, info);
      return encoded;
    } catch (error) {
      throw error instanceof TooLongError ? new ContextLengthError(error, info) : error;
    }
  }

  /** Starts the engine's work. `fieldOf`: returns the request field that contains the prompt token at an index. */
  begin<T extends Work>(
    make: (watcher: AnswersWatcher) => T,
    fieldOf: (at: number) => string | undefined = () => undefined,
  ): T {
    const record = this.#c.get("record");
    const work = make({
      onGenerated: () => {
        this.#generatedTokens += 1;
        this.#c.get("lease")?.use(1);
        this.#track.generated();
      },
      onFirst: (sinceStartMs, queueMs) => {
        Object.assign(record, { queueMs, ttftMs: sinceStartMs });
        this.#track.first(sinceStartMs, queueMs);
      },
      onTokens: (count, ms) => this.#track.tokens(count, ms),
      onMiss: ({ at, token, cached, resumed }) => {
        record.prefixMiss ??= {
          at,
          token: this.#textOf(token),
          cached: cached === undefined ? undefined : this.#textOf(cached),
          resumed,
          field: fieldOf(at),
        };
      },
    });
    this.#work = work;
    // Charges the key for prompts that were sent as token ids, since encoding has not charged them.
    this.#c.get("lease")?.use(work.usage.promptTokens - this.#encodedTokens);
    return work;
  }

  /** Aborts the work; reading the answer then throws this error. */
  abort(error: Error): void {
    this.#aborted.reject(error);
    this.#abortController.abort(error);
    this.#work?.abort(error);
  }

  /** Keeps the lease of the key's limits until `end`, since the response streams after its handler has returned. */
  continues(): void {
    this.#c.get("lease")?.endWith(this.#over.promise);
  }

  /** Releases the request's model, engine work and admission slot, and settles the key's lease. */
  end(error?: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    this.#c.req.raw.signal.removeEventListener("abort", this.#onGone);
    const record = this.#c.get("record");
    const usage = this.#work?.usage;
    if (error instanceof Error) record.error = error.message;
    this.#work?.abort();
    void Promise.resolve(this.#work?.over).then(() => {
      const outcome = outcomeOf(error);
      this.#track.end(outcome, usage);
      if (usage) Object.assign(record, usage, { completionTokens: this.#generatedTokens });
      this.#serving.feed.ended(record, outcome, performance.now() - this.#startMs);
      this.#counted.resolve();
    });
    this.#endUse();
    this.#entry.leave();
    this.#over.resolve();
  }

  readonly #onGone = () => this.abort(new ClientGoneError());
}

function outcomeOf(error: unknown): Outcome {
  if (error === undefined) return "done";
  if (error instanceof ClientGoneError) return "gone";
  if (error instanceof FailedAnswerError) return "failed";
  return apiErrorOf(error).status < 500 ? "refused" : "failed";
}
