// Measures how one key's long prompts delay another key: the latency of 4-token prompts on an idle server, and during
// the prefill of 3,000 tokens. `npm run -s bench:fairness [-- <rounds>]`
//
// Fails if the slowest takes longer than twice the idle latency plus one step.
import { defaultModelPath, engineSetup } from "../../ffi/native.ts";
import { loadSettings } from "../../src/config/load.ts";
import type { StepReport } from "../../src/engine/protocol.ts";
import { startServer } from "../../src/http/server.ts";
import { hashOf } from "../../src/keys/key-file.ts";
import { makeLogger } from "../../src/log.ts";

const [rounds = 3] = process.argv.slice(2).map(Number);
const LONG = 3000;
const tiers = { low: "LOW", normal: "NORMAL", other: "NORMAL" } as const;
type Key = keyof typeof tiers;

const steps: StepReport[] = [];
const log = makeLogger({ level: "error", format: "json" });
log.debug = ((report: StepReport) => steps.push(report)) as typeof log.debug;
const server = await startServer({
  settings: loadSettings(["--port", "0"], {}).settings,
  model: { kind: "gguf", path: defaultModelPath(), name: "default" },
  keys: {
    keys: Object.entries(tiers).map(([name, tier]) => {
      const sha256 = hashOf(name).toString("hex");
      return { name, sha256, tier, limits: {}, created: new Date().toISOString() };
    }),
  },
  localKey: "local",
  worker: engineSetup(),
  log,
});
await server.ready;

let prompts = 0;

/** TTFT of an uncached prompt, in milliseconds. */
async function ask(key: Key, length: number, more: object = {}): Promise<number> {
  const first = 100 + prompts++;
  const prompt = Array.from({ length }, (_, i) => first + ((i * 7919) % 40_000));
  const start = performance.now();
  const response = await fetch(`${server.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
    body: JSON.stringify({ prompt, max_tokens: 1, temperature: 0, ...more }),
  });
  await response.arrayBuffer();
  if (!response.ok) throw new Error(`status ${response.status}`);
  return performance.now() - start;
}

const median = (times: number[]) => times.toSorted((a, b) => a - b)[times.length >> 1]!;

async function idleMs(): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < 11; i++) times.push(await ask("normal", 4));
  return median(times);
}

/** Latencies during the other key's prefill, and the longest step meanwhile. */
async function beside(key: Key, more: object): Promise<{ times: number[]; stepMs: number }> {
  let isOver = false;
  const long = ask(key, LONG, more).finally(() => {
    isOver = true;
  });
  while (!steps.at(-1)?.prefillTokens || steps.at(-1)!.running === 0) await Bun.sleep(1);
  steps.length = 0;
  const times: number[] = [];
  while (!isOver) {
    times.push(await ask("normal", 4));
    // Arrives at a random time within a step.
    await Bun.sleep(50 * Math.random());
  }
  await long;
  return { times: times.slice(0, -1), stepMs: Math.max(...steps.map(({ ms }) => ms)) };
}

const scored = { echo: true, logprobs: 5 };
let isFair = true;
await ask("other", LONG);
for (let round = 0; round < rounds; round++) {
  for (const [key, more] of [
    ["low", {}],
    ["low", scored],
    ["other", {}],
    ["other", scored],
  ] as const) {
    const idle = await idleMs();
    const { times, stepMs } = await beside(key, more);
    const slowest = Math.max(...times);
    const bound = 2 * idle + stepMs;
    isFair &&= slowest <= bound;
    console.log(
      `beside ${tiers[key]}${more === scored ? ", scored" : ""}: idle ${idle.toFixed(0)} ms, ` +
        `${times.length} prompts ${median(times).toFixed(0)} ms, slowest ${slowest.toFixed(0)} ms ` +
        `of ${bound.toFixed(0)} ms allowed (longest step ${stepMs.toFixed(0)} ms)`,
    );
  }
}
await server.drain();
process.exitCode = isFair ? 0 : 1;
