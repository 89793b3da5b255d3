import { expect, test } from "bun:test";
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import { memoryLimit, setMemoryLimit } from "../../src/mlx/memory.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

test("an out-slot is exact for 300,000 calls, long after the JIT has moved things", () => {
  const before = memoryLimit();
  let wrong = 0;
  setMemoryLimit(0);
  // Setting a limit writes the one before to the slot, above and below 32 bits.
  for (let i = 1; i <= 300_000; i++) {
    if (setMemoryLimit(i * 65_537) !== (i - 1) * 65_537) wrong += 1;
  }
  setMemoryLimit(before);
  expect(wrong).toBe(0);
  expect(memoryLimit()).toBe(before);
});

test("a slot is empty again after it was read", () => {
  mlxc.mlx_get_memory_limit(out.view);
  expect(out.take()).toBeGreaterThan(0);
  expect(out.take()).toBe(0);
});
