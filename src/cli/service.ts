// mlx-serve service: runs the server as a user service that starts at login, under launchd on macOS and systemd on
// Linux, with the settings given to `install`.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, resolve, sep } from "node:path";
import { parseArgs } from "node:util";
import { commandSettings } from "../config/arguments.ts";
import { type LoadedSettings, loadSettings } from "../config/load.ts";
import { UsageError } from "../config/usage-error.ts";
import { type Environment, expandHome } from "../hub/settings.ts";
import { resolveModel } from "../hub/source.ts";
import { printable } from "../printable.ts";
import { knownServers } from "../serve/server-file.ts";
import { launchd } from "../service/launchd.ts";
import type { ServiceCommand, ServiceManager } from "../service/manager.ts";
import { systemd } from "../service/systemd.ts";
import { ownProgram } from "./server/own-program.ts";
import { readKeys } from "./server/read-keys.ts";
import { health } from "./server/server-client.ts";
import { print } from "./terminal/print.ts";
import { quotedWord } from "./terminal/shell-word.ts";
import { didYouMean } from "./terminal/suggest.ts";

type Context = { manager: ServiceManager; env: Environment };

const actions = new Map(
  Object.entries({ install, uninstall, start, stop, status, logs } satisfies Record<
    string,
    (args: string[], context: Context) => Promise<void>
  >),
);

const managers: Partial<Record<NodeJS.Platform, (env: Environment) => ServiceManager>> = {
  darwin: launchd,
  linux: systemd,
};

export async function service(
  args: string[],
  env: Environment = process.env,
  platform: NodeJS.Platform = process.platform,
): Promise<void> {
  const [name = "", ...rest] = args;
  const action = actions.get(name);
  if (!action) {
    const names = [...actions.keys()];
    throw new UsageError(`service takes one of ${names.join(", ")}${didYouMean(name, names)}`);
  }
  if (rest.length > 0 && action !== install && action !== logs) {
    throw new UsageError(`service ${name} takes no arguments`);
  }
  // With sudo, the service would belong to root, and the user could not change its files.
  if (process.getuid?.() === 0 && env.SUDO_USER) {
    throw new UsageError(`services are per user: run it as ${env.SUDO_USER}, without sudo`);
  }
  const open = managers[platform];
  if (!open) throw new Error(`services are not supported on ${platform}`);
  await action(rest, { manager: open(env), env });
}

async function install(args: string[], { manager, env }: Context): Promise<void> {
  const command = commandOf(loadSettings(args, env), env);
  const text = manager.describe(command);
  // Queries the service manager first, so that nothing is written if it does not respond.
  const { pid } = await manager.state();
  const isNew = !isInstalled(manager) || readFileSync(manager.file, "utf8") !== text;
  if (isNew) write(manager.file, text);
  const hints = await manager.enable();
  const next =
    pid === undefined
      ? "next: `mlx-serve service start`"
      : "it is running; `mlx-serve service stop` and `mlx-serve service start` apply these settings";
  const lines = [
    `${manager.file} ${isNew ? "written" : "unchanged"}`,
    `${manager.name} will start at login: ${command.words.map(quotedWord).join(" ")}`,
    ...hints,
    pid !== undefined && !isNew ? "it is running" : next,
  ];
  print(lines.map(printable).join("\n"));
}

/** Returns the command that starts a server with these settings; throws if such a server could not start. */
function commandOf(loaded: LoadedSettings, env: Environment): ServiceCommand {
  const { settings } = loaded;
  readKeys(settings, env);
  const { path } = resolveModel(settings.model, { env });
  const { flags, variables } = commandSettings(loaded);
  // A relative path becomes absolute, because the service has another working directory.
  const here = resolve(expandHome(settings.model, env));
  const isPath = path === here || path.startsWith(`${here}${sep}`);
  return {
    words: [
      ...ownProgram(env),
      "serve",
      ...flags.map((flag) => (isPath && flag.startsWith("--model=") ? `--model=${here}` : flag)),
    ],
    variables: { ...foldersOf(env), ...variables },
    stopSeconds: Math.ceil(settings.drainTimeout / 1000) + 10,
  };
}

/** Returns the environment variables that contain paths; a service does not inherit them from the shell. */
function foldersOf(env: Environment): Record<string, string> {
  const names = [
    ...["MLX_SERVE_CACHE", "MLX_SERVE_MLXC", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"],
    ...["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"],
  ];
  const set = names.filter((name) => env[name]);
  return Object.fromEntries(set.map((name) => [name, resolve(expandHome(env[name]!, env))]));
}

function write(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  // Only the user may read the file, since it may contain API keys.
  writeFileSync(`${path}.new`, text, { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

async function uninstall(_: string[], { manager }: Context): Promise<void> {
  if (!isInstalled(manager)) return print("the service is not installed");
  await manager.disable();
  rmSync(manager.file);
  await manager.forget();
  print(`the service is stopped, and ${printable(manager.file)} removed`);
}

async function start(_: string[], { manager, env }: Context): Promise<void> {
  needInstalled(manager);
  await manager.start();
  const said = await firstWord(manager, env);
  print(`${said}; \`mlx-serve service status\` and \`mlx-serve service logs\` show more`);
}

const START_MS = 10_000;
const POLL_MS = 100;

/** Waits until the server listens or a timeout is over; throws if the server exits. */
async function firstWord(manager: ServiceManager, env: Environment): Promise<string> {
  const deadlineMs = performance.now() + START_MS;
  for (;;) {
    const { pid, words, hasFailed } = await manager.state();
    if (pid === undefined && hasFailed) {
      throw new Error(`the service failed to start: ${words}; \`mlx-serve service logs\` says why`);
    }
    const server = knownServers(env).find((each) => each.pid === pid);
    if (server) return `the service listens at ${server.url}`;
    if (performance.now() > deadlineMs) return `the service is ${words}, but does not listen yet`;
    await Bun.sleep(POLL_MS);
  }
}

async function stop(_: string[], { manager }: Context): Promise<void> {
  needInstalled(manager);
  await manager.stop();
  print("the service is stopped, until the next login or `mlx-serve service start`");
}

/** Shows the state of the service; sets exit code 1 if it does not run. */
async function status(_: string[], { manager, env }: Context): Promise<void> {
  needInstalled(manager);
  const { pid, words } = await manager.state();
  const entry = knownServers(env).find((each) => each.pid === pid);
  const server = entry && { url: entry.url, key: entry.key, isNamed: false, entry };
  const rows = {
    service: `${manager.name}, ${manager.file}`,
    state: pid === undefined ? words : `${words}, process ${pid}`,
    ...(server && { server: `${server.url}, ${await healthOf(server)}` }),
  };
  const lines = Object.entries(rows).map(([key, value]) => `${key.padEnd(9)}${printable(value)}`);
  print(lines.join("\n"));
  if (pid === undefined) process.exitCode = 1;
}

async function healthOf(server: Parameters<typeof health>[0]): Promise<string> {
  try {
    return (await health(server)).status;
  } catch {
    return "no answer";
  }
}

async function logs(args: string[], { manager, env }: Context): Promise<void> {
  const { values } = parseArgs({
    args,
    options: {
      follow: { type: "boolean", short: "f", default: false },
      lines: { type: "string", default: "100" },
    },
  });
  if (!/^\d{1,9}$/.test(values.lines)) throw new UsageError("--lines: expected a whole number");
  needInstalled(manager);
  const command = manager.logCommand({ lines: Number(values.lines), follow: values.follow });
  const child = Bun.spawn(command, { env, stdio: ["ignore", "inherit", "inherit"] });
  // Ctrl-C reaches this process and the child; this process waits until the child has exited.
  process.on("SIGINT", () => {});
  process.exitCode = await child.exited;
}

function isInstalled(manager: ServiceManager): boolean {
  return existsSync(manager.file);
}

function needInstalled(manager: ServiceManager): void {
  if (isInstalled(manager)) return;
  throw new Error("the service is not installed: `mlx-serve service install [model]` installs it");
}
