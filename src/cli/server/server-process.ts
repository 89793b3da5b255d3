// Starts a server in the background, for verbs that need one: a separate process, with settings from the environment
// and the configuration file, that runs until `mlx-serve stop`.
import { mkdirSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { cacheDirectory } from "../../../ffi/native.ts";
import type { Environment } from "../../hub/settings.ts";
import { knownServers } from "../../serve/server-file.ts";
import { ownProgram } from "./own-program.ts";
import { health, type Server } from "./server-client.ts";

const POLL_MS = 50;

/** Starts a server in the background; resolves once its model is loaded. */
export async function startBackgroundServer(
  model: string | undefined,
  env: Environment,
): Promise<Server> {
  const folder = cacheDirectory(env);
  mkdirSync(folder, { recursive: true });
  const log = join(folder, "background-server.log");
  const file = openSync(log, "w", 0o600);
  const args = [
    "serve",
    "--log-format",
    "json",
    ...(model === undefined ? [] : ["--model", model]),
  ];
  const child = Bun.spawn([...ownProgram(env), ...args], {
    env,
    stdio: ["ignore", file, file],
    // Detaches the server, so that Ctrl-C in an agent does not reach it.
    detached: true,
  });
  child.unref();
  process.stderr.write(`starting a server (process ${child.pid}); its log is ${log}\n`);
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the server failed to start: ${lastLine(log)}`);
    const entry = knownServers(env).find(({ pid }) => pid === child.pid);
    const server = entry && { url: entry.url, key: entry.key, isNamed: false, entry };
    if (server && (await health(server)).status === "ok") {
      process.stderr.write(`${server.url} is ready; \`mlx-serve stop\` stops it\n`);
      return server;
    }
    await Bun.sleep(POLL_MS);
  }
}

function lastLine(log: string): string {
  const line = readFileSync(log, "utf8").trim().split("\n").at(-1) ?? "";
  return line.replace(/^mlx-serve: /, "");
}
