// Measures the overhead of HTTP: 32 streams of the default model through the engine alone, and over sockets to another
// process, interleaved. `npm run -s bench:http [-- <streams> <tokens> <rounds>]`
import { join } from "node:path";
import { defaultModelPath, engineSetup } from "../../ffi/native.ts";
import { loadSettings } from "../../src/config/load.ts";
import { startServer } from "../../src/http/server.ts";
import { makeLogger } from "../../src/log.ts";

const [streams = 32, tokens = 64, rounds = 3] = process.argv.slice(2).map(Number);
const prompts = Array.from({ length: streams }, (_, i) => `Story number ${i}: Once upon a time`);

const server = await startServer({
  settings: loadSettings(["--port", "0", "--max-batch-size", String(streams)], {}).settings,
  model: { kind: "gguf", path: defaultModelPath(), name: "default" },
  keys: undefined,
  localKey: "local",
  worker: engineSetup(),
  log: makeLogger({ level: "error", format: "json" }),
});
const { name, text } = await server.ready;

type Counted = { counts: number[]; ms: number };

/** Tokens per second without text, HTTP, or another process. */
async function engineAlone(): Promise<number> {
  const start = performance.now();
  const counts = await Promise.all(
    prompts.map(async (prompt) => {
      const events = server.serving.engine.submit(name, {
        prompt: Uint32Array.from(text.tokenizer.encode(prompt, { controlTokens: "text" })),
        maxTokens: tokens,
        sampling: { temperature: 0 },
      });
      return (await Array.fromAsync(events)).length;
    }),
  );
  return rate(counts, performance.now() - start);
}

/** The same with a client in another process. */
async function overHttp(): Promise<number> {
  const client = Bun.spawn([process.execPath, join(import.meta.dir, "http-client.ts")], {
    stdin: new Blob([JSON.stringify({ url: server.url, prompts, tokens })]),
    stdout: "pipe",
    stderr: "inherit",
  });
  const { counts, ms }: Counted = JSON.parse(await new Response(client.stdout).text());
  return rate(counts, ms);
}

function rate(counts: readonly number[], ms: number): number {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total !== streams * tokens) throw new Error(`${total} tokens of ${streams * tokens}`);
  return total / (ms / 1000);
}

const best = { engine: 0, http: 0 };
await engineAlone();
for (let round = 0; round < rounds; round++) {
  const [engine, http] = [await engineAlone(), await overHttp()];
  console.log(`round ${round + 1}: engine ${engine.toFixed(1)}, HTTP ${http.toFixed(1)} tokens/s`);
  best.engine = Math.max(best.engine, engine);
  best.http = Math.max(best.http, http);
}
const overhead = 100 * (best.engine / best.http - 1);
console.log(
  `${streams} streams of ${tokens} tokens, best of ${rounds}: engine ${best.engine.toFixed(1)}, ` +
    `HTTP ${best.http.toFixed(1)} tokens/s: HTTP adds ${overhead.toFixed(1)}%`,
);
await server.drain();
