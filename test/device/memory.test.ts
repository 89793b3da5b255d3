// What a device says of its memory, from what MLX and the system say.
import { expect, test } from "bun:test";
import { metalMemory, roomOf } from "../../src/device/memory.ts";
import { activeMemory, cacheMemory, memoryLimit } from "../../src/mlx/memory.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

test("a Mac's is what its GPU can use well, and what other programs leave", () => {
  const system = { totalBytes: 8e9, availableBytes: 5e9 };
  const { facts } = metalMemory({ max_recommended_working_set_size: 5.7e9 }, () => system);
  expect(facts()).toEqual({
    totalBytes: 8e9,
    usableBytes: 5.7e9,
    availableBytes: 5e9 + cacheMemory(),
    activeBytes: activeMemory(),
  });
  // Where Metal recommends nothing it is what MLX would take.
  const unknown = metalMemory({}, () => system).facts();
  expect(unknown.usableBytes).toBe(Math.min(memoryLimit(), 8e9));
});

test("there is room for a model as far as models that are loaded and other programs leave it", () => {
  const facts = { totalBytes: 16e9, usableBytes: 12e9, availableBytes: 14e9, activeBytes: 0 };
  expect(roomOf(facts)).toBe(12e9);
  expect(roomOf({ ...facts, activeBytes: 5e9 })).toBe(7e9);
  expect(roomOf({ ...facts, availableBytes: 3e9 })).toBe(3e9);
  expect(roomOf({ ...facts, activeBytes: 13e9 })).toBe(0);
});
