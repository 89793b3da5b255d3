import { expect, test } from "bun:test";
import { bytesOf, type Costs, layoutFor, layoutOf } from "../../src/kv/budget.ts";

const demand = { maxBatch: 32, maxLength: 8192, stepTokens: 512 };
const costsOf = (...groups: Costs["groups"]): Costs => ({ groups, slotBytes: 0 });
const whole = { blockBytes: 1000, window: undefined };
const windowed = { blockBytes: 5000, window: 512 };

test("a group alone gets all of the memory, and no more than a full batch could use", () => {
  const blocksFor = (bytes: number) => layoutFor(costsOf(whole), demand, bytes).groups[0]!.blocks;
  expect(blocksFor(1_000_500)).toBe(1000);
  expect(blocksFor(1e12)).toBe(32 * 256);
  expect(blocksFor(10)).toBe(1);
  expect(layoutOf(costsOf(whole), demand, 1000).groups).toEqual([
    { blocks: 1000, window: undefined },
  ]);
});

test("a group with a window keeps a window of every 2,048 tokens, and a step", () => {
  const { groups } = layoutOf(costsOf(windowed, whole), demand, 6400);
  const inWindow = { blocks: 100 * 17 + 16, window: 512 };
  expect(groups).toEqual([inWindow, { blocks: 6400, window: undefined }]);
});

test("few blocks are for all groups the same: a window may see all of them", () => {
  const { groups } = layoutOf(costsOf(whole, windowed), demand, 20);
  expect(groups.map(({ blocks }) => blocks)).toEqual([20, 20]);
});

test("where all layers have windows, the widest decides", () => {
  const narrow = { blockBytes: 1000, window: 128 };
  const { groups } = layoutOf(costsOf(narrow, windowed), demand, 6400);
  expect(groups.map(({ blocks }) => blocks)).toEqual([100 * 5 + 16, 6400]);
});

test("what a window saves is there for more tokens, and all together fits", () => {
  const costs = costsOf(whole, windowed);
  const bytes = 8_000_000;
  const layout = layoutFor(costs, demand, bytes);
  const [{ blocks }] = layout.groups as [{ blocks: number }];
  expect(bytesOf(costs, layout)).toBeLessThanOrEqual(bytes);
  expect(bytesOf(costs, layoutOf(costs, demand, blocks + 1))).toBeGreaterThan(bytes);
  expect(blocks).toBeGreaterThan(2 * (bytes / 6000));
});

test("every sequence of a batch has a slot, a quarter is for snapshots, the rest for blocks", () => {
  const costs = { groups: [whole], slotBytes: 10_000 };
  const bytes = 4_000_000;
  const layout = layoutFor(costs, demand, bytes);
  expect(layout.slots).toBe(32 + 100);
  expect(layout.groups[0]!.blocks).toBe(4000 - 1320);
  expect(layoutFor(costs, { ...demand, snapshotBytes: 50_000 }, bytes).slots).toBe(32 + 5);
});

test("where slots are large, fewer sequences run, and half of the memory stays for their tokens", () => {
  const costs = { groups: [whole], slotBytes: 1_000_000 };
  expect(layoutFor(costs, demand, 20_000_000)).toMatchObject({ slots: 10 + 5 });
  expect(layoutFor({ groups: [], slotBytes: 1_000_000 }, demand, 20_000_000).slots).toBe(15 + 5);
  expect(layoutFor(costs, demand, 100).slots).toBe(2);
});
