// Random numbers: by key, reproducible, and normally distributed. The seeds are fixed, so the result
// never varies; the bounds are five standard errors of what is measured.
import { expect, test } from "bun:test";
import { key, normal } from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

test("a key is the two halves of its seed", () => {
  using _ = new Scope();
  const halves = (seed: number | bigint) => key(seed).numbers();
  expect(halves(7)).toEqual([0, 7]);
  expect(halves(2 ** 40 + 5)).toEqual([256, 5]);
  expect(halves(2n ** 64n - 1n)).toEqual([4294967295, 4294967295]);
  expect([key(7).shape, key(7).dtype]).toEqual([[2], "uint32"]);
});

test("the same key gives the same numbers, and another key does not", () => {
  using _ = new Scope();
  const [first, again, other, high] = [7, 7, 8, 7 + 2 ** 32].map((seed) =>
    normal(key(seed), [100]).numbers(),
  );
  expect(again).toEqual(first!);
  expect(other).not.toEqual(first!);
  expect(high).not.toEqual(first!);
});

test("normal numbers have mean 0 and deviation 1", () => {
  using _ = new Scope();
  const count = 20000;
  const found = normal(key(1), [100, 200]);
  expect([found.dtype, found.shape]).toEqual(["float32", [100, 200]]);
  const values = found.numbers();
  const mean = values.reduce((n, x) => n + x, 0) / count;
  const variance = values.reduce((n, x) => n + (x - mean) ** 2, 0) / count;
  expect(Math.abs(mean)).toBeLessThan(5 / Math.sqrt(count));
  expect(Math.abs(variance - 1)).toBeLessThan(5 * Math.sqrt(2 / count));
  // 68.27 % within one deviation, 95.45 % within two.
  for (const [deviations, share] of [
    [1, 0.6827],
    [2, 0.9545],
  ] as const) {
    const within = values.filter((x) => Math.abs(x) < deviations).length / count;
    expect(Math.abs(within - share)).toBeLessThan(5 * Math.sqrt((share * (1 - share)) / count));
  }
});
