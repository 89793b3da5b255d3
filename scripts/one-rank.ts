// Runs a group of a single rank on this device, and compares its tokens with those of the engine without ranks. On
// CUDA, this starts NCCL.
//   npm run -s one-rank -- [model] [--dtype float32]
// A rank's products are rounded before their sum, so in 16 bits tokens may differ with random weights.
import { join } from "node:path";
import { parseArgs } from "node:util";
import { backend, engineSetup } from "../ffi/native.ts";
import { startLocalGroup } from "../src/cli/ranks.ts";
import { EngineClient } from "../src/engine/client.ts";
import type { EngineOptions } from "../src/engine/protocol.ts";
import { resolveModel } from "../src/hub/source.ts";
import type { RankGroup } from "../src/ranks/group.ts";

const REQUESTS = 8;
const MAX_TOKENS = 64;
const PROMPT_TOKENS = 40;

const program = [process.execPath, join(import.meta.dir, "../src/main.ts")];
const { values, positionals } = parseArgs({
  options: { dtype: { type: "string" } },
  allowPositionals: true,
});
const { name, path } = resolveModel(positionals[0] ?? "default");
const dtype = values.dtype as EngineOptions["dtype"];

const alone = await answers();
const ranks = await startLocalGroup(1, { division: { parallel: "tensor" }, command: program });
const divided = await answers(ranks);
const { connections } = ranks.status();
await ranks.stop();
const isSame = divided.tokens === alone.tokens;
console.log(`${backend()}, ${REQUESTS} requests of ${MAX_TOKENS} tokens
without ranks: ${alone.perSecond.toFixed(1)} tokens/s
one rank, connected by ${connections}: ${divided.perSecond.toFixed(1)} tokens/s, ${isSame ? "the same tokens" : "OTHER tokens"}`);
process.exit(isSame ? 0 : 1);

/** The tokens for a few concurrent prompts, and their rate after a warm-up. */
async function answers(group?: RankGroup): Promise<{ tokens: string; perSecond: number }> {
  const engine = await EngineClient.start(engineSetup(), {}, group);
  await engine.load(name, path, { maxBatch: REQUESTS, dtype });
  await drawn(engine);
  const startMs = performance.now();
  const tokens = await drawn(engine);
  const perSecond = (REQUESTS * MAX_TOKENS * 1000) / (performance.now() - startMs);
  await engine.stop();
  return { tokens, perSecond };
}

async function drawn(engine: EngineClient): Promise<string> {
  const all = Array.from({ length: REQUESTS }, async (_, request) => {
    const prompt = Uint32Array.from({ length: PROMPT_TOKENS }, (_, i) => 100 + request * 7 + i);
    const tokens: number[] = [];
    const sampling = { temperature: 0 };
    for await (const event of engine.submit(name, { prompt, maxTokens: MAX_TOKENS, sampling })) {
      if (event.finished === "error") throw new Error("a request has failed");
      if (event.token !== undefined) tokens.push(event.token);
    }
    return tokens.join();
  });
  return (await Promise.all(all)).join("\n");
}
