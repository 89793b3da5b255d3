// What ranks hold of a model, by MLX's own count: each its share of the weights, of the KV cache and of recurrent states, as
// was planned. Their parts are loaded one after the other: nothing is computed, so no rank waits for another.
import { describe, expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { defaultEngineOptions, type Parallel } from "../../src/engine/protocol.ts";
import { bytesOf } from "../../src/kv/budget.ts";
import { plannedGroup } from "../../src/mlx/distributed.ts";
import { activeMemory, clearCache } from "../../src/mlx/memory.ts";
import { blockBytes, groupsOf, type LayerStates } from "../../src/model/contract/states.ts";
import { type LoadOptions, loadModel } from "../../src/model/load.ts";
import { StateStore } from "../../src/model/state/state-store.ts";
import { evenly } from "../../src/model/weights/stages.ts";
import { needsOf } from "../../src/worker/plan.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";
import { wideModels, writeWideModel } from "../support/wide-models.ts";

useMlx();
const root = temporaryFolder();

/** So many that what a pool has for padding is little beside them. */
const MANY = 64;

function layoutOf(states: LayerStates) {
  return {
    groups: groupsOf(states).map(({ window }) => ({ blocks: MANY, window })),
    slots: states.slots.length > 0 ? MANY : undefined,
  };
}

type Held = { weights: number; states: number };

function heldBy(path: string, part: Partial<LoadOptions> = {}): Held {
  const device = deviceOf("cpu");
  // Arrays may get larger buffers that others have left.
  clearCache();
  const before = activeMemory();
  const model = loadModel(path, { device, ...part });
  const loaded = activeMemory();
  const store = new StateStore(device, model.states, layoutOf(model.states), model.dtype);
  const held = { weights: loaded - before, states: activeMemory() - loaded };
  store.free();
  model.free();
  expect(activeMemory()).toBe(before);
  return held;
}

function expectWithin(share: number, found: number, expected: number): void {
  expect(found / expected).toBeGreaterThan(1 - share);
  expect(found / expected).toBeLessThan(1 + share);
}

function expectShares(path: string, size: number, parallel: Parallel): void {
  const whole = heldBy(path);
  const ranks = { size, localSize: size, division: { parallel } };
  const { needs, sketched } = needsOf(deviceOf("cpu"), path, defaultEngineOptions, ranks);
  const planned = bytesOf(needs.costs, layoutOf(sketched.states));
  for (let rank = 0; rank < size; rank++) {
    const part = { group: plannedGroup(rank, size), parallel, layers: evenly(size) };
    const held = heldBy(path, part);
    expectWithin(0.1, held.weights, whole.weights / size);
    expectWithin(0.1, held.states, whole.states / size);
    expectWithin(0.1, held.weights, needs.weightBytes);
    expectWithin(0.1, held.states, planned);
  }
}

const cases = Object.entries(wideModels).flatMap(([kind, model]) =>
  [false, true].map((isQuantized) => {
    const path = mkdtempSync(join(root, "model-"));
    writeWideModel(path, model, isQuantized);
    return { kind: isQuantized ? `${kind}, quantized` : kind, path };
  }),
);

describe.each(cases)("a model of $kind", ({ path }) => {
  test.each([2, 3, 4])("has its share of every layer on each of %i ranks", (size) => {
    expectShares(path, size, "tensor");
  });
});

describe.each(cases.filter(({ kind }) => kind.startsWith("attention")))(
  "a model of $kind",
  ({ path }) => {
    test.each([2, 3, 4])("has its share of the layers on each of %i ranks", (size) => {
      expectShares(path, size, "pipeline");
    });
  },
);

test("the first of three ranks has fewer layers for a vocabulary that takes as much as three", () => {
  const path = mkdtempSync(join(root, "model-"));
  const { config, tensors } = wideModels.attention;
  const vocabulary = 18_438;
  const embedding = { "model.embed_tokens.weight": [vocabulary, 384] };
  const model = {
    config: { ...config, vocab_size: vocabulary },
    tensors: { ...tensors, ...embedding },
  };
  writeWideModel(path, model, true);
  const whole = heldBy(path).weights;
  for (let rank = 0; rank < 3; rank++) {
    const part = { group: plannedGroup(rank, 3), parallel: "pipeline", layers: evenly(3) } as const;
    expectWithin(0.02, heldBy(path, part).weights, whole / 3);
  }
});

test("of layers that differ, the plan has what the rank with most of them holds", () => {
  const path = mkdtempSync(join(root, "tiny-"));
  // Its first layers have keys and values, and its first rank an embedding for each layer.
  writeTinyModel(path, tinyCase("gemma3n"));
  const device = deviceOf("cpu");
  const ranks = { size: 3, localSize: 3, division: { parallel: "pipeline" } } as const;
  const { needs, sketched } = needsOf(device, path, defaultEngineOptions, ranks);
  const windows = groupsOf(sketched.states).map(({ window }) => window);
  const held = [0, 1, 2].map((rank) => {
    const group = plannedGroup(rank, 3);
    const model = loadModel(path, { device, group, parallel: "pipeline", windows });
    model.free();
    const blocks = groupsOf(model.states).map((each) => blockBytes(each, "float32"));
    return [model.weightBytes, ...blocks];
  });
  const most = held[0]!.map((_, i) => Math.max(...held.map((each) => each[i]!)));
  const { weightBytes, costs } = needs;
  expect([weightBytes, ...costs.groups.map((group) => group.blockBytes)]).toEqual(most);
});
