import { expect, test } from "bun:test";
import { array, liveArrays } from "../../src/mlx/array.ts";
import {
  activeMemory,
  cacheMemory,
  clearCache,
  memoryLimit,
  peakMemory,
  resetPeakMemory,
  setCacheLimit,
  setMemoryLimit,
  setWiredLimit,
} from "../../src/mlx/memory.ts";
import { add, zeros } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

const mlx = useMlx();
const MIB = 2 ** 20;

/** A GPU lets go of a buffer when the work that used it is done. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await Bun.sleep(1);
}

test("active memory rises with an array and falls when its scope closes", async () => {
  const before = activeMemory();
  resetPeakMemory();
  {
    using _ = new Scope();
    zeros([4 * MIB]).evaluate();
    expect(activeMemory()).toBeGreaterThanOrEqual(before + 16 * MIB);
  }
  await until(() => activeMemory() === before);
  expect(peakMemory()).toBeGreaterThanOrEqual(before + 16 * MIB);
  resetPeakMemory();
  expect(peakMemory()).toBeLessThan(before + 16 * MIB);
});

test("limits are set and read back", () => {
  const before = memoryLimit();
  expect(setMemoryLimit(123 * MIB)).toBe(before);
  expect(memoryLimit()).toBe(123 * MIB);
  expect(setMemoryLimit(before)).toBe(123 * MIB);
  const cache = setCacheLimit(7 * MIB);
  expect(setCacheLimit(cache)).toBe(7 * MIB);
});

test("freed memory goes to the cache, and the cache can be emptied", async () => {
  const limit = setCacheLimit(1024 * MIB);
  {
    using _ = new Scope();
    zeros([4 * MIB]).evaluate();
  }
  // A CPU's allocator keeps nothing.
  if (mlx.backend !== "cpu") await until(() => cacheMemory() >= 16 * MIB);
  clearCache();
  expect(cacheMemory()).toBe(0);
  setCacheLimit(limit);
});

test("wired memory is Metal's: elsewhere the limit is taken and means nothing", () => {
  expect(setWiredLimit(0)).toBeGreaterThanOrEqual(0);
});

test("a million operations leave no handle and no memory behind", () => {
  using _ = new Scope();
  const a = array([1, 2, 3]);
  const run = (count: number) => {
    for (let i = 0; i < count; i += 100) {
      using _ = new Scope();
      for (let j = 0; j < 100; j++) add(a, a);
    }
  };
  run(100_000);
  Bun.gc(true);
  const [handles, resident] = [liveArrays(), process.memoryUsage.rss()];
  run(1_000_000);
  Bun.gc(true);
  expect(liveArrays()).toBe(handles);
  // One leaked handle an operation would be 100 MB and more.
  expect(process.memoryUsage.rss() - resident).toBeLessThan(16 * MIB);
});
