// Starts the engine, its models and the socket, and stops them in order: new requests are rejected and batches stop,
// running requests finish, the socket closes, the engine stops.
import { join } from "node:path";
import { cacheDirectory } from "../../ffi/native.ts";
import type { Settings } from "../config/settings.ts";
import { EngineClient, type EngineHooks } from "../engine/client.ts";
import type { EngineOptions, WorkerSetup } from "../engine/protocol.ts";
import { type GrammarLimits, Grammars } from "../grammar/grammars.ts";
import type { Environment } from "../hub/settings.ts";
import type { ModelSource } from "../hub/source.ts";
import type { KeyFile } from "../keys/key-file.ts";
import { KeyRing } from "../keys/key-ring.ts";
import type { Logger } from "../log.ts";
import type { RankGroup } from "../ranks/group.ts";
import { Admission } from "../serve/admission.ts";
import { type ServedModel, ServedModels } from "../serve/models.ts";
import { StoredResponses } from "../serve/stored-responses.ts";
import { Encoder } from "../text/encoder/encoder.ts";
import { makeApp } from "./app.ts";
import { batchesOptions } from "./batch-lines.ts";
import { EngineFeed } from "./frame/engine-feed.ts";
import { draining, errorResponse } from "./frame/errors.ts";
import { LazyBatches } from "./frame/lazy-batches.ts";
import { Metrics } from "./frame/metrics.ts";
import { requestId } from "./frame/request-log.ts";
import type { Generating, Serving } from "./frame/serving.ts";
import { engineState } from "./owner/engine-state.ts";
import { Listener } from "./wire/listener.ts";
import { RequestFault } from "./wire/request-fault.ts";

export type ServingOptions = {
  settings: Settings;
  model: ModelSource;
  chatTemplate?: string | undefined;
  keys: KeyFile | undefined;
  /** The key that the command line on this machine uses. */
  localKey: string;
  worker: WorkerSetup;
  /** Processes that models are divided among; stopped together with the server. */
  ranks?: RankGroup | undefined;
  env?: Environment;
  log: Logger;
  onActivity?: EngineHooks["onActivity"];
  /** Seconds without events after which a stream gets a heartbeat. */
  heartbeatSeconds?: number;
  grammarLimits?: Partial<GrammarLimits> | undefined;
};

export type ServerOptions = ServingOptions & {
  /** Seconds after which an idle connection, or a client that does not read its stream, is disconnected. */
  idleSeconds?: number;
};

export type RunningServer = {
  serving: Serving;
  url: string;
  /** URL of the second port; set with --ollama-port. */
  ollamaUrl: string | undefined;
  /** Resolves once the default model is loaded. */
  ready: Promise<ServedModel>;
  /** Lets running requests finish, at most for the drain timeout, then stops. */
  drain(): Promise<void>;
};

/** Time for clients to read the rest of their responses at shutdown. */
const WRITE_MS = 1000;

/** A server that listens on no socket. */
export type RunningServing = {
  serving: Serving;
  /** Stops the server; to be called after all requests have ended. */
  stop(): Promise<void>;
};

/** Starts a server without a socket; throws if MLX cannot be opened. */
export async function startServing(options: ServingOptions): Promise<RunningServing> {
  const { settings, model, chatTemplate, log, worker, heartbeatSeconds = 15 } = options;
  const engineOptions = engineOptionsOf(settings);
  const admission = new Admission(engineOptions.maxBatch! + settings.maxQueue);
  const hooks: EngineHooks = {
    ...(options.onActivity && { onActivity: options.onActivity }),
    onStep(report) {
      metrics.step(report);
      feed.step(report);
      if (report.error) log.error(report, "step failed");
      else log.debug(report, "step");
    },
  };
  const engine = await EngineClient.start(worker, hooks, options.ranks);
  await using made = new AsyncDisposableStack();
  made.defer(() => engine.stop());
  // Restarts the engine if it ends. The hook is set after the start, because `start` itself throws if it fails.
  hooks.onFailure = (error) => {
    models.restore();
    log.error({ err: error }, "the engine has ended; restarting it");
  };
  const encoder = new Encoder();
  const models = new ServedModels(engine, {
    main: model,
    names: settings.servedModelName,
    maxModels: settings.maxModels,
    chatTemplate,
    engineOptions,
    idleMs: settings.idleUnload,
    onUnload(name, path) {
      encoder.forget(path);
      log.info({ model: name }, "unloaded");
    },
    ...(options.env && { env: options.env }),
  });
  const metrics = new Metrics(models, admission);
  const feed = new EngineFeed(engine, (followed) => engineState(serving, followed));
  const ring = new KeyRing({ plain: settings.apiKey, file: options.keys, local: options.localKey });
  const grammars = new Grammars(options.grammarLimits);
  const data = settings.dataDir ?? join(cacheDirectory(options.env), "data");
  const responses = new StoredResponses({
    path: join(data, "responses.sqlite"),
    maxBytes: settings.maxResponseStorage,
  });
  const batches = new LazyBatches(
    join(data, "batches"),
    (path) => batchesOptions(serving, path),
    log,
  );
  const serving: Serving = {
    engine,
    ranks: options.ranks,
    grammars,
    encoder,
    models,
    admission,
    metrics,
    feed,
    responses,
    batches,
    ring,
    settings,
    url: undefined,
    env: options.env ?? process.env,
    heartbeatMs: heartbeatSeconds * 1000,
    uncaughtErrors: 0,
    log,
  };
  const kept = made.move();
  const stop = async () => {
    await Promise.all([kept.disposeAsync(), grammars.stop(), encoder.stop()]);
    await options.ranks?.stop();
    responses.close();
  };
  return { serving, stop };
}

/** Starts a server that listens; throws if the address is in use or MLX cannot be opened. */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { settings, log, idleSeconds = 30 } = options;
  const { serving, stop } = await startServing(options);
  const { engine, models, admission, batches } = serving;
  try {
    const app = makeApp(serving);
    const listen = (port: number) => {
      return new Listener({
        hostname: settings.host,
        port,
        idleMs: idleSeconds * 1000,
        answer: (request) => app.fetch(request),
        refuse: (error) => refused(error, serving),
        log,
      });
    };
    const listeners = await listenOn([settings.port, settings.ollamaPort], listen);
    const [url, ollamaUrl] = listeners.map(({ port }) => urlOf(settings.host, port));
    serving.url = url;
    const ready = models.get("default");
    const drain = async () => {
      const error = draining();
      // Rejects requests that wait for a model to load; running requests may finish.
      engine.refuseLoads();
      for (const listener of listeners) listener.closeAfterResponses();
      // Batches stop first, so that no line is refused; unanswered lines are answered after the next start.
      const batchesStopped = batches.stop();
      await Promise.all([batchesStopped, admission.drain(settings.drainTimeout, error)]);
      // The last responses are complete, but possibly not yet written to the socket.
      await Promise.all(listeners.map((listener) => listener.stop(WRITE_MS)));
      await stop();
    };
    return { serving, url: url!, ollamaUrl, ready, drain };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Listens on all ports that are set, or on none. */
async function listenOn(
  ports: readonly (number | undefined)[],
  listen: (port: number) => Listener,
): Promise<Listener[]> {
  const listeners: Listener[] = [];
  for (const port of ports) {
    if (port === undefined) continue;
    try {
      listeners.push(listen(port));
    } catch (error) {
      await Promise.all(listeners.map((listener) => listener.stop(0)));
      throw Object.assign(error as Error, { port });
    }
  }
  return listeners;
}

/** Creates and logs the response to input that never reaches the app, such as malformed HTTP. */
function refused(error: unknown, { log, metrics }: Generating): Response {
  const id = requestId(undefined);
  const response = errorResponse(error);
  metrics.refused(undefined, response.status, "malformed");
  if (error instanceof RequestFault) {
    log.info({ id, status: error.status, error: error.message }, "refused");
  } else {
    log.error({ id, err: error }, "failed");
  }
  response.headers.set("x-request-id", id);
  return response;
}

function urlOf(host: string, port: number): string {
  return `http://${host.includes(":") ? `[${host}]` : host}:${port}`;
}

function engineOptionsOf(settings: Settings): Partial<EngineOptions> {
  const maxBatch = settings.batching ? settings.maxBatchSize : 1;
  return {
    maxBatch,
    tokenBudget: settings.tokenBudget,
    blocks: settings.blockPoolSize,
    kvBytes: settings.kvMemory,
    snapshotBytes: settings.snapshotMemory,
    // The queue also holds a batch of requests for the next step, and a batch of requests from batch files.
    maxWaiting: 2 * maxBatch + settings.maxQueue,
    maxLength: settings.maxModelLen,
    stepMs: settings.stepTime,
    prefixCaching: settings.prefixCaching,
    warmUp: settings.warmUp,
    dtype: settings.dtype === "auto" ? undefined : settings.dtype,
    keepUnpacked: settings.keepUnpacked,
    debug: settings.logLevel === "debug",
  };
}
