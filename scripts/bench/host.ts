// Measures the host overhead of a long prompt: from the request to the launch of its step, and from the step's result
// to the answer. `bun scripts/bench/host.ts [--tokens 8192 --prompts 8]`. Scheduler, KV cache and step inputs are
// those of Qwen3-0.6B on a Hopper GPU, but nothing is computed. The first prompt warms up the JIT and is excluded.
import { findLibrary } from "../../ffi/native.ts";
import { openDevice } from "../../src/device/open.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { KvCache } from "../../src/kv/kv-cache.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { LayerStates } from "../../src/model/contract/states.ts";
import type { StepInputs } from "../../src/model/run/step.ts";
import { PagedKvStore } from "../../src/model/state/paged-kv-store.ts";
import { ModelEngine } from "../../src/worker/model-engine.ts";
import { readFlags } from "../flags.ts";
import { median } from "./in-turns.ts";

const { tokens, prompts } = readFlags({ tokens: 8192, prompts: 8 });
const VOCABULARY = 151_936;
/** Room for two prompts: a third evicts the first one's blocks. */
const blocks = 2 * Math.ceil((tokens + 1) / BLOCK_TOKENS);
/** Pause between prompts, like a client that reads the answer. */
const PAUSE_MS = 300;

openMlx(findLibrary(), { device: "cpu" });
const device = openDevice("cuda", { architecture: "sm_90" });
const states = new LayerStates();
states.kv({ heads: 16, kvHeads: 8, headDim: 128 });
const store = new PagedKvStore(device, states, [blocks], "bfloat16");

let [launched, read] = [0, 0];
const runner = {
  forwards: 0,
  depth: 2,
  launch({ rows, samples }: StepInputs) {
    store.chunkInputs(rows, true);
    launched = performance.now();
    return {
      draw() {},
      read() {
        read = performance.now();
        return { sampled: samples.map(() => ({ token: 0 })), scored: [], sums: [] };
      },
    };
  },
};
const engine = new ModelEngine({
  name: "model",
  cache: new KvCache({ groups: [{ blocks }] }),
  runner,
  vocabulary: VOCABULARY,
  maxLength: 2 * tokens,
  lookback: tokens,
  tokenBudget: tokens,
  stepMs: 1000,
  options: { ...defaultEngineOptions, maxBatch: 8 },
  onStep() {},
});

const before: number[] = [];
const behind: number[] = [];
for (let id = 0; id <= prompts; id++) {
  const prompt = Uint32Array.from({ length: tokens }, () => Math.floor(Math.random() * VOCABULARY));
  await Bun.sleep(PAUSE_MS);
  const start = performance.now();
  const refusal = engine.submit(id, {
    prompt,
    maxTokens: 1,
    sampling: { temperature: 0, seed: 0 },
  });
  if (refusal) throw new Error(`the prompt was refused: ${refusal}`);
  engine.step();
  const end = performance.now();
  while (engine.step());
  if (id === 0) continue;
  before.push(launched - start);
  behind.push(end - read);
}
store.free();
device.free();
console.log(
  `${tokens} tokens, median of ${before.length}: until the launch ${median(before).toFixed(2)} ms, ` +
    `from the result to the answer ${median(behind).toFixed(2)} ms`,
);
