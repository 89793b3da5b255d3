// How models are divided where nobody says: tiny models, planned and never loaded.
import { expect, test } from "bun:test";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { type Division, defaultEngineOptions } from "../../src/engine/protocol.ts";
import { divide } from "../../src/worker/division.ts";
import { needsOf } from "../../src/worker/plan.ts";
import { deviceOf } from "../support/devices.ts";
import { useMlx } from "../support/mlx.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";
import { tinyCase, writeTinyModel } from "../support/tiny-models.ts";

useMlx();
const root = temporaryFolder();

function folderOf(name: string): string {
  const path = mkdtempSync(join(root, "model-"));
  writeTinyModel(path, tinyCase(name));
  return path;
}

const auto: Division = { parallel: "auto" };

const divided = (name: string, size: number, localSize: number, division = auto) =>
  divide(deviceOf("cpu"), folderOf(name), {}, { size, localSize, division });

test("ranks of one machine have parts of every layer, where these are about even", () => {
  expect(divided("llama", 2, 2).parallel).toBe("tensor");
  // Two KV heads among three ranks: each has those of its queries.
  expect(divided("llama", 3, 3).parallel).toBe("tensor");
  // Two groups of heads are on all three.
  expect(divided("mamba2", 3, 3).parallel).toBe("pipeline");
});

test("ranks of several hosts have some of the layers each, where the model's layers can be divided", () => {
  expect(divided("llama", 2, 1).parallel).toBe("pipeline");
  // Later layers take keys and values of earlier ones.
  expect(divided("gemma3n", 2, 1).parallel).toBe("pipeline");
  // More ranks than layers.
  expect(divided("llama", 9, 1).parallel).toBe("tensor");
});

test("what was asked for goes before", () => {
  expect(divided("llama", 2, 1, { parallel: "tensor" }).parallel).toBe("tensor");
  const layers = [
    { first: 0, end: 1 },
    { first: 1, end: 2 },
  ];
  const parts = divided("llama", 2, 2, { parallel: "auto", layers });
  expect(parts).toMatchObject({ parallel: "pipeline", layers: { ranges: layers } });
});

test("layers by hand that are not all layers are refused before any rank loads them", () => {
  const layers = [
    { first: 0, end: 1 },
    { first: 1, end: 9 },
  ];
  const division: Division = { parallel: "pipeline", layers };
  const ranks = { size: 2, localSize: 2, division };
  const plan = () => needsOf(deviceOf("cpu"), folderOf("llama"), defaultEngineOptions, ranks);
  expect(plan).toThrow(/layers 0-\d, but --layers gives 0-0,1-8/);
});

test("a rank with little memory for its layers leaves less for all", () => {
  const path = folderOf("llama");
  const weightsWith = (memory: number[]) => {
    const layers = [
      { first: 0, end: 1 },
      { first: 1, end: 3 },
    ];
    const division: Division = { parallel: "pipeline", layers };
    const ranks = { size: 2, localSize: 1, division, memory };
    return needsOf(deviceOf("cpu"), path, defaultEngineOptions, ranks).needs.weightBytes;
  };
  expect(weightsWith([8, 4])).toBe(2 * weightsWith([8, 8]));
});
