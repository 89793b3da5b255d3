// Measures the engine inside a server, from its clients' side. A separate file, so that other benchmarks need no
// packages of the server.
import { basename, join, resolve } from "node:path";
import { engineSetup } from "../../../ffi/native.ts";
import { loadSettings } from "../../../src/config/load.ts";
import { startServer } from "../../../src/http/server.ts";
import { makeLogger } from "../../../src/log.ts";
import { startChild } from "./child.ts";
import {
  type Answer,
  arrivalsOf,
  type Own,
  type OwnOptions,
  randomPrompts,
  type System,
} from "./systems.ts";

export type Served = Own & { url: string };

export type HttpTask = { url: string; prompts: number[][]; new: number };

/** Several client processes, since one would be slower than the server. */
const CLIENTS = 4;

export async function startServed(folder: string, options: OwnOptions): Promise<Served> {
  const { maxBatch, tokenBudget, keepUnpacked } = options;
  const args = ["--port", "0", "--max-batch-size", String(maxBatch)];
  if (tokenBudget) args.push("--token-budget", String(tokenBudget));
  if (keepUnpacked !== undefined) {
    args.push(keepUnpacked ? "--keep-unpacked" : "--no-keep-unpacked");
  }
  const server = await startServer({
    settings: loadSettings(args, {}).settings,
    model: { kind: "folder", path: resolve(folder), name: basename(resolve(folder)) },
    keys: undefined,
    localKey: "local",
    worker: engineSetup(),
    log: makeLogger({ level: "error", format: "json" }),
  });
  const { info } = await server.ready;
  const { engine } = server.serving;
  return { engine, info, url: server.url, stop: () => server.drain() };
}

export async function httpSystem({ info, url }: Served): Promise<System> {
  const program = [process.execPath, join(import.meta.dir, "http-client.ts")];
  const clients = await Promise.all(Array.from({ length: CLIENTS }, () => startChild(program)));
  return {
    name: "mlx-serve, HTTP",
    async measure({ requests, prompt, new: maxTokens }) {
      const prompts = randomPrompts(requests, prompt, info.vocabulary);
      const answers = await Promise.all(
        clients.map((client, i) => {
          const own = prompts.filter((_, j) => j % clients.length === i);
          const numbers = own.map((each) => [...each]);
          return client.ask<Answer>({ url, prompts: numbers, new: maxTokens });
        }),
      );
      return answers.flatMap(arrivalsOf);
    },
    async stop() {
      await Promise.all(clients.map((client) => client.stop()));
    },
  };
}
