// The main thread's side of the engine. It starts the Worker, sends it requests and distributes their events.
// If the Worker dies, its requests end with an error, and a new Worker is started with the same models.
import { MessageChannel, Worker } from "node:worker_threads";
import { type ErrorAnswer, sentence } from "../error-answer.ts";
import type { MatcherSource, MatcherUser, ServingThread } from "../grammar/grammars.ts";
import { workerEntry } from "../worker-entry.ts";
import { type Mailbox, send } from "./mailbox.ts";
import {
  type BlockMap,
  type Division,
  defaultEngineOptions,
  type EngineActivity,
  type EngineEvent,
  type EngineOptions,
  type EngineReport,
  type EngineRequest,
  type FromWorker,
  type ModelInfo,
  type ModelPlan,
  type ModelStats,
  type Refusal,
  type StepReport,
  type ToWorker,
  type WorkerData,
  type WorkerSetup,
} from "./protocol.ts";
import { received } from "./step-events.ts";
import { EventStream } from "./stream.ts";

/** The engine is too busy for this request, or can never answer it. */
export class RefusedError extends Error {
  override name = "RefusedError";
  readonly reason: Refusal;
  readonly answer: ErrorAnswer;

  constructor(reason: Refusal) {
    const { message, ...answer } = refusals[reason];
    super(message);
    this.reason = reason;
    this.answer = { ...answer, message: sentence(message) };
  }
}

const refusals: Record<Refusal, ErrorAnswer> = {
  queue_full: { status: 429, message: "too many requests are waiting", code: "queue_full" },
  too_long: {
    status: 400,
    message: "the prompt is longer than the model's maximum context length",
    code: "context_length_exceeded",
    param: "prompt",
  },
  ranks_refuse: { status: 503, message: "a rank refuses the model" },
  bad_token: {
    status: 400,
    message: "the prompt is empty or has a token that the model does not know",
    code: "invalid_value",
    param: "prompt",
  },
};

/** The engine itself has failed. */
export class EngineError extends Error {
  override name = "EngineError";
  readonly answer: ErrorAnswer = { status: 503, message: "The engine is not available." };
}

/** Error of requests that arrive while the server shuts down. */
export const draining: ErrorAnswer = {
  status: 503,
  message: "The server is shutting down.",
  code: "draining",
};

/** The model was not loaded, because the server is shutting down. */
export class LoadCancelledError extends EngineError {
  override name = "LoadCancelledError";
  override readonly answer = draining;

  constructor() {
    super("the load was cancelled");
  }
}

export type EngineHooks = {
  onStep?: (report: StepReport) => void;
  /** Called whenever a long task progresses, and with undefined at its end. */
  onActivity?: (activity: EngineActivity | undefined) => void;
  /** Called after the Worker has died and its requests have ended with this error. */
  onFailure?: (error: Error) => void;
};

export type SubmitOptions = {
  /** Maximum number of unread events; beyond it the request is aborted. */
  maxBacklog?: number | undefined;
  /** Called with every event, even after the reader of the events has stopped reading. */
  onEvent?: (event: EngineEvent) => void;
};

/** The ranks that models are divided among. */
export type RankSource = {
  readonly size: number;
  readonly localSize: number;
  readonly division: Division;
  /** Connects a new Worker in place of the previous one. */
  connect(): Mailbox;
};

type Question = { resolve(answer: unknown): void; reject(error: Error): void };

/** A request in the engine, with the number of its unfinished answers. */
type Answering = {
  name: string | undefined;
  stream: EventStream<EngineEvent>;
  unfinished: number;
  onEvent: SubmitOptions["onEvent"];
};

type Connection = {
  worker: Worker;
  mailbox: Mailbox;
  ready: Promise<void>;
  /** Whether the Worker has opened MLX. */
  started: boolean;
  ended: Promise<void>;
  /** Ends the connection, even if the Worker is still running. */
  end(error: Error): void;
  models: Map<string, Loaded>;
  /** Grammar threads that the Worker has a link to, by index (lane). */
  grammarThreads: Map<number, ServingThread>;
};

type Loaded = { path: string; options: EngineOptions; info: Promise<ModelInfo> };

/** Maximum automatic restarts without a step in between; afterwards a Worker is started only on demand. */
const MAX_RESTARTS = 3;

/** How long a Worker may take to stop; it notices the request only between steps or between file reads of a load. */
const STOP_MS = 1000;

export class EngineClient implements MatcherUser {
  readonly #setup: WorkerSetup;
  readonly #hooks: EngineHooks;
  readonly #ranks: RankSource | undefined;
  readonly #questions = new Map<number, Question>();
  readonly #streams = new Map<number, Answering>();
  #connection: Connection | undefined;
  #matcherSource: MatcherSource | undefined;
  /** Number of Workers that have died since the last step. */
  #deaths = 0;
  #isWatched = false;
  #stopped = false;
  /** `refuseLoads` rejects this promise, which makes every running and later load reject. */
  readonly #loadsRefused = Promise.withResolvers<never>();
  #nextId = 1;
  #activity: EngineActivity | undefined;

  /** Starts a Worker; returns when MLX is open, or throws if it cannot be opened. */
  static async start(
    setup: WorkerSetup,
    hooks: EngineHooks = {},
    ranks?: RankSource,
  ): Promise<EngineClient> {
    const client = new EngineClient(setup, hooks, ranks);
    await client.#connect().ready;
    return client;
  }

  private constructor(setup: WorkerSetup, hooks: EngineHooks, ranks: RankSource | undefined) {
    this.#setup = setup;
    this.#ranks = ranks;
    this.#hooks = hooks;
    this.#loadsRefused.promise.catch(() => {});
  }

  /** Whether a Worker is running. */
  get alive(): boolean {
    return this.#connection !== undefined;
  }

  /** Number of requests that are running, waiting or being aborted. */
  get active(): number {
    return this.#streams.size;
  }

  /** Long task that the engine is working on, if any. */
  get activity(): EngineActivity | undefined {
    return this.#activity;
  }

  /** Reports the device and, with `measure`, its matmul throughput. */
  inspect(measure = false): Promise<EngineReport> {
    return this.#ask<EngineReport>((id) => ({ kind: "inspect", id, measure }));
  }

  stats(): Promise<ModelStats[]> {
    return this.#ask<ModelStats[]>((id) => ({ kind: "stats", id }));
  }

  /** Sets whether step reports list each row's request id and number of tokens; `nameOf` resolves the id. */
  watch(isWatched: boolean): void {
    this.#isWatched = isWatched;
    if (this.#connection) this.#send({ kind: "watch", isWatched });
  }

  /** Returns the name of a running or waiting request. */
  nameOf(id: number): string | undefined {
    return this.#streams.get(id)?.name;
  }

  /** Returns every model's map of KV blocks, and which of its cells the named requests use. */
  blocks(names: readonly string[]): Promise<BlockMap[]> {
    return this.#ask<BlockMap[]>((id) => ({ kind: "blocks", id, names }));
  }

  /** Plans a model's memory without loading it. Rejects as a load would. */
  plan(path: string, options: Partial<EngineOptions> = {}): Promise<ModelPlan> {
    const all = { ...defaultEngineOptions, ...options };
    return this.#ask<ModelPlan>((id) => ({ kind: "plan", id, path, options: all }));
  }

  /** Loads a model under this name, unless it is already loaded. */
  load(model: string, path: string, options: Partial<EngineOptions> = {}): Promise<ModelInfo> {
    const connection = this.#connection ?? this.#connect();
    const loaded = connection.models.get(model);
    if (loaded) return loaded.info;
    const all = { ...defaultEngineOptions, ...options };
    const info = Promise.race([
      this.#loadsRefused.promise,
      this.#ask<ModelInfo>((id) => ({ kind: "load", id, model, path, options: all })),
    ]).finally(() => this.#setActivity(undefined));
    connection.models.set(model, { path, options: all, info });
    info.catch(() => {
      if (connection.models.get(model)?.info === info) connection.models.delete(model);
    });
    return info;
  }

  /** Unloads a model. A `load` called meanwhile is sent after the unload, so it loads the model again. */
  async unload(model: string): Promise<void> {
    const connection = this.#connection;
    if (!connection) return;
    connection.models.delete(model);
    await this.#ask((id) => ({ kind: "unload", id, model })).catch((error) => {
      // An error counts only while the Worker lives: if it has died, the model is unloaded anyway.
      if (this.#connection === connection) throw error;
    });
  }

  /** Cancels the running load and refuses later ones with a LoadCancelledError, for a shutdown. */
  refuseLoads(): void {
    this.#loadsRefused.reject(new LoadCancelledError());
    if (this.#connection) this.#send({ kind: "refuseLoads" });
  }

  /**
   * Submits a request to a loaded model and returns its events. The request is aborted if the reader leaves the loop
   * over the events early, or falls more than `maxBacklog` events behind.
   */
  submit(
    model: string,
    request: EngineRequest,
    { maxBacklog, onEvent }: SubmitOptions = {},
  ): EventStream<EngineEvent> {
    const id = this.#nextId++;
    const stream = new EventStream<EngineEvent>(() => {
      if (this.#streams.has(id) && this.#connection) this.#send({ kind: "abort", id });
    }, maxBacklog);
    const { name, n: unfinished = 1 } = request;
    this.#streams.set(id, { name, stream, unfinished, onEvent });
    if (this.#connection) {
      if (request.grammar) this.#linkGrammarThread(this.#connection, request.grammarLane ?? 0);
      this.#send({ kind: "submit", id, model, request });
    } else this.#endStream(id, new EngineError("the engine is down"));
    return stream;
  }

  /** Sets the source of the grammar threads that make token masks. */
  attach(source: MatcherSource): void {
    this.#matcherSource = source;
  }

  /**
   * Links the Worker to the grammar thread, if either was restarted since the last request. The link is sent before
   * the request that needs it, through the same port, so the Worker never opens a matcher without a link.
   */
  #linkGrammarThread(connection: Connection, lane: number): void {
    const thread = this.#matcherSource?.servingThread(lane);
    if (!thread || connection.grammarThreads.get(lane) === thread) return;
    connection.grammarThreads.set(lane, thread);
    const link = thread.connect();
    send(connection.mailbox, { kind: "matchers", lane, link } satisfies ToWorker, [link.port]);
  }

  /** Ends one answer of a request; the others go on. */
  abortAnswer(stream: EventStream<EngineEvent>, index: number): void {
    const [id] = this.#streams.entries().find(([, each]) => each.stream === stream) ?? [];
    if (id !== undefined && this.#connection) this.#send({ kind: "abort", id, index });
  }

  /**
   * Stops the Worker. Returns when the Worker has freed its models and exited, or after a timeout: a native call
   * cannot be interrupted. Running requests and loads end with an error.
   */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#loadsRefused.reject(new LoadCancelledError());
    const connection = this.#connection;
    if (!connection) return;
    this.#send({ kind: "stop" });
    const timer = setTimeout(() => {
      connection.worker.unref();
      void connection.worker.terminate();
      connection.end(new EngineError("the engine did not stop in time"));
    }, STOP_MS);
    await connection.ended;
    clearTimeout(timer);
  }

  /** Ends the Worker at once, as a crash would. */
  async kill(): Promise<void> {
    await this.#connection?.worker.terminate();
  }

  #connect(): Connection {
    if (this.#stopped) throw new EngineError("the engine has ended");
    const { port1, port2 } = new MessageChannel();
    const arrivals = new SharedArrayBuffer(4);
    const source = this.#ranks;
    const ranks = source && {
      mailbox: source.connect(),
      size: source.size,
      localSize: source.localSize,
      division: source.division,
    };
    const workerData: WorkerData = {
      mailbox: { port: port2, arrivals },
      setup: this.#setup,
      ranks,
    };
    const transferList = [port2, ...(ranks ? [ranks.mailbox.port] : [])];
    const worker = new Worker(workerEntry, { workerData, transferList });
    const [ready, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const connection: Connection = {
      worker,
      mailbox: { port: port1, arrivals },
      ready: ready.promise,
      started: false,
      ended: ended.promise,
      end: (error) => {
        if (this.#connection !== connection) return;
        this.#connection = undefined;
        this.#setActivity(undefined);
        port1.close();
        ready.reject(error);
        ended.resolve();
        this.#failAll(error);
        if (this.#stopped) return;
        this.#hooks.onFailure?.(error);
        this.#deaths += 1;
        if (connection.started && this.#deaths <= MAX_RESTARTS) this.#restart(connection.models);
      },
      models: new Map(),
      grammarThreads: new Map(),
    };
    ready.promise.catch(() => {});
    port1.on("message", (message: FromWorker) => {
      if (message.kind !== "ready") return this.#receive(message);
      connection.started = true;
      ready.resolve();
    });
    worker.on("error", (error) => connection.end(error as Error));
    worker.on("exit", () => connection.end(new EngineError("the engine has ended")));
    this.#connection = connection;
    if (this.#isWatched) this.watch(true);
    return connection;
  }

  /** Loads all models again. If one fails, the next `load` of it reports the error. */
  #restart(models: ReadonlyMap<string, Loaded>): void {
    this.#connect();
    for (const [model, { path, options }] of models) {
      this.load(model, path, options).catch(() => {});
    }
  }

  #ask<T>(message: (id: number) => ToWorker): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>();
    try {
      if (!this.#connection) this.#connect();
      const id = this.#nextId++;
      this.#questions.set(id, { resolve: resolve as Question["resolve"], reject });
      this.#send(message(id));
    } catch (error) {
      reject(error);
    }
    return promise;
  }

  #send(message: ToWorker): void {
    send(this.#connection!.mailbox, message);
  }

  #receive(message: FromWorker): void {
    switch (message.kind) {
      case "answer":
        this.#settle(message.id)?.resolve(message.answer);
        break;
      case "failed": {
        const error = new EngineError(message.message);
        this.#settle(message.id)?.reject(error);
        this.#endStream(message.id, error);
        break;
      }
      case "refused":
        this.#endStream(message.id, new RefusedError(message.reason));
        break;
      case "step":
        this.#deaths = 0;
        if (this.#activity?.kind === "compile") this.#setActivity(undefined);
        // Reports the step first: `#deliver` forgets requests that end in it, and the report refers to them by id.
        if (message.report) this.#hooks.onStep?.(message.report);
        for (const { id, event } of received(message.events)) this.#deliver(id, event);
        break;
      case "activity":
        this.#setActivity(message.activity);
        break;
      case "ready":
        break;
    }
  }

  #setActivity(activity: EngineActivity | undefined): void {
    if (!activity && !this.#activity) return;
    this.#activity = activity;
    this.#hooks.onActivity?.(activity);
  }

  #deliver(id: number, event: EngineEvent): void {
    const answering = this.#streams.get(id);
    if (!answering) return;
    answering.onEvent?.(event);
    answering.stream.push(event);
    if (event.finished) answering.unfinished -= 1;
    if (answering.unfinished === 0) this.#endStream(id);
  }

  #endStream(id: number, error?: Error): void {
    this.#streams.get(id)?.stream.end(error);
    this.#streams.delete(id);
  }

  #settle(id: number): Question | undefined {
    const question = this.#questions.get(id);
    this.#questions.delete(id);
    return question;
  }

  /** Rejects all unanswered questions to the Worker, and ends all event streams, with the error. */
  #failAll(error: Error): void {
    for (const id of [...this.#questions.keys()]) this.#settle(id)?.reject(error);
    for (const id of [...this.#streams.keys()]) this.#endStream(id, error);
  }
}
