// The server: an engine, its models and a socket, started together and ended in order. First nobody is let
// in any more, then those who are in finish, then the socket closes, then the engine lets go of MLX.
import type { Settings } from "../config/settings.ts";
import { EngineClient } from "../engine/client.ts";
import type { EngineOptions, WorkerSetup } from "../engine/protocol.ts";
import type { ModelSource } from "../hub/source.ts";
import type { KeyFile } from "../keys/key-file.ts";
import { KeyRing } from "../keys/key-ring.ts";
import type { Logger } from "../log.ts";
import { Admission } from "../serve/admission.ts";
import { type ServedModel, ServedModels } from "../serve/models.ts";
import { makeApp } from "./app.ts";
import { unavailable } from "./errors.ts";
import { Metrics } from "./metrics.ts";
import type { Serving } from "./serving.ts";

export type ServerOptions = {
  settings: Settings;
  model: ModelSource;
  chatTemplate?: string | undefined;
  keys: KeyFile | undefined;
  /** The key of the server's own command line. */
  localKey: string;
  worker: WorkerSetup;
  log: Logger;
  onProgress?: (model: string, loadedBytes: number, totalBytes: number) => void;
};

export type RunningServer = {
  serving: Serving;
  url: string;
  /** The model given at start, once it is loaded. */
  ready: Promise<ServedModel>;
  /** Finishes what is under way, if it can be done in time, and ends. */
  drain(): Promise<void>;
};

/** Seconds: of a request that does not come, or of an answer that nobody takes. */
const IDLE_SECONDS = 30;

/** Throws where the address is taken, or MLX cannot be opened. */
export async function startServer(options: ServerOptions): Promise<RunningServer> {
  const { settings, model, chatTemplate, log, worker } = options;
  const engineOptions = engineOptionsOf(settings);
  const admission = new Admission(engineOptions.maxBatch! + settings.maxQueue);
  const engine = await EngineClient.start(worker, {
    ...(options.onProgress && { onProgress: options.onProgress }),
    onStep(report) {
      metrics.step(report);
      if (report.error) log.error(report, "step failed");
      else log.debug(report, "step");
    },
    onUnloaded(name) {
      models.forget(name);
      log.info({ model: name }, "unloaded");
    },
    onFailure: (error) => log.error({ err: error }, "the engine has ended; it is started again"),
  });
  const models = new ServedModels(engine, {
    main: model,
    names: settings.servedModelName,
    maxModels: settings.maxModels,
    chatTemplate,
    engineOptions,
  });
  const metrics = new Metrics(models, admission);
  const ring = new KeyRing({
    plain: settings.apiKey,
    file: options.keys,
    local: options.localKey,
  });
  const serving: Serving = { engine, models, admission, metrics, ring, settings, log };
  const app = makeApp(serving);
  try {
    const server = Bun.serve({
      hostname: settings.host,
      port: settings.port,
      idleTimeout: IDLE_SECONDS,
      // Bodies are measured while they are read, and refused with words of ours.
      maxRequestBodySize: Number.MAX_SAFE_INTEGER,
      fetch: (request, own) => app.fetch(request, { server: own }),
    });
    const ready = models.start().then((served) => {
      if (admission.phase === "loading") admission.phase = "ready";
      return served;
    });
    const drain = async () => {
      const error = unavailable(1, "The server is shutting down.", "draining");
      await admission.drain(settings.drainTimeout, error);
      await server.stop(true);
      await engine.stop();
    };
    return { serving, url: server.url.origin, ready, drain };
  } catch (error) {
    await engine.stop();
    throw error;
  }
}

function engineOptionsOf(settings: Settings): Partial<EngineOptions> {
  return {
    maxBatch: settings.batching ? settings.maxBatchSize : 1,
    tokenBudget: settings.tokenBudget,
    blocks: settings.blockPoolSize,
    kvBytes: settings.kvMemory,
    maxWaiting: settings.maxQueue,
    maxLength: settings.maxModelLen || undefined,
    prefixCaching: settings.prefixCaching,
    dtype: settings.dtype === "auto" ? undefined : settings.dtype,
    idleMs: settings.idleUnload ?? Number.POSITIVE_INFINITY,
    debug: settings.logLevel === "debug",
  };
}
