import { expect, test } from "bun:test";
import { join } from "node:path";
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
import { zeros } from "../../src/mlx/ops.ts";
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
  // In a process of its own: what other tests have left to the garbage collector would show here.
  const program = join(import.meta.dir, "../support/million-operations.ts");
  const { stdout } = Bun.spawnSync([process.execPath, program]);
  const left = JSON.parse(stdout.toString());
  expect(left.handles).toBe(0);
  // One leaked handle an operation would be 100 MB and more.
  expect(left.bytes).toBeLessThan(16 * MIB);
}, 30_000);
