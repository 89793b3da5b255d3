// Models are loaded and unloaded; a load that fails leaves nothing behind, however far it came.
import { beforeAll, expect, test } from "bun:test";
import type { Device } from "../../src/device/device.ts";
import {
  defaultEngineOptions,
  type EngineOptions,
  type StepReport,
} from "../../src/engine/protocol.ts";
import { liveArrays } from "../../src/mlx/array.ts";
import { activeMemory } from "../../src/mlx/memory.ts";
import { PlainAttention } from "../../src/self-test/plain-attention.ts";
import { Models } from "../../src/worker/models.ts";
import { deviceOf, plainGpu } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

const folder = temporaryFolder();
useMlx();
beforeAll(() => writeTinyModel(folder, tinyCase("llama")));

function load(models: Models, options: Partial<EngineOptions> = {}) {
  return models.load("tiny", folder, { ...defaultEngineOptions, blocks: 8, ...options }, {});
}

class FailingAttention extends PlainAttention {
  override decode(): never {
    throw new Error("no such kernel");
  }
}

/** Allocates weights and some pools, and then no more. */
function shortOfMemory(device: Device): Device {
  let pools = 0;
  return {
    ...device,
    allocate: (shape, dtype) => {
      if (shape.length === 4 && ++pools % 4 === 0) throw new Error("no memory");
      return device.allocate(shape, dtype);
    },
  };
}

const faults: Record<string, { make(): Device; options?: Partial<EngineOptions>; says: RegExp }> = {
  "there is no memory for the blocks that were asked for": {
    make: () => deviceOf("cpu"),
    options: { blocks: 2 ** 40 },
    says: /KV blocks take .* GiB, but .* leave only .*: set a smaller --block-pool-size/,
  },
  "memory runs out after a pool": { make: () => shortOfMemory(deviceOf("cpu")), says: /no memory/ },
  "there are no kernels for its heads": {
    make: () => ({
      ...deviceOf("cpu"),
      attention: () => {
        throw new Error("no such head size");
      },
    }),
    says: /no such head size/,
  },
  "warming up fails": {
    make: () => ({ ...plainGpu(), attention: (shape) => new FailingAttention(shape) }),
    options: { warmUp: true },
    says: /no such kernel/,
  },
};

for (const [what, { make, options, says }] of Object.entries(faults)) {
  test(`where ${what}, ten loads in a row leave memory as it was, and a good one follows`, () => {
    const device = make();
    const models = new Models(() => device);
    const before = { arrays: liveArrays(), bytes: activeMemory() };
    for (let i = 0; i < 10; i++) {
      expect(() => load(models, options)).toThrow(says);
      expect({ arrays: liveArrays(), bytes: activeMemory() }).toEqual(before);
      expect(models.get("tiny")).toBeUndefined();
    }
    const good = new Models(() => deviceOf("cpu"));
    expect(load(good)).toMatchObject({ model: "tiny", blocks: 8 });
    good.unload("tiny");
    expect(liveArrays()).toBe(before.arrays);
  });
}

test("a libmlxc without what the device needs is an error of the load, not of the start", () => {
  const models = new Models(() => {
    throw new Error("this libmlxc has no operations for a CPU");
  });
  expect(models.busy).toBe(false);
  expect(() => load(models)).toThrow("no operations for a CPU");
});

test("a device is told how large a model is whose prompts it might record", () => {
  const told: number[] = [];
  const device: Device = {
    ...plainGpu(),
    compiles: true,
    paddedTokens: (_, weightBytes) => {
      told.push(weightBytes);
      return undefined;
    },
  };
  const models = new Models(() => device);
  const { weightBytes } = load(models, { warmUp: true });
  expect(weightBytes).toBeGreaterThan(0);
  expect(told.at(-1)).toBe(weightBytes);
  models.unload("tiny");
});

test("a device says how many tokens a step has beside streams", () => {
  const reports: StepReport[] = [];
  const models = new Models(
    () => ({ ...deviceOf("cpu"), besideTokens: 44 }),
    ({ report }) => void reports.push(report),
  );
  load(models, { blocks: 16 });
  const engine = models.get("tiny")!;
  const ask = (id: number, tokens: number) => {
    const prompt = new Uint32Array(tokens).fill(id);
    engine.submit(id, { prompt, maxTokens: 20, sampling: { temperature: 0 } });
  };
  const step = () => {
    engine.step();
    return reports.at(-1);
  };
  const streams = Array.from({ length: 12 }, (_, id) => id);
  for (const id of streams) ask(id, 3);
  expect(step()).toMatchObject({ prefillTokens: 36, decodeTokens: 0 });
  ask(12, 60);
  expect(step()).toMatchObject({ prefillTokens: 32, decodeTokens: 12 });
  for (const id of [...streams, 12]) engine.abort(id);
  models.unload("tiny");
});
