// The compared servers: how to install and start each, and its name.
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { backend, cacheDirectory, defaultModelPath } from "../../../ffi/native.ts";
import packageJson from "../../../package.json" with { type: "json" };
import { blasShim, mlxLmPython, mlxLmVersion, mlxVersion } from "./mlx-lm.ts";

export type System = {
  name: string;
  version: string;
  /** What it computes with. */
  weights: string;
  url: string;
  model: string;
  rssBytes(): number;
  stop(): Promise<void>;
};

/** Options shared by all systems. */
export type Limits = { threads: number; batch: number };

const root = join(import.meta.dir, "..", "..", "..");
const isCpu = backend() === "cpu";
/** The versions of node-llama-cpp and of the llama.cpp inside. */
const [llamaVersion, llamaRelease] = ["3.22.1", "v0.5.0"];

export function startOurs({ threads, batch }: Limits): Promise<System> {
  const port = freePort();
  const flags = { port, threads, "max-batch-size": batch, "log-level": "error" };
  return start(
    [
      process.execPath,
      join(root, "src", "main.ts"),
      "serve",
      ...Object.entries(flags).flatMap(([flag, value]) => [`--${flag}`, String(value)]),
    ],
    port,
    {
      name: "mlx-serve",
      version: packageJson.version,
      weights: "Q4_1",
      model: "default",
    },
    // Ignores the user's settings and keys.
    { XDG_CONFIG_HOME: join(cacheDirectory(), "bench", "no-config") },
  );
}

export function startMlxLm({ threads, batch }: Limits): Promise<System> {
  const python = mlxLmPython();
  const port = freePort();
  return start(
    [
      ...[python, "-m", "mlx_lm.server"],
      ...["--model", mlxLmFolder(python)],
      ...["--port", String(port)],
      ...["--decode-concurrency", String(batch)],
      ...["--log-level", "ERROR"],
    ],
    port,
    {
      name: "mlx-lm",
      version: `${mlxLmVersion} (mlx ${mlxVersion})`,
      weights: `the same in float32${isCpu ? ", with OpenBLAS as mlx-serve has it" : ""}`,
      model: "default_model",
    },
    {
      ...(isCpu && process.platform === "linux" && { LD_PRELOAD: blasShim() }),
      OPENBLAS_NUM_THREADS: String(threads),
    },
  );
}

export function startLlamaCpp({ threads, batch }: Limits): Promise<System> {
  const folder = join(cacheDirectory(), `node-llama-cpp-${llamaVersion}`);
  whole(folder, (temporary) => {
    mkdirSync(temporary, { recursive: true });
    writeFileSync(join(temporary, "package.json"), "{}");
    const names = ["node-llama-cpp", `@node-llama-cpp/${llamaBinary()}`];
    const packages = names.map((name) => `${name}@${llamaVersion}`);
    // Skips its install scripts, which would compile, and binaries for other machines.
    const flags = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--silent"];
    run("npm", "install", "--prefix", temporary, ...flags, ...packages);
  });
  const port = freePort();
  const script = join(import.meta.dir, "llama-server.mjs");
  const numbers = [port, threads, batch, isCpu ? 0 : 1].map(String);
  return start(["node", script, folder, defaultModelPath(), ...numbers], port, {
    name: "llama.cpp",
    version: `${llamaRelease} (node-llama-cpp ${llamaVersion})`,
    weights: "Q4_1, as it is",
    model: "default",
  });
}

function llamaBinary(): string {
  if (process.platform === "darwin") return "mac-arm64-metal";
  return `linux-${process.arch}${backend() === "cuda" ? "-cuda" : ""}`;
}

/** The default model as a folder, the format of mlx-lm. */
function mlxLmFolder(python: string): string {
  const folder = join(cacheDirectory(), "bench", "SmolLM2-135M-Instruct-float32");
  const script = join(import.meta.dir, "mlx-lm-folder.py");
  whole(folder, (temporary) => run(python, script, defaultModelPath(), temporary));
  return folder;
}

/** Creates a folder once, under a temporary name until complete. */
function whole(folder: string, make: (temporary: string) => void): void {
  if (existsSync(folder)) return;
  const temporary = `${folder}.${process.pid}`;
  rmSync(temporary, { recursive: true, force: true });
  make(temporary);
  renameSync(temporary, folder);
}

async function start(
  command: string[],
  port: number,
  about: Pick<System, "name" | "version" | "weights" | "model">,
  env: Record<string, string> = {},
): Promise<System> {
  const log = join(cacheDirectory(), "bench", `${about.name}.log`);
  mkdirSync(dirname(log), { recursive: true });
  const child = Bun.spawn(command, {
    env: { ...process.env, ...env },
    stdio: ["ignore", "ignore", Bun.file(log)],
  });
  const url = `http://127.0.0.1:${port}`;
  while (!(await isReady(url))) {
    if (child.exitCode !== null) throw new Error(`${about.name} could not be started: see ${log}`);
    await Bun.sleep(200);
  }
  return {
    ...about,
    url,
    rssBytes() {
      const { stdout } = Bun.spawnSync(["ps", "-o", "rss=", "-p", String(child.pid)]);
      return Number(stdout.toString()) * 1024;
    },
    async stop() {
      child.kill();
      await child.exited;
    },
  };
}

async function isReady(url: string): Promise<boolean> {
  return await fetch(`${url}/health`).then(
    ({ ok }) => ok,
    () => false,
  );
}

function freePort(): number {
  const server = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
  const { port } = server;
  void server.stop(true);
  return port!;
}

function run(...command: string[]): void {
  const { exitCode } = Bun.spawnSync(command, { stdio: ["ignore", 2, 2] });
  if (exitCode !== 0) throw new Error(`${command[0]} failed`);
}
