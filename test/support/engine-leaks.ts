// A program that answers 500 requests in a row, then one with 10,000 tokens, with the model in a folder,
// and prints what each has left behind.
import { findLibrary } from "../../ffi/native.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { loadModel } from "../../src/model/load.ts";
import { deviceOf } from "./devices.ts";
import { makeEngine } from "./engine.ts";

openMlx(findLibrary(), { device: "cpu" });
const loaded = loadModel(process.argv[2]!, { device: deviceOf("cpu") });
const model = { ...loaded, shape: { ...loaded.shape, maxPositions: 16_384 } };

function usage() {
  Bun.gc(true);
  return { handles: liveArrays(), active: activeMemory(), resident: process.memoryUsage.rss() };
}

function left(before: ReturnType<typeof usage>) {
  const after = usage();
  return {
    handles: after.handles - before.handles,
    active: after.active - before.active,
    resident: after.resident - before.resident,
  };
}

const many = makeEngine(model, { maxBatch: 8, blocks: 32 });
const ask = (i: number) => {
  const prompt = Uint32Array.from({ length: 5 + (i % 60) }, (_, j) => (i * 31 + j * 7) % 200);
  const sampling = { temperature: i % 3, logprobs: 1 };
  many.submit({ prompt, maxTokens: 4, n: 1 + (i % 2), sampling });
  many.run();
};
// The last request is the same, for what is kept of it until the next one comes.
for (let i = 100; i >= 0; i--) ask(i);
const beforeMany = usage();
for (let i = 500; i >= 0; i--) ask(i);
const afterMany = left(beforeMany);
many.free();

const long = makeEngine(model, { maxBatch: 1, blocks: 320 });
const sampling = { temperature: 0 };
const [answer] = long.submit({ prompt: Uint32Array.of(1, 2, 3), maxTokens: 10_000, sampling });
while (answer!.tokens.length < 500) long.step();
const beforeLong = usage();
long.run();
const afterLong = left(beforeLong);
long.free();
model.free();
console.log(
  JSON.stringify({ afterMany, afterLong, tokens: answer!.tokens.length, end: liveArrays() }),
);
