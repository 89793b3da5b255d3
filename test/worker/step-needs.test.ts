// What a sketch says that a step takes, beside what MLX's allocator counts when it is computed.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory, clearCache, peakMemory, resetPeakMemory } from "../../src/mlx/memory.ts";
import { loadModel } from "../../src/model/load.ts";
import { Runner } from "../../src/model/runner.ts";
import { StateStore } from "../../src/model/state-store.ts";
import { groupsOf } from "../../src/model/states.ts";
import { largestStep, sketchModel } from "../../src/worker/step-needs.ts";
import { deviceOf, freeDevices } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = mkdtempSync(join(tmpdir(), "step-needs-"));
afterAll(() => {
  freeDevices();
  rmSync(root, { recursive: true });
});

/** The most that the arrays of such a step hold at once. */
function measured(
  path: string,
  size: { maxBatch: number; tokens: number; length: number },
): number {
  const device = deviceOf("cpu");
  const model = loadModel(path, { device });
  const layout = {
    groups: groupsOf(model.states).map(({ window }) => ({ blocks: 1, window })),
    slots: model.states.slots.length > 0 ? 1 : undefined,
  };
  const store = new StateStore(device, model.states, layout, model.dtype);
  const runner = new Runner(device, model, store);
  const peaks = Array.from({ length: 3 }, () => {
    clearCache();
    const before = activeMemory();
    resetPeakMemory();
    runner.launch(largestStep(store, size)).read();
    return peakMemory() - before;
  });
  runner.free();
  store.free();
  model.free();
  // The first step also makes what is kept for later ones.
  return Math.max(...peaks.slice(1));
}

describe("the memory of a step is known within 10%", () => {
  for (const [maxBatch, tokens] of [
    [1, 512],
    [32, 512],
    [32, 64],
    [8, 1024],
  ] as const) {
    test(`of ${tokens} tokens in ${maxBatch} rows of the default model`, () => {
      const before = [liveArrays(), activeMemory()];
      const sketched = sketchModel(deviceOf("cpu"), defaultModelPath(), {}, { maxBatch, tokens });
      expect([liveArrays(), activeMemory()]).toEqual(before);
      const length = Math.max(tokens, 600);
      const estimate = sketched.stepBytes(tokens, length);
      const found = measured(defaultModelPath(), { maxBatch, tokens, length });
      expect(estimate / found).toBeWithin(0.9, 1.1);
    }, 60_000);
  }

  // Attention with and without windows, latents, experts, convolutions, linear attention.
  for (const name of [
    "plamo3",
    "gemma4_unified",
    "mistral4",
    "longcat_flash",
    "lfm2_vl",
    "kimi_k3",
  ]) {
    test(`of 1024 tokens in 4 rows of a tiny ${name}`, () => {
      const path = mkdtempSync(join(root, "model-"));
      writeTinyModel(path, tinyCase(name));
      const size = { maxBatch: 4, tokens: 1024 };
      const { stepBytes } = sketchModel(deviceOf("cpu"), path, {}, size);
      const found = measured(path, { ...size, length: 1024 });
      expect(stepBytes(1024, 1024) / found).toBeWithin(0.9, 1.1);
    });
  }
});
