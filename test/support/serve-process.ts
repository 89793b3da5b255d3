// `mlx-serve` as a process of its own, in a home of its own with nothing in it but a tiny chat model.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findLibrary } from "../../ffi/native.ts";
import { type ChatModelOptions, writeChatModel } from "./chat-model.ts";

const main = join(import.meta.dir, "../../src/main.ts");

export type Home = {
  env: Record<string, string>;
  /** The folder of the tiny model. */
  model: string;
  remove(): void;
};

export function makeHome(options: ChatModelOptions = {}): Home {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-home-"));
  const model = join(folder, "tiny");
  writeChatModel(model, options);
  const env = {
    PATH: process.env.PATH ?? "",
    HOME: folder,
    MLX_SERVE_CACHE: join(folder, "cache"),
    MLX_SERVE_MLXC: findLibrary(),
    MLX_SERVE_THREADS: "1",
  };
  return { env, model, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

export type Ended = { stdout: string; stderr: string; exitCode: number };

export type Running = {
  pid: number;
  /** Returns when its standard error has this; throws where it ends without. */
  says(pattern: RegExp): Promise<RegExpExecArray>;
  kill(signal: NodeJS.Signals): void;
  ended: Promise<Ended>;
};

/** `launcher` is a command that runs the one after it. */
export function startMlxServe(
  args: string[],
  env: Record<string, string | undefined>,
  input: string | ReadableStream = "",
  launcher: string[] = [],
): Running {
  const child = Bun.spawn([...launcher, process.execPath, main, ...args], {
    env,
    stdin: typeof input === "string" ? new Blob([input]) : input,
    stdout: "pipe",
    stderr: "pipe",
  });
  let [stderr, isOver] = ["", false];
  let more = Promise.withResolvers<void>();
  const reading = (async () => {
    for await (const text of child.stderr.pipeThrough(new TextDecoderStream())) {
      stderr += text;
      more.resolve();
      more = Promise.withResolvers();
    }
    isOver = true;
    more.resolve();
  })();
  const stdout = new Response(child.stdout).text();
  return {
    pid: child.pid,
    async says(pattern) {
      for (;;) {
        const found = pattern.exec(stderr);
        if (found) return found;
        if (isOver) throw new Error(`it never said ${pattern}, but:\n${stderr}`);
        await more.promise;
      }
    },
    kill: (signal) => child.kill(signal),
    ended: reading.then(async () => {
      return { stdout: await stdout, stderr, exitCode: await child.exited };
    }),
  };
}

export function mlxServe(
  args: string[],
  env: Record<string, string | undefined>,
  input?: string | ReadableStream,
): Promise<Ended> {
  return startMlxServe(args, env, input).ended;
}

/** Where it listens, once its model is loaded. */
export async function urlOf(server: Running): Promise<string> {
  const [, url] = await server.says(/(http:\/\/[\d.]+:\d+)/);
  while (!(await fetch(`${url}/health`).catch(() => undefined))?.ok) await Bun.sleep(50);
  return url!;
}
