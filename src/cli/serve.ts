// mlx-serve serve: runs the server until it is stopped.
import { lookup } from "node:dns/promises";
import { readFileSync } from "node:fs";
import { engineSetup } from "../../ffi/native.ts";
import packageJson from "../../package.json" with { type: "json" };
import { loadSettings } from "../config/load.ts";
import type { Settings } from "../config/settings.ts";
import type { EngineReport, Parallel } from "../engine/protocol.ts";
import { applyKeys } from "../http/owner/keys.ts";
import { type RunningServer, startServer } from "../http/server.ts";
import { formatBytes } from "../hub/bytes.ts";
import { codeOf } from "../hub/hub-error.ts";
import { keyFileWarning, newKey, readKeyFile } from "../keys/key-file.ts";
import { isForPeople, type Logger, makeLogger } from "../log.ts";
import { printable } from "../printable.ts";
import { cutOf } from "../serve/context-length.ts";
import type { ServedModel } from "../serve/models.ts";
import {
  forgetServer,
  knownServers,
  rememberServer,
  type ServerEntry,
} from "../serve/server-file.ts";
import { firstModel } from "./models/first-model.ts";
import { modelHere } from "./models/model-here.ts";
import { startRanks } from "./ranks.ts";
import { readKeys } from "./server/read-keys.ts";
import { logActivity, showActivity } from "./terminal/progress.ts";

export async function serve(args: string[]): Promise<void> {
  const { settings, sources } = loadSettings(args);
  const log = makeLogger({ level: settings.logLevel, format: settings.logFormat });
  const { keysPath, keys } = readKeys(settings);
  const warning = keys && keyFileWarning(keysPath);
  if (warning) log.warn(warning);
  // Checks the host name, since Bun reports an unresolvable one as a port in use.
  await lookup(settings.host).catch(() => {
    throw new Error(
      `${settings.host} is not an address of this machine: choose another with --host`,
    );
  });
  const env = environmentOf(settings);
  const model = sources.model === "default" ? await firstModel(env) : settings.model;
  const localKey = newKey();
  const ranks = await startRanks(settings, log);
  const server = await startServer({
    settings,
    model: await modelHere(model),
    chatTemplate: settings.chatTemplate && readFileSync(settings.chatTemplate, "utf8"),
    keys,
    localKey,
    worker: engineSetup(env),
    ranks,
    log,
    onActivity: isForPeople(settings.logFormat) ? showActivity() : logActivity(log),
  }).catch(async (error: unknown) => {
    await ranks?.stop();
    throw bindError(error, settings);
  });
  const url = ownUrl(server.url);
  remember({ url, key: localKey, pid: process.pid, drainMs: settings.drainTimeout }, log);
  catchErrors(server, log);
  stopOnSignals(server, log);
  server.serving.batches.resume();
  process.on("SIGHUP", () => reloadKeys(server, keysPath, log));
  try {
    announce(server, url, await server.ready, await server.serving.engine.inspect());
  } catch (error) {
    forgetServer(process.pid);
    // A load that fails because the server was stopped is not an error.
    if (server.serving.admission.phase === "draining") return;
    await server.drain();
    throw error;
  }
}

/** Returns the URL for local clients: 0.0.0.0 and :: mean all interfaces, and are no address to connect to. */
function ownUrl(url: string): string {
  return url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//[::1]");
}

/** Registers the server for the command line; a failure is only logged, because the server works without it. */
function remember(entry: ServerEntry, log: Logger): void {
  try {
    rememberServer(entry);
  } catch (error) {
    const told = { error: (error as Error).message };
    log.warn(told, "ps, stop and run will not discover this server");
  }
}

/** Passes the backend and thread count to the engine, in environment variables. */
export function environmentOf({ backend: wanted, threads }: Settings): NodeJS.ProcessEnv {
  if (wanted !== undefined) process.env.MLX_SERVE_BACKEND = wanted;
  if (threads !== undefined) process.env.MLX_SERVE_THREADS = String(threads);
  return process.env;
}

/** Logs errors outside of any request. Requests are still answered, so the process continues. */
function catchErrors({ serving }: RunningServer, log: Logger): void {
  const onError = (error: unknown) => {
    serving.uncaughtErrors += 1;
    log.error({ err: error }, "uncaught error");
  };
  process.on("uncaughtException", onError);
  process.on("unhandledRejection", onError);
}

/** Stops the server on signals: the first drains running requests, the second aborts them. */
function stopOnSignals(server: RunningServer, log: Logger): void {
  let stopping = false;
  const stop = async (signal: "SIGTERM" | "SIGINT", code: number) => {
    if (stopping) process.exit(code);
    stopping = true;
    const { admission } = server.serving;
    log.info({ signal, requests: admission.count }, "draining; a second signal ends immediately");
    try {
      await server.drain();
      log.info("stopped");
    } catch (error) {
      log.error({ err: error }, "shutdown failed");
      process.exitCode = 1;
    }
    forgetServer(process.pid);
    process.exit();
  };
  process.on("SIGTERM", () => void stop("SIGTERM", 143));
  process.on("SIGINT", () => void stop("SIGINT", 130));
}

function reloadKeys({ serving }: RunningServer, path: string, log: Logger): void {
  try {
    const keys = readKeyFile(path);
    const warning = keys && keyFileWarning(path);
    if (warning) log.warn(warning);
    applyKeys(serving, keys);
    log.info({ keys: keys?.keys.length ?? 0 }, keys ? "keys reloaded" : "no keys file");
  } catch (error) {
    log.error({ error: (error as Error).message }, "the keys are unchanged");
  }
}

function bindError(error: unknown, { host, port: main }: Settings): unknown {
  const { port = main } = error as { port?: number };
  const flag = port === main ? "--port" : "--ollama-port";
  switch (codeOf(error)) {
    case "EADDRINUSE":
      return new Error(
        `port ${port} on ${host} is taken${takenBy(port)}, or choose another with ${flag}`,
      );
    case "EACCES":
      return new Error(`this user may not bind port ${port}: choose one above 1023 with ${flag}`);
    case "EADDRNOTAVAIL":
    case "ENOTFOUND":
      return new Error(`${host} is not an address of this machine: choose another with --host`);
    default:
      return error;
  }
}

/** Returns a message with the process that uses the port, and how to free it. */
function takenBy(port: number): string {
  const other = knownServers().find(({ url }) => Number(new URL(url).port) === port);
  if (!other) return ": stop the process that uses it";
  return ` by mlx-serve (process ${other.pid}): stop it with \`mlx-serve stop --url ${other.url}\``;
}

const divisions: Record<Parallel, string> = {
  tensor: "each with a slice of every layer (tensor)",
  pipeline: "each with some of the layers (pipeline)",
};

/** Prints a summary of the server, or one log line if logs are JSON. */
function announce(
  { url: bound, ollamaUrl, serving: { settings, ring, ranks, log } }: RunningServer,
  url: string,
  { name, info }: ServedModel,
  { deviceName, backend: kind }: EngineReport,
): void {
  const { weightBytes, kvBytes, blocks, maxLength, dtype, parallel } = info;
  if (!isForPeople(settings.logFormat)) {
    const { ownLength, lengthLimit } = info;
    const lengths = { maxLength, ...(lengthLimit && { ownLength, lengthLimit }) };
    const division = parallel && { parallel };
    const memory = { weightBytes, kvBytes };
    log.info({ url, model: name, backend: kind, ...division, ...memory, ...lengths }, "ready");
    return;
  }
  const cut = cutOf(info);
  const rows = {
    model: `${name}, ${dtype}, context of ${maxLength} tokens`,
    ...(cut !== undefined && { "": cut }),
    device: `${deviceName} (${kind})`,
    ...(parallel && { ranks: `${ranks!.size}, ${divisions[parallel]}` }),
    memory: `weights ${formatBytes(weightBytes)}, KV ${formatBytes(kvBytes)} (${blocks} blocks)`,
    batching: settings.batching ? `up to ${settings.maxBatchSize} at once` : "off",
    keys: ring.open ? "none needed" : "needed",
    ...(ollamaUrl !== undefined && { ollama: ownUrl(ollamaUrl) }),
    address: url === bound ? `${url}/v1` : `${url}/v1, on all addresses of this machine`,
    docs: `${url}/docs`,
  };
  const lines = Object.entries(rows).map(
    ([key, value]) => `  ${key.padEnd(10)}${printable(value)}`,
  );
  const key = ring.open ? "" : ' -H "Authorization: Bearer $KEY"';
  // Writes without console.error, which prints red on a terminal.
  process.stderr.write(`
mlx-serve ${packageJson.version}
${lines.join("\n")}

  curl ${url}/v1/chat/completions${key} -H "Content-Type: application/json" \\
    -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64}'

`);
}
