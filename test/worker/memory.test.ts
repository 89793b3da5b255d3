// Memory is planned before it is taken: what does not fit is refused, what is planned is what is used, and MLX is told.
import { describe, expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { totalmem } from "node:os";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import type { Device } from "../../src/device/device.ts";
import type { DeviceMemory, MemoryFacts } from "../../src/device/memory.ts";
import { defaultEngineOptions, type EngineOptions } from "../../src/engine/protocol.ts";
import { Models } from "../../src/worker/models.ts";
import { deviceOf, plainGpu } from "../support/devices.ts";
import { measuredStep, peakDuring } from "../support/measured-step.ts";
import { useMlx } from "../support/mlx.ts";
import { llamaShapes, tinyConfig, writeHollowFolder } from "../support/safetensors-file.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = temporaryFolder();

const newFolder = () => mkdtempSync(join(root, "model-"));

/** A model whose weights are holes in a file. */
function hollowModel(changes: Partial<typeof tinyConfig>): string {
  const config = { ...tinyConfig, ...changes };
  return writeHollowFolder(newFolder(), config, llamaShapes(config));
}

/** Why a load is refused, in a process of its own that may not grow meanwhile. */
async function refusal(path: string, options: Partial<EngineOptions> = {}): Promise<string> {
  const program = join(import.meta.dir, "../support/refused-load.ts");
  const child = Bun.spawn([process.execPath, program, path, JSON.stringify(options)], {
    stderr: "inherit",
  });
  const { message, grownBytes } = JSON.parse(await new Response(child.stdout).text());
  expect(grownBytes).toBeLessThan(150e6);
  return message;
}

/** The first number of GiB behind these words, in bytes. */
function bytesIn(message: string, words: string): number {
  const [, gib] = new RegExp(`${words} ([\\d.]+) GiB`).exec(message) ?? [];
  return Number(gib) * 2 ** 30;
}

describe("refused before memory is taken, with numbers that are right", () => {
  test("is a model of twice the machine's memory", async () => {
    const vocab_size = Math.ceil((2 * totalmem()) / (2 * 4 * tinyConfig.hidden_size));
    const message = await refusal(hollowModel({ vocab_size }));
    const weightBytes = 2 * 4 * tinyConfig.hidden_size * vocab_size;
    expect(bytesIn(message, "the weights take") / weightBytes).toBeWithin(0.9, 1.1);
    expect(bytesIn(message, "GiB of") / totalmem()).toBeWithin(0.1, 1.1);
  }, 60_000);

  test("is a KV cache of twice the machine's memory, in bytes or in blocks", async () => {
    const path = hollowModel({ max_position_embeddings: 2 ** 24 });
    const kvBytes = 2 * totalmem();
    // Keys and values of 2 layers, 2 heads of 16.
    const blocks = Math.ceil(kvBytes / (32 * 2 * 2 * 2 * 16 * 4));
    for (const options of [{ kvBytes }, { blocks }]) {
      const message = await refusal(path, options);
      expect(bytesIn(message, "the KV blocks take") / kvBytes).toBeWithin(0.9, 1.1);
      expect(message).toContain("set a smaller --block-pool-size or --kv-memory");
    }
  }, 60_000);

  test("are prompts whose step would not fit", async () => {
    const config = { intermediate_size: 2 ** 16, max_position_embeddings: 2 ** 24 };
    const tokenBudget = Math.ceil(totalmem() / (4 * config.intermediate_size));
    const message = await refusal(hollowModel(config), { tokenBudget });
    // What the gates make alone is as large as the memory.
    const least = 4 * config.intermediate_size * tokenBudget;
    expect(bytesIn(message, "tokens takes")).toBeGreaterThan(least);
    const [, fitting] = /set a --token-budget of (\d+) at most/.exec(message)!;
    expect(Number(fitting)).toBeWithin(64, tokenBudget);
  }, 60_000);

  test("is a context for which there is no memory", async () => {
    const path = hollowModel({ max_position_embeddings: 2 ** 30 });
    const maxLength = Math.ceil((2 * totalmem()) / (2 * 2 * 2 * 16 * 4));
    const message = await refusal(path, { maxLength });
    expect(bytesIn(message, "tokens takes") / (2 * totalmem())).toBeWithin(0.9, 1.1);
    expect(message).toMatch(/--max-model-len auto gives \d+ tokens$/);
  }, 60_000);
});

/** A Mac's memory of this size in the place of the machine's, with what is asked of it. */
function simulated(device: Device, facts: Omit<MemoryFacts, "activeBytes">) {
  const limits = { wired: [] as number[], cache: [] as number[], clears: 0 };
  const memory: DeviceMemory = {
    facts: () => ({ ...facts, activeBytes: 0 }),
    policy: deviceOf("metal").memory.policy,
    setWiredLimit: (bytes) => limits.wired.push(bytes),
    setCacheLimit: (bytes) => limits.cache.push(bytes),
    clearCache: () => {
      limits.clears += 1;
    },
  };
  return { device: { ...device, memory }, limits };
}

test("what a step would take that is refused is what it takes where it is not, within 10%", () => {
  const path = hollowModel({ intermediate_size: 2 ** 16, max_position_embeddings: 2 ** 12 });
  const facts = { totalBytes: 2 ** 30, usableBytes: 2 ** 29, availableBytes: 2 ** 29 };
  const models = new Models(() => simulated(deviceOf("cpu"), facts).device);
  const size = { maxBatch: 4, tokens: 1024 };
  const options = { ...defaultEngineOptions, maxBatch: 4, tokenBudget: size.tokens };
  let message = "";
  try {
    models.load("model", path, options, {});
  } catch (error) {
    message = (error as Error).message;
  }
  const found = measuredStep(path, { ...size, length: size.tokens });
  expect(bytesIn(message, "a step of 1024 tokens takes") / found).toBeWithin(0.9, 1.1);
}, 60_000);

test("the memory that was planned is what is used at most, within 10%", () => {
  const models = new Models(() => deviceOf("cpu"));
  const options = { ...defaultEngineOptions, maxBatch: 2, tokenBudget: 256, stepMs: 60_000 };
  const limits = { ...options, kvBytes: 64e6, prefixCaching: false };
  const { weightBytes, kvBytes, stepBytes } = models.plan(defaultModelPath(), limits);
  const used = peakDuring(() => {
    models.load("model", defaultModelPath(), limits, {});
    const engine = models.get("model")!;
    // Steps begin with 64 tokens, and double.
    for (const [id, length] of [20, 470].entries()) {
      const prompt = Uint32Array.from({ length }, (_, i) => 100 + ((i * 7 + id) % 1000));
      const sampling = { temperature: 1, topP: 0.9, seed: id };
      engine.submit(id, { prompt, maxTokens: 6, sampling });
    }
    while (!engine.scheduler.idle) engine.step();
  });
  models.unload("model");
  expect((weightBytes + kvBytes + stepBytes) / used).toBeWithin(0.9, 1.1);
}, 60_000);

describe("on a device with a Mac's memory", () => {
  const facts = { totalBytes: 2 ** 33, usableBytes: 5 * 2 ** 30, availableBytes: 4 * 2 ** 30 };

  test("what is planned is wired, and given back when models are unloaded or fail to load", () => {
    const path = newFolder();
    writeTinyModel(path, tinyCase("llama"));
    const { device, limits } = simulated(plainGpu(), facts);
    const models = new Models(() => device);
    const options = { ...defaultEngineOptions, kvBytes: 2 ** 22 };
    const { wiredBytes, stepBytes } = models.plan(path, options);
    expect(limits.wired).toEqual([]);
    models.load("one", path, options, {});
    expect(limits.wired).toEqual([wiredBytes]);
    expect(limits.cache).toEqual([Math.ceil(stepBytes)]);
    models.load("two", path, options, {});
    expect(limits.wired.at(-1)).toBe(
      Math.ceil(2 * (wiredBytes - Math.ceil(stepBytes)) + stepBytes),
    );
    const { clears } = limits;
    expect(() =>
      models.load("three", path, { ...options, kvBytes: 2 ** 40, blocks: 2 ** 30 }, {}),
    ).toThrow("the KV blocks take");
    models.unload("two");
    expect(limits.wired.at(-1)).toBe(wiredBytes);
    models.unload("one");
    expect([limits.wired.at(-1), limits.cache.at(-1)]).toEqual([0, 0]);
    expect(limits.clears).toBe(clears + 2);
    models.load("one", path, options, {});
    models.free();
    expect(limits.wired.at(-1)).toBe(0);
  });

  test("a model has the longest context that fits, if that is asked for", () => {
    const path = hollowModel({ max_position_embeddings: 2 ** 26 });
    const { device } = simulated(deviceOf("cpu"), facts);
    const models = new Models(() => device);
    const usual = models.plan(path, defaultEngineOptions);
    const longest = models.plan(path, { ...defaultEngineOptions, maxLength: "auto" });
    expect(longest.maxLength).toBeGreaterThan(usual.maxLength);
    const taken = longest.weightBytes + longest.kvBytes + longest.stepBytes;
    expect(taken / facts.availableBytes).toBeWithin(0.99, 1);
  });
});
