// mlx-serve stop: stops a server after it has drained, or unloads one of its models.
import { parseArgs } from "node:util";
import { UsageError } from "../config/usage-error.ts";
import { codeOf } from "../hub/hub-error.ts";
import type { Environment } from "../hub/settings.ts";
import { isRunning } from "../serve/server-file.ts";
import {
  health,
  needServers,
  type Server,
  severalServers,
  unloadModel,
} from "./server/server-client.ts";
import { choose } from "./terminal/choice.ts";
import { tell } from "./terminal/tell.ts";

/** Maximum time to close the engine after all requests have ended. */
const CLOSING_MS = 10_000;

const options = { url: { type: "string" }, "api-key": { type: "string" } } as const;

export async function stop(args: string[], env: Environment = process.env): Promise<void> {
  const { values, positionals } = parseArgs({ args, options, allowPositionals: true });
  const [model, ...more] = positionals;
  if (more.length > 0) throw new UsageError("stop takes one model at most");
  const server = await oneOf(await needServers(values, env));
  if (!server) return console.log("nothing was stopped");
  if (model === undefined) return await stopServer(server);
  await unloadModel(server, model);
  console.log(`${model} is unloaded from ${server.url}`);
}

/** Returns the only server, or the one that the user chooses; undefined if the user cancels. */
async function oneOf(servers: readonly Server[]): Promise<Server | undefined> {
  if (servers.length < 2) return servers[0];
  if (!process.stdin.isTTY || !process.stderr.isTTY) throw severalServers(servers);
  tell(`${servers.length} servers are running. Which one? (arrow keys or a number; Esc cancels)`);
  const lines = servers.map(({ url, entry }) => `${url} (process ${entry!.pid})`);
  const index = await choose(lines, 0);
  return index === undefined ? undefined : servers[index];
}

async function stopServer(server: Server): Promise<void> {
  const { url, entry } = server;
  if (!entry) throw new Error(`${url} was not started here by this user: stop it where it runs`);
  const { pid, drainMs } = entry;
  // Signals only a server that responds, since the PID may have been reused.
  const { status } = await health(server);
  signal(pid);
  console.log(
    status === "draining"
      ? `${url} (process ${pid}) was already stopping: ends immediately`
      : `stopping ${url} (process ${pid}): running requests may take ${drainMs / 1000} s`,
  );
  const deadline = performance.now() + drainMs + CLOSING_MS;
  while (isRunning(pid)) {
    if (performance.now() > deadline) {
      throw new Error(`process ${pid} has not exited in time; another stop ends it immediately`);
    }
    await Bun.sleep(20);
  }
  console.log(`${url} has stopped`);
}

function signal(pid: number): void {
  try {
    process.kill(pid, "SIGTERM");
  } catch (error) {
    throw new Error(`process ${pid} cannot be signalled (${codeOf(error)})`);
  }
}
