import { expect, test } from "bun:test";
import { splitsFor, tablesOf } from "../../src/model/paged-kv-store.ts";

test("tables have a length and blocks of each row, padded to a common width", () => {
  const { tables, width } = tablesOf([
    { start: 40, count: 1, table: [7, 3] },
    { start: 0, count: 32, table: [5] },
  ]);
  expect(width).toBe(8);
  expect([...tables]).toEqual([8, 41, 7, 3, 0, 0, 0, 0, 0, 0, 32, 5, 0, 0, 0, 0, 0, 0, 0]);
});

test("tables are as wide as the longest row's, rounded up to a power of two", () => {
  const table = Array.from({ length: 9 }, (_, i) => i);
  const short = { start: 0, count: 1, table: [50] };
  const { tables, width } = tablesOf([short, { start: 256, count: 1, table }]);
  expect(width).toBe(16);
  expect([...tables.subarray(18, 18 + 10)]).toEqual([257, ...table]);
});

test("few long rows are split into parts, many or short ones are not", () => {
  const rows = (count: number, start: number) =>
    Array.from({ length: count }, () => ({ start, count: 1, table: [] }));
  expect(splitsFor(rows(1, 4095), 8)).toBe(16);
  expect(splitsFor(rows(4, 4095), 8)).toBe(8);
  expect(splitsFor(rows(1, 100), 8)).toBe(1);
  expect(splitsFor(rows(64, 4095), 8)).toBe(1);
});
