// A server on a free port with a tiny model, and what tests ask of it.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findLibrary } from "../../ffi/native.ts";
import { startRanks } from "../../src/cli/ranks.ts";
import { loadSettings } from "../../src/config/load.ts";
import type { GrammarLimits } from "../../src/grammar/grammars.ts";
import { type RunningServer, startServer } from "../../src/http/server.ts";
import type { KeyFile } from "../../src/keys/key-file.ts";
import { makeLogger } from "../../src/log.ts";
import { type ChatModelOptions, writeChatModel } from "./chat-model.ts";

export type TestServer = RunningServer & {
  port: number;
  /** POSTs JSON, with the server's own key unless headers say otherwise. */
  post(path: string, body: unknown, init?: RequestInit): Promise<Response>;
  get(path: string, init?: RequestInit): Promise<Response>;
  /** The value of a metric, summed over its labels. */
  metric(name: string): Promise<number>;
  /** The prompts of the finished requests as text, with --log-prompts. */
  prompts: string[];
  /** Waits until nothing is under way any more; throws where something stays. */
  settled(): Promise<void>;
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
};

export type TestServerOptions = ChatModelOptions & {
  /** As on the command line. */
  args?: string[];
  keys?: KeyFile;
  /** Instead of the tiny model: a folder or GGUF file, or what writes a folder. */
  model?: string | ((folder: string) => void);
  /** More variables of its environment. */
  env?: Record<string, string>;
  idleSeconds?: number;
  heartbeatSeconds?: number;
  grammarLimits?: Partial<GrammarLimits>;
};

const main = join(import.meta.dir, "../../src/main.ts");

const LOCAL_KEY = "sk-mlx-local-test-key";

export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const folder = mkdtempSync(join(tmpdir(), "mlx-serve-http-"));
  const { model = (path) => writeChatModel(path, options) } = options;
  const path = typeof model === "string" ? model : join(folder, "tiny");
  if (typeof model !== "string") model(path);
  const preset = ["--port", "0", "--log-level", "error", "--data-dir", join(folder, "data")];
  const args = [...preset, ...(options.args ?? [])];
  const { settings } = loadSettings(args, { HOME: folder });
  const log = makeLogger({ level: "error", format: "json" });
  const ranks = await startRanks(settings, log, [process.execPath, main]);
  const running = await startServer({
    settings,
    model: { kind: path.endsWith(".gguf") ? "gguf" : "folder", path, name: "tiny" },
    keys: options.keys,
    localKey: LOCAL_KEY,
    // Not the models that whoever runs the tests has.
    env: {
      HF_HUB_CACHE: join(folder, "hub"),
      MLX_SERVE_CACHE: join(folder, "cache"),
      ...options.env,
    },
    worker: { library: findLibrary(), device: "cpu", trace: false },
    ranks,
    log,
    grammarLimits: options.grammarLimits,
    ...(options.idleSeconds && { idleSeconds: options.idleSeconds }),
    ...(options.heartbeatSeconds && { heartbeatSeconds: options.heartbeatSeconds }),
  });
  await running.ready;
  const prompts: string[] = [];
  log.info = (({ prompt = [] }: { prompt?: string[] }) =>
    prompts.push(...prompt)) as typeof log.info;
  const { url } = running;
  const keyed = (init: RequestInit = {}): RequestInit => {
    return { ...init, headers: { authorization: `Bearer ${LOCAL_KEY}`, ...init.headers } };
  };
  const get = (to: string, init?: RequestInit) => fetch(`${url}${to}`, keyed(init));
  const post = (to: string, body: unknown, init: RequestInit = {}) =>
    get(to, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      ...init,
      headers: { "content-type": "application/json", ...init.headers },
    });
  const metric = async (name: string) => {
    const lines = (await (await get("/metrics")).text()).split("\n");
    const own = lines.filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
    return own.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  };
  const stop = async () => {
    await running.drain();
    rmSync(folder, { recursive: true, force: true });
  };
  return {
    ...running,
    port: Number(new URL(url).port),
    get,
    post,
    metric,
    prompts,
    async settled() {
      const deadline = performance.now() + 10_000;
      for (;;) {
        const left = await busyGauges(get);
        if (Object.keys(left).length === 0) return;
        if (performance.now() > deadline) throw new Error(`still there: ${JSON.stringify(left)}`);
        await Bun.sleep(20);
      }
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

/** Gauges that are to be 0 when nothing is under way, and are not. */
async function busyGauges(
  get: (path: string) => Promise<Response>,
): Promise<Record<string, number>> {
  const idle = [
    /^mlx_serve_requests_in_progress\{/,
    /^mlx_serve_http_requests_admitted /,
    /^mlx_serve_requests_running\{/,
    /^mlx_serve_requests_waiting\{/,
    /^mlx_serve_kv_blocks\{.*state="held"/,
  ];
  const lines = (await (await get("/metrics")).text()).split("\n");
  const entries = lines
    .filter((line) => idle.some((pattern) => pattern.test(line)))
    .map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.split(" ").at(-1))] as const);
  if (entries.length < 4) throw new Error("gauges are missing");
  return Object.fromEntries(entries.filter(([, value]) => value !== 0));
}

/** The JSON events of a stream of server-sent events; "[DONE]" as it is. */
export async function events(response: Response): Promise<unknown[]> {
  const text = await response.text();
  return text
    .split("\n\n")
    .filter((event) => event.startsWith("data: "))
    .map((event) => (event === "data: [DONE]" ? "[DONE]" : JSON.parse(event.slice(6))));
}
