import { expect, test } from "bun:test";
import { packTables } from "../../../src/kernels/attention/paged-attention.ts";
import { LayerStates } from "../../../src/model/contract/states.ts";
import { PagedKvStore, splitsFor, tableWidth } from "../../../src/model/state/paged-kv-store.ts";
import { PlainAttention } from "../../../src/self-test/plain-attention.ts";
import { plainGpu } from "../../support/devices.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();

test("tables have a length and blocks of each row, padded to a common width", () => {
  const rows = [
    { length: 41, blocks: [7, 3] },
    { length: 32, blocks: [5] },
  ];
  const tables = packTables(rows, 8);
  expect([...tables]).toEqual([8, 41, 7, 3, 0, 0, 0, 0, 0, 0, 32, 5, 0, 0, 0, 0, 0, 0, 0]);
});

test("a block that was given back is another that may be read", () => {
  const tables = packTables([{ length: 100, blocks: [-1, -1, 4, 2] }], 4, 9);
  expect([...tables]).toEqual([4, 100, 9, 9, 4, 2]);
});

test("tables are as wide as the longest row's, rounded up to a power of two", () => {
  expect(tableWidth([{ start: 40, count: 1 }])).toBe(8);
  expect(
    tableWidth([
      { start: 0, count: 1 },
      { start: 256, count: 1 },
    ]),
  ).toBe(16);
  expect(tableWidth([{ start: 0, count: 1024 }])).toBe(32);
});

test("few long rows are split into parts, many or short ones are not", () => {
  expect(splitsFor(16, 1, 8)).toBe(16);
  expect(splitsFor(16, 4, 8)).toBe(8);
  expect(splitsFor(1, 1, 8)).toBe(1);
  expect(splitsFor(16, 64, 8)).toBe(1);
});

/** Of a step that decodes so many rows of this length, on a GPU with clusters of 8. */
function splitsOf(rows: number, length: number): number {
  const state = { heads: 16, kvHeads: 8, headDim: 64 };
  const states = new LayerStates();
  states.kv(state);
  const attention = Object.assign(new PlainAttention(state), {
    clustered: { splits: 8, groups: 132 },
  });
  const device = { ...plainGpu(), attention: () => attention };
  const store = new PagedKvStore(device, states, [1], "float32");
  const parts = store.partsOf(Array(rows).fill({ start: length - 1, count: 1, tables: [[]] }));
  store.free();
  return parts;
}

test("rows that are long have as many groups as it takes to keep the memory busy", () => {
  expect([1, 4, 8].map((rows) => splitsOf(rows, 4096))).toEqual([16, 8, 4]);
  expect([1, 4, 8, 32].map((rows) => splitsOf(rows, 32_768))).toEqual([64, 16, 8, 2]);
});
