// mlx-serve serve: the server, until it is told to stop.
import { readFileSync } from "node:fs";
import { backend, findLibrary } from "../../ffi/native.ts";
import packageJson from "../../package.json" with { type: "json" };
import { loadSettings } from "../config/load.ts";
import type { Settings } from "../config/settings.ts";
import { UsageError } from "../config/usage-error.ts";
import type { EngineReport } from "../engine/protocol.ts";
import { bindProblem } from "../http/guard.ts";
import { type RunningServer, startServer } from "../http/server.ts";
import { formatBytes } from "../hub/bytes.ts";
import { codeOf } from "../hub/hub-error.ts";
import { resolveModel } from "../hub/source.ts";
import { defaultKeyFile, keyFileWarning, newKey, readKeyFile } from "../keys/key-file.ts";
import { type Logger, makeLogger } from "../log.ts";
import type { ServedModel } from "../serve/models.ts";
import { forgetServer, rememberServer } from "../serve/server-file.ts";
import { showProgress } from "./progress.ts";

export async function serve(args: string[]): Promise<void> {
  const { settings } = loadSettings(args);
  const log = makeLogger({ level: settings.logLevel, format: settings.logFormat });
  const keysPath = settings.keysFile ?? defaultKeyFile();
  const keys = readKeyFile(keysPath);
  if (settings.keysFile !== undefined && !keys)
    throw new UsageError(`${keysPath}: there is no file`);
  const warning = keys && keyFileWarning(keysPath);
  if (warning) log.warn(warning);
  const problem = bindProblem({
    ...settings,
    keysSet: keys !== undefined || settings.apiKey.length > 0,
  });
  if (problem) throw new UsageError(problem);
  const env = environmentOf(settings);
  const localKey = newKey();
  const server = await startServer({
    settings,
    model: resolveModel(settings.model),
    chatTemplate: settings.chatTemplate && readFileSync(settings.chatTemplate, "utf8"),
    keys,
    localKey,
    worker: {
      library: findLibrary(env),
      device: backend(env) === "cpu" ? "cpu" : "gpu",
      trace: env.MLX_SERVE_FFI_TRACE === "1",
    },
    log,
    onProgress: showProgress,
  }).catch((error: unknown) => {
    throw bindError(error, settings);
  });
  rememberServer({ url: server.url, key: localKey, pid: process.pid });
  stopOnSignals(server, log);
  process.on("SIGHUP", () => reloadKeys(server, keysPath, log));
  try {
    announce(server, await server.ready, await server.serving.engine.inspect());
  } catch (error) {
    forgetServer(server.url);
    // Told to stop while it was loading: that is no failure.
    if (server.serving.admission.phase === "draining") return;
    await server.drain();
    throw error;
  }
}

/** What flags say of the machine, where the engine looks for it. */
function environmentOf({ backend: wanted, threads }: Settings): NodeJS.ProcessEnv {
  if (wanted !== undefined) process.env.MLX_SERVE_BACKEND = wanted;
  if (threads !== undefined) process.env.MLX_SERVE_THREADS = String(threads);
  return process.env;
}

/** The first lets what is under way finish, the second does not. */
function stopOnSignals(server: RunningServer, log: Logger): void {
  let stopping = false;
  const stop = async (signal: "SIGTERM" | "SIGINT", code: number) => {
    if (stopping) process.exit(code);
    stopping = true;
    const { admission } = server.serving;
    log.info({ signal, requests: admission.count }, "draining; a second signal ends at once");
    await server.drain();
    forgetServer(server.url);
    log.info("stopped");
    process.exit(0);
  };
  process.on("SIGTERM", () => void stop("SIGTERM", 143));
  process.on("SIGINT", () => void stop("SIGINT", 130));
}

function reloadKeys({ serving: { ring } }: RunningServer, path: string, log: Logger): void {
  try {
    const keys = readKeyFile(path);
    if (keys) ring.reload(keys);
    log.info({ keys: keys?.keys.length ?? 0 }, keys ? "keys reloaded" : "there is no keys file");
  } catch (error) {
    log.error({ err: error }, "the keys stay as they were");
  }
}

function bindError(error: unknown, { host, port }: Settings): unknown {
  switch (codeOf(error)) {
    case "EADDRINUSE":
      return new Error(
        `port ${port} on ${host} is taken: stop who has it, or choose another by --port`,
      );
    case "EACCES":
      return new Error(
        `port ${port} may not be used by this user: choose one above 1023 by --port`,
      );
    case "EADDRNOTAVAIL":
    case "ENOTFOUND":
      return new Error(`${host} is no address of this machine: choose another by --host`);
    default:
      return error;
  }
}

/** To a person; a machine gets a line of the log. */
function announce(
  { url, serving: { settings, ring, log } }: RunningServer,
  { name, info }: ServedModel,
  { device, backend: kind }: EngineReport,
): void {
  const isPretty =
    settings.logFormat === "pretty" || (settings.logFormat === "auto" && process.stderr.isTTY);
  const { weightBytes, kvBytes, blocks, maxLength, dtype } = info;
  log.info({ url, model: name, backend: kind, weightBytes, kvBytes, maxLength }, "ready");
  if (!isPretty) return;
  const rows = {
    model: `${name}, ${dtype}, context of ${maxLength} tokens`,
    device: `${device.device_name ?? device.architecture ?? "unknown"} (${kind})`,
    memory: `weights ${formatBytes(weightBytes)}, KV ${formatBytes(kvBytes)} (${blocks} blocks)`,
    batching: settings.batching ? `up to ${settings.maxBatchSize} at once` : "off",
    keys: ring.open ? "none needed" : "needed",
    address: `${url}/v1  (documentation: ${url}/docs)`,
  };
  const lines = Object.entries(rows).map(([key, value]) => `  ${key.padEnd(10)}${value}`);
  const key = ring.open ? "" : ' -H "Authorization: Bearer $KEY"';
  console.error(`
mlx-serve ${packageJson.version}
${lines.join("\n")}

  curl ${url}/v1/chat/completions${key} -H "Content-Type: application/json" \\
    -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
`);
}
