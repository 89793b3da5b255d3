import { describe, expect, test } from "bun:test";
import {
  copyFileSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { roomOf } from "../../src/device/memory.ts";
import { defaultEngineOptions } from "../../src/engine/protocol.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory, memoryLimit } from "../../src/mlx/memory.ts";
import { loadModel } from "../../src/model/load.ts";
import { Models } from "../../src/worker/models.ts";
import { planModel } from "../../src/worker/plan.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { folderFormats, quantizedLlama } from "../support/quantized-folder.ts";
import {
  llamaShapes,
  tinyConfig,
  tinyTensors,
  writeFolder,
  writeHollowFolder,
} from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, tinyCases, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = temporaryFolder();

const newFolder = () => mkdtempSync(join(root, "model-"));
const options = { ...defaultEngineOptions, keepUnpacked: false };

/** The same file with nothing behind its header: its bytes are holes. */
function hollow(path: string): void {
  const { size } = statSync(path);
  const bytes = readFileSync(path);
  writeFileSync(path, bytes.subarray(0, 8 + Number(bytes.readBigUInt64LE())));
  truncateSync(path, size);
}

/** What a load holds, and that a plan of the headers alone says so. */
function expectPlanned(
  name: string,
  path: string,
  { backend, isHollow }: { backend: "cpu" | "metal" | "cuda"; isHollow: boolean },
): void {
  const device = deviceOf(backend);
  const model = loadModel(path, { device });
  const { weightBytes, shape, dtype } = model;
  model.free();
  const [arrays, bytes] = [liveArrays(), activeMemory()];
  const outline = newFolder();
  copyFileSync(join(path, "config.json"), join(outline, "config.json"));
  copyFileSync(join(path, "model.safetensors"), join(outline, "model.safetensors"));
  if (isHollow) hollow(join(outline, "model.safetensors"));
  const plan = planModel(device, outline, options);
  expect([name, plan.weightBytes]).toEqual([name, weightBytes]);
  expect(plan).toMatchObject({ backend, dtype, maxPositions: shape.maxPositions });
  expect(liveArrays()).toBe(arrays);
  expect(activeMemory()).toBe(bytes);
}

describe("a plan says what a load will hold", () => {
  // One of each architecture as it is, one quantized.
  const kinds = Map.groupBy(tinyCases, ({ config, quantization }) =>
    [config.model_type, quantization !== undefined].join(),
  );
  const cases = [...kinds.values()].map(([first]) => first!);

  test("of every architecture", () => {
    for (const [i, tiny] of cases.entries()) {
      const path = newFolder();
      writeTinyModel(path, tiny);
      const backend = (["cpu", "metal", "cuda"] as const)[i % 3]!;
      expectPlanned(tiny.name, path, { backend, isHollow: true });
      rmSync(path, { recursive: true });
    }
  }, 120_000);

  for (const [name, format] of Object.entries(folderFormats)) {
    test(`of the format ${name}, on a CPU and on a GPU`, () => {
      const { config, tensors } = quantizedLlama(format);
      const path = writeFolder(newFolder(), config, tensors);
      // Some formats read small tensors that tell shapes and orders.
      for (const backend of ["cpu", "cuda"] as const) {
        expectPlanned(name, path, { backend, isHollow: false });
      }
    });
  }

  test("with a dequantized copy of quantized weights where that takes little of a GPU's free memory", () => {
    const { config, tensors } = quantizedLlama(folderFormats.awq!);
    const path = writeFolder(newFolder(), config, tensors);
    const gpu = deviceOf("cuda");
    const bytesOf = (keepDequantized: boolean) => {
      const model = loadModel(path, { device: gpu, keepDequantized });
      const { weightBytes } = model;
      model.free();
      return weightBytes;
    };
    const planned = (keepUnpacked: boolean | undefined, device = gpu) =>
      planModel(device, path, { ...options, keepUnpacked }).weightBytes;
    const [plain, both] = [bytesOf(false), bytesOf(true)];
    expect(both).toBeGreaterThan(plain);
    expect(planned(undefined)).toBe(both);
    expect(planned(false)).toBe(plain);
    const share = (both - plain) / roomOf(gpu.memory.facts());
    expect(planned(undefined, { ...gpu, spareShare: 2 * share })).toBe(both);
    expect(planned(undefined, { ...gpu, spareShare: share / 2 })).toBe(plain);
    expect(planned(true, { ...gpu, spareShare: share / 2 })).toBe(both);
  });

  test("of a GGUF file, on a CPU and on a GPU", () => {
    for (const backend of ["cpu", "metal"] as const) {
      const device = deviceOf(backend);
      const model = loadModel(defaultModelPath(), { device });
      const { weightBytes } = model;
      model.free();
      const before = activeMemory();
      expect(planModel(device, defaultModelPath(), options).weightBytes).toBe(weightBytes);
      expect(activeMemory()).toBe(before);
    }
  });

  test("of the KV pool, as the engine has it after the load", () => {
    for (const name of ["llama", "gemma3", "falcon_h1", "deepseek_v3", "mamba2"]) {
      const path = newFolder();
      writeTinyModel(path, tinyCase(name));
      const models = new Models(() => deviceOf("cpu"));
      const limits = { ...options, kvBytes: 2 ** 20 };
      const plan = models.plan(path, limits);
      const info = models.load(name, path, limits, {});
      models.unload(name);
      // The store has a few blocks and slots of its own.
      const { kvBytes } = info;
      expect(plan.kvBytes / kvBytes).toBeGreaterThan(0.8);
      expect(plan.kvBytes).toBeLessThanOrEqual(kvBytes);
      expect(plan).toMatchObject({ maxLength: info.maxLength, stateBytes: info.slots?.bytes ?? 0 });
      // Less where other programs hold much.
      expect(plan.memoryLimitBytes).toBeWithin(plan.kvBytes, memoryLimit() + 1);
    }
  });
});

test("a plan says what a token takes, within a window or for good", () => {
  const path = newFolder();
  writeTinyModel(path, tinyCase("gemma3"));
  const { kv, kvBytes } = planModel(deviceOf("cpu"), path, options);
  expect(kv.map(({ window }) => typeof window).sort()).toEqual(["number", "undefined"]);
  for (const { bytesPerToken } of kv) expect(bytesPerToken).toBeGreaterThan(0);
  expect(kvBytes).toBeLessThanOrEqual(2 ** 30);
});

test("a plan of more weights than there is memory takes no memory", () => {
  const vocabulary = 2 ** 30;
  const config = { ...tinyConfig, vocab_size: vocabulary };
  const path = writeHollowFolder(newFolder(), config, llamaShapes(config));
  const before = process.memoryUsage().rss;
  const { weightBytes } = planModel(deviceOf("cpu"), path, options);
  expect(weightBytes).toBeGreaterThan(4 * vocabulary * tinyConfig.hidden_size);
  expect(process.memoryUsage().rss - before).toBeLessThan(100e6);
});

test("a plan fails as the load would", () => {
  const device = deviceOf("cpu");
  for (const [config, tensors] of [
    [{ ...tinyConfig, model_type: "unheard_of" }, tinyTensors()],
    [{ ...tinyConfig, num_hidden_layers: 3 }, tinyTensors()],
    [{ ...tinyConfig, hidden_size: 12 }, tinyTensors()],
  ] as const) {
    const path = newFolder();
    writeFolder(path, config, tensors);
    const messageOf = (run: () => unknown) => {
      try {
        run();
      } catch (error) {
        return (error as Error).message;
      }
      throw new Error("expected it to fail");
    };
    const message = messageOf(() => planModel(device, path, options));
    expect(message).toBe(messageOf(() => loadModel(path, { device })));
  }
});
