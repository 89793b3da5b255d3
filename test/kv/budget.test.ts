import { expect, test } from "bun:test";
import { blocksFor, bytesOf, layoutOf } from "../../src/kv/budget.ts";

const demand = { maxBatch: 32, maxLength: 8192, stepTokens: 512 };
const whole = { blockBytes: 1000, window: undefined };
const windowed = { blockBytes: 5000, window: 512 };

test("a group alone gets all of the memory, and no more than a full batch could use", () => {
  expect(blocksFor([whole], demand, 1_000_500)).toBe(1000);
  expect(blocksFor([whole], demand, 1e12)).toBe(32 * 256);
  expect(blocksFor([whole], demand, 10)).toBe(1);
  expect(layoutOf([whole], demand, 1000)).toEqual({
    groups: [{ blocks: 1000, window: undefined }],
  });
});

test("a group with a window keeps a window of every 2,048 tokens, and a step", () => {
  const { groups } = layoutOf([windowed, whole], demand, 6400);
  expect(groups).toEqual([
    { blocks: 100 * 17 + 16, window: 512 },
    { blocks: 6400, window: undefined },
  ]);
});

test("few blocks are for all groups the same: a window may see all of them", () => {
  const { groups } = layoutOf([whole, windowed], demand, 20);
  expect(groups.map(({ blocks }) => blocks)).toEqual([20, 20]);
});

test("where all layers have windows, the widest decides", () => {
  const narrow = { blockBytes: 1000, window: 128 };
  const { groups } = layoutOf([narrow, windowed], demand, 6400);
  expect(groups.map(({ blocks }) => blocks)).toEqual([100 * 5 + 16, 6400]);
});

test("what a window saves is there for more tokens, and all together fits", () => {
  const costs = [whole, windowed];
  const bytes = 8_000_000;
  const blocks = blocksFor(costs, demand, bytes);
  const used = bytesOf(costs, layoutOf(costs, demand, blocks));
  expect(used).toBeLessThanOrEqual(bytes);
  expect(bytesOf(costs, layoutOf(costs, demand, blocks + 1))).toBeGreaterThan(bytes);
  expect(blocks).toBeGreaterThan(2 * (bytes / 6000));
});
