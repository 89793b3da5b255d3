import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { type LoadedModel, loadModel } from "../../src/model/load.ts";
import { makeEngine } from "../support/engine.ts";
import { useMlx } from "../support/mlx.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

const folder = mkdtempSync(join(tmpdir(), "leaks-"));
let model: LoadedModel;
afterAll(() => {
  model.free();
  rmSync(folder, { recursive: true });
});
useMlx();
beforeAll(() => {
  writeTinyModel(folder, tinyCase("llama"));
  const loaded = loadModel(folder, { backend: "cpu" });
  model = { ...loaded, shape: { ...loaded.shape, maxPositions: 8192 } };
});

const MIB = 2 ** 20;

function usage() {
  Bun.gc(true);
  return { handles: liveArrays(), active: activeMemory(), resident: process.memoryUsage.rss() };
}

test("500 requests in a row leave handles and memory as they were", () => {
  const engine = makeEngine(model, { maxBatch: 8, blocks: 32 });
  const ask = (i: number) => {
    const prompt = Uint32Array.from({ length: 5 + (i % 60) }, (_, j) => (i * 31 + j * 7) % 200);
    const temperature = i % 3;
    engine.submit({ prompt, maxTokens: 4, n: 1 + (i % 2), sampling: { temperature, logprobs: 1 } });
    engine.run();
  };
  // The last request is the same, for what is kept of it until the next one comes.
  for (let i = 50; i >= 0; i--) ask(i);
  const before = usage();
  for (let i = 500; i >= 0; i--) ask(i);
  const after = usage();
  expect(after.handles).toBe(before.handles);
  expect(after.active).toBeLessThanOrEqual(before.active);
  expect(after.resident - before.resident).toBeLessThan(64 * MIB);
  engine.free();
}, 120_000);

test("a decode of 4,000 tokens leaves handles and memory as they were", () => {
  const engine = makeEngine(model, { maxBatch: 1, blocks: 140 });
  const [answer] = engine.submit({
    prompt: Uint32Array.of(1, 2, 3),
    maxTokens: 4000,
    sampling: { temperature: 0 },
  });
  while (answer!.tokens.length < 500) engine.step();
  const before = usage();
  engine.run();
  const after = usage();
  expect(answer!.tokens).toHaveLength(4000);
  expect(after.handles).toBe(before.handles);
  // The past that attention reads has grown from 512 tokens to 4,096.
  const { layers, kvHeads, headDim } = model.shape;
  const grown = 2 * layers * kvHeads * headDim * 4 * (4096 - 512);
  expect(after.active - before.active).toBeLessThanOrEqual(grown);
  expect(after.resident - before.resident).toBeLessThan(64 * MIB);
  engine.free();
}, 120_000);
