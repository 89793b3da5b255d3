import { expect, test } from "bun:test";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import { memoryLimit } from "../../src/mlx/memory.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

test("an out-slot is exact for 300,000 calls, long after the JIT has recompiled its caller", () => {
  // Both words of the limit count, and reading a slot clears it: a write that goes astray reads as 0.
  const limit = memoryLimit();
  expect(limit).toBeGreaterThan(2 ** 32);
  let wrong = 0;
  for (let i = 0; i < 300_000; i++) if (memoryLimit() !== limit) wrong += 1;
  expect(wrong).toBe(0);
});

test("a slot is empty again after it was read", () => {
  mlxc.mlx_get_memory_limit(out.view);
  expect(out.take()).toBeGreaterThan(0);
  expect(out.take()).toBe(0);
});
