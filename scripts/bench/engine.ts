// Measures the gain of batching: tokens/s of the default model, or one in a folder, at 1, 5, 8, 16 and 32 concurrent
// requests, interleaved with mlx-lm's batch_generate with the same weights, prompts and BLAS:
//
//   npm run -s bench:engine [-- --json] [-- --requests 1,8] [-- --tokens 64] [-- --no-peer] [-- --model <folder>]
//
// A model without a chat template gets prompts of --prompt tokens (40 by default). mlx-lm is installed from PyPI into
// the cache on first use.
import { join } from "node:path";
import { defaultModelPath, engineSetup } from "../../ffi/native.ts";
import { EngineClient } from "../../src/engine/client.ts";
import { linesOf } from "../../src/lines.ts";
import { openTextModel } from "../../src/text/text-model.ts";
import { readFlags } from "../flags.ts";
import { blasShim, mlxLmPython } from "./compare/mlx-lm.ts";

const {
  json,
  tokens: maxTokens,
  rounds,
  model,
  prompt,
  ...given
} = readFlags({
  json: false,
  requests: "1,5,8,16,32",
  tokens: 64,
  rounds: 2,
  peer: true,
  model: defaultModelPath(),
  prompt: 40,
});
const counts = given.requests.split(",").map(Number);

type Result = {
  requests: number;
  tokensPerSecond: number;
  speedup: number;
  peer: number | undefined;
};

const engine = await EngineClient.start({ ...engineSetup(), device: "cpu" });
await engine.load("default", model, { maxBatch: 32 });
const peer = given.peer ? await startPeer() : undefined;
const prompts = makePrompts(Math.max(...counts));

await measure(prompts.slice(0, 2), "warm-up");
const best = new Map<number, { ours: number; peer: number | undefined }>();
for (let round = 0; round < rounds; round++) {
  for (const count of counts) {
    const ours = await measure(prompts.slice(0, count), `round ${round}`);
    const theirs = await peer?.measure(prompts.slice(0, count));
    const before = best.get(count) ?? { ours: 0, peer: undefined };
    best.set(count, {
      ours: Math.max(before.ours, ours),
      peer: theirs === undefined ? undefined : Math.max(before.peer ?? 0, theirs),
    });
    if (!json) console.error(`round ${round + 1}, ${count} requests: ${ours.toFixed(1)}`);
  }
}
await peer?.stop();
await engine.stop();

const single = best.get(counts[0]!)!.ours;
const results = Array.from(best, ([requests, { ours, peer }]): Result => {
  return { requests, tokensPerSecond: round(ours), speedup: round(ours / single), peer };
});
if (json) console.log(JSON.stringify(results));
else console.table(results);

function round(value: number): number {
  return Number(value.toPrecision(4));
}

/** Chats of equal length with different beginnings, so that requests share no blocks. */
function makePrompts(count: number): number[][] {
  const { chat } = openTextModel(model);
  if (!chat) {
    return Array.from({ length: count }, (_, i) => {
      return Array.from({ length: prompt }, (_, k) => ((i + 1) * (k + 7) * 31) % 1000);
    });
  }
  return Array.from({ length: count }, (_, i) => {
    const content = `${i + 100}: write a long story about a dragon who counts to ${i + 100}.`;
    return chat({ messages: [{ role: "user", content }], addGenerationPrompt: true }).ids;
  });
}

/** Runs all concurrently, timed from the first request to the last token. */
async function measure(prompts: readonly number[][], salt: string): Promise<number> {
  const start = performance.now();
  const generated = await Promise.all(
    prompts.map(async (prompt) => {
      let tokens = 0;
      const request = {
        prompt: Uint32Array.from(prompt),
        maxTokens,
        salt,
        sampling: { temperature: 0 },
      };
      for await (const { token } of engine.submit("default", request)) if (token) tokens += 1;
      return tokens;
    }),
  );
  const total = generated.reduce((a, b) => a + b);
  return (total * 1000) / (performance.now() - start);
}

/** mlx-lm in a separate process, controlled over standard input. */
async function startPeer() {
  const child = Bun.spawn([mlxLmPython(), join(import.meta.dir, "mlx-lm.py"), model], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
    env: { ...process.env, LD_PRELOAD: blasShim() },
  });
  const lines = linesOf(child.stdout);
  await lines.next(); // mlx-lm has loaded its model and is idle.
  return {
    async measure(prompts: readonly number[][]): Promise<number> {
      child.stdin.write(`${JSON.stringify({ prompts, maxTokens })}\n`);
      child.stdin.flush();
      const { value } = await lines.next();
      return round(Number(value));
    },
    async stop() {
      child.stdin.end();
      await child.exited;
    },
  };
}
