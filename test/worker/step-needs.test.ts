// What a sketch says that a step takes, beside what MLX's allocator counts when it is computed.
import { describe, expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { sketchModel } from "../../src/worker/step-needs.ts";
import { deviceOf } from "../support/devices.ts";
import { measuredStep } from "../support/measured-step.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = temporaryFolder();

describe("the memory of a step is known within 10%", () => {
  for (const [maxBatch, tokens] of [
    [1, 128],
    [32, 128],
    [32, 64],
    [8, 256],
  ] as const) {
    test(`of ${tokens} tokens in ${maxBatch} rows of the default model`, () => {
      const before = [liveArrays(), activeMemory()];
      const sketched = sketchModel(deviceOf("cpu"), defaultModelPath(), {}, { maxBatch, tokens });
      expect([liveArrays(), activeMemory()]).toEqual(before);
      const length = Math.max(tokens, 600);
      const estimate = sketched.stepBytes(tokens, length);
      const found = measuredStep(defaultModelPath(), { maxBatch, tokens, length });
      expect(estimate / found).toBeWithin(0.9, 1.1);
    }, 60_000);
  }

  // Attention with and without windows, latents, experts, convolutions, scans, linear attention.
  for (const name of [
    ..."llama nanochat plamo3 gemma4_unified gpt_oss deepseek_v3 mistral4".split(" "),
    ..."longcat_flash lfm2_vl falcon_h1 qwen3_next kimi_k3 mamba2 rwkv7".split(" "),
  ]) {
    test(`of 1024 tokens in 4 rows of a tiny ${name}`, () => {
      const path = mkdtempSync(join(root, "model-"));
      writeTinyModel(path, tinyCase(name));
      const size = { maxBatch: 4, tokens: 1024 };
      const { stepBytes } = sketchModel(deviceOf("cpu"), path, {}, size);
      const found = measuredStep(path, { ...size, length: 1024 }, 10);
      expect(stepBytes(1024, 1024) / found).toBeWithin(0.9, 1.1);
    }, 30_000);
  }
});
