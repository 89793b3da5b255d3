// Handles the Worker's messages. A load takes seconds to minutes, so it polls for messages between file
// reads: loaded models keep answering, and a shutdown cancels the load.
import type { EngineReport, FromWorker, ToWorker } from "../engine/protocol.ts";
import { Matchers } from "../grammar/matchers.ts";
import { apart } from "../mlx/scope.ts";
import { type Inbox, stepAll } from "./loop.ts";
import type { Models } from "./models.ts";

export type MessageHandlerParts = {
  models: Models;
  /** Waits for the mailbox's next message; returns undefined if none arrives in time. */
  receive(timeoutMs: number): ToWorker | undefined;
  reply(message: FromWorker): void;
  inspect(measure: boolean): EngineReport;
};

type Load = ToWorker & { kind: "load" };

/** Error of a load that is cancelled because the server is shutting down. */
class LoadCancelledError extends Error {
  constructor() {
    super("the load was cancelled");
  }
}

export class MessageHandler implements Inbox {
  readonly #parts: MessageHandlerParts;
  /** Messages that arrive during a load and are handled after it, in order. */
  readonly #deferred: ToWorker[] = [];
  #refusesLoads = false;

  constructor(parts: MessageHandlerParts) {
    this.#parts = parts;
  }

  next(timeoutMs: number): ToWorker | undefined {
    return this.#deferred.shift() ?? this.#parts.receive(timeoutMs);
  }

  handle(message: ToWorker): void {
    const { models, reply, inspect } = this.#parts;
    switch (message.kind) {
      case "inspect":
        this.#answer(message.id, () => inspect(message.measure));
        break;
      case "load":
        this.#answer(message.id, () => this.#load(message));
        break;
      case "plan":
        this.#answer(message.id, () => models.plan(message.path, message.options));
        break;
      case "unload":
        this.#answer(message.id, () => this.#unload(message.model));
        break;
      case "submit":
        this.#submit(message);
        break;
      case "abort":
        for (const engine of models) {
          if (!engine.has(message.id)) continue;
          reply({ kind: "step", events: engine.abort(message.id, message.index) });
        }
        break;
      case "matchers":
        models.matchers.set(message.lane, new Matchers(message.link));
        break;
      case "stats":
        this.#answer(message.id, () => models.stats());
        break;
      case "watch":
        models.isWatched = message.isWatched;
        break;
      case "blocks":
        this.#answer(message.id, () => Array.from(models, (each) => each.blockMap(message.names)));
        break;
      case "refuseLoads":
        this.#refusesLoads = true;
        break;
      case "stop":
        // Reached only during a load: cancels it, and puts this message first in the queue, where the loop finds it.
        this.#refusesLoads = true;
        this.#deferred.unshift(message);
        break;
    }
  }

  #submit({ id, model, request }: ToWorker & { kind: "submit" }): void {
    const { models, reply } = this.#parts;
    const engine = models.get(model);
    if (!engine) {
      reply({ kind: "failed", id, message: `${model} is not loaded` });
      return;
    }
    // Refused, because without matchers the answer would be generated unconstrained.
    if (request.grammar && !models.matchers.has(request.grammarLane ?? 0)) {
      reply({ kind: "failed", id, message: "no grammar thread is attached" });
      return;
    }
    const reason = engine.submit(id, request);
    if (reason) reply({ kind: "refused", id, reason });
  }

  #unload(model: string): void {
    const { models } = this.#parts;
    const engine = models.get(model);
    const hasRequests = engine && engine.scheduler.running.length + engine.scheduler.waiting.length;
    // Finishes steps in flight: they may still contain requests that were aborted.
    while (engine && !hasRequests && !engine.scheduler.idle) stepAll([engine]);
    models.unload(model);
  }

  #load(message: Load): unknown {
    if (this.#refusesLoads) throw new LoadCancelledError();
    const { model, path, options } = message;
    const { models, reply } = this.#parts;
    const tell = (kind: "load" | "warm_up") => (done: number, total: number) =>
      reply({ kind: "activity", activity: { kind, model, done, total } });
    const serveOthers = this.#othersDuring(message);
    const onRead = () => {
      apart(serveOthers);
      if (this.#refusesLoads) throw new LoadCancelledError();
    };
    return models.load(model, path, options, {
      onProgress: tell("load"),
      onWarmUp: tell("warm_up"),
      onRead,
    });
  }

  /** Returns a callback to call after each file read: it runs the loaded models for as long as the read took. */
  #othersDuring(load: Load): () => void {
    const { models } = this.#parts;
    let [now, owedMs] = [performance.now(), 0];
    const elapsed = () => {
      const before = now;
      now = performance.now();
      return now - before;
    };
    return () => {
      owedMs += elapsed();
      for (;;) {
        this.#handleDuring(load);
        if (!models.busy) owedMs = 0;
        if (this.#refusesLoads || owedMs <= 0 || !stepAll(models)) return;
        owedMs -= elapsed();
      }
    };
  }

  #handleDuring(load: Load): void {
    while (!this.#refusesLoads) {
      const message = this.#parts.receive(0);
      if (!message) return;
      if (this.#mustWait(message, load)) this.#deferred.push(message);
      else this.handle(message);
    }
  }

  /** Whether to defer a message: loads run one at a time, and messages about a model or request stay in order. */
  #mustWait(message: ToWorker, load: Load): boolean {
    if (message.kind === "load") return true;
    return [load, ...this.#deferred].some((earlier) => {
      if (message.kind === "abort") return earlier.kind === "submit" && earlier.id === message.id;
      return "model" in message && "model" in earlier && earlier.model === message.model;
    });
  }

  /** Replies with the result or the error: a failing request must not end the Worker. */
  #answer(id: number, work: () => unknown): void {
    const { reply } = this.#parts;
    try {
      reply({ kind: "answer", id, answer: work() });
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      reply({ kind: "failed", id, message });
    }
  }
}
