// Random numbers: by key, reproducible, and distributed as they say. Every seed is fixed, so a test
// that passes passes always; the bounds are five standard errors of what is measured.
import { describe, expect, test } from "bun:test";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import { reshape, slice } from "../../src/mlx/ops.ts";
import { bits, categorical, gumbel, key, normal, splitKey, uniform } from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const draws: Record<string, (from: MlxArray) => MlxArray> = {
  bits: (from) => bits(from, [100]),
  uniform: (from) => uniform(from, [100]),
  normal: (from) => normal(from, [100]),
  gumbel: (from) => gumbel(from, [100]),
  categorical: (from) => categorical(from, array(Array(100 * 50).fill(0), [100, 50])),
  splitKey: (from) => splitKey(from, 50),
};

describe("threefry", () => {
  const rotations = [
    [13, 15, 26, 6],
    [17, 29, 16, 24],
  ] as const;

  /** Threefry-2x32 of 20 rounds (Salmon et al., 2011): two words of counter under two of key. */
  function threefry(seed: readonly [number, number], counter: [number, number]): [number, number] {
    const keys = [seed[0], seed[1], seed[0] ^ seed[1] ^ 0x1bd11bda];
    let [x, y] = [(counter[0] + keys[0]!) >>> 0, (counter[1] + keys[1]!) >>> 0];
    for (let round = 0; round < 5; round++) {
      for (const turn of rotations[round % 2]!) {
        x = (x + y) >>> 0;
        y = (((y << turn) | (y >>> (32 - turn))) ^ x) >>> 0;
      }
      x = (x + keys[(round + 1) % 3]!) >>> 0;
      y = (y + keys[(round + 2) % 3]! + round + 1) >>> 0;
    }
    return [x, y];
  }

  /** MLX's counters: i beside i + half; the middle one of an odd count goes alone, beside 0. */
  function words(seed: bigint, count: number): number[] {
    const halves = [Number(seed >> 32n), Number(seed & 0xffffffffn)] as const;
    const half = Math.floor(count / 2);
    const odd = count % 2;
    const found = Array<number>(count);
    for (let i = 0; i < half; i++) {
      const second = i + half + odd;
      [found[i], found[second]] = threefry(halves, [i, second]) as [number, number];
    }
    if (odd) found[half] = threefry(halves, [half, 0])[0];
    return found;
  }

  test("of the reference agrees with the paper's known answers", () => {
    expect(threefry([0, 0], [0, 0])).toEqual([0x6b200159, 0x99ba4efe]);
    const ones = 0xffffffff;
    expect(threefry([ones, ones], [ones, ones])).toEqual([0x1cb996fc, 0xbb002be7]);
    const [counter, seed] = [
      [0x243f6a88, 0x85a308d3],
      [0x13198a2e, 0x03707344],
    ] as [[number, number], [number, number]];
    expect(threefry(seed, counter)).toEqual([0xc4923a9c, 0x483df7a0]);
  });

  test.each([0n, 1n, 12345n, 2n ** 32n + 7n, 2n ** 64n - 1n])(
    "makes the bits of seed %s",
    (seed) => {
      using _ = new Scope();
      for (const count of [1, 2, 5, 8, 101])
        expect(bits(key(seed), [count]).numbers()).toEqual(words(seed, count));
      const bytes = new Uint8Array(Uint32Array.from(words(seed, 3)).buffer);
      expect(bits(key(seed), [12], 1).data()).toEqual(bytes);
      expect(bits(key(seed), [6], 2).data()).toEqual(new Uint16Array(bytes.buffer));
    },
  );

  test("makes the uniform numbers", () => {
    using _ = new Scope();
    const expected = words(42n, 64).map((word) => word / (2 ** 32 - 1));
    for (const [i, value] of uniform(key(42), [64]).numbers().entries())
      expect(Math.abs(value - expected[i]!)).toBeLessThan(1e-7);
  });
});

describe("a key", () => {
  test("is the two halves of its seed", () => {
    using _ = new Scope();
    const halves = (seed: number | bigint) => key(seed).numbers();
    expect(halves(7)).toEqual([0, 7]);
    expect(halves(2 ** 40 + 5)).toEqual([256, 5]);
    expect(halves(2n ** 64n - 1n)).toEqual([4294967295, 4294967295]);
    expect([key(7).shape, key(7).dtype]).toEqual([[2], "uint32"]);
  });

  for (const [name, draw] of Object.entries(draws)) {
    test(`gives the same from ${name} each time, and another key does not`, () => {
      using _ = new Scope();
      const [first, again, other, high] = [7, 7, 8, 7 + 2 ** 32].map((seed) =>
        draw(key(seed)).numbers(),
      );
      expect(again).toEqual(first!);
      expect(other).not.toEqual(first!);
      expect(high).not.toEqual(first!);
    });
  }

  test("splits into rows that are keys of their own", () => {
    using _ = new Scope();
    const rows = splitKey(key(3), 8);
    expect([rows.shape, rows.dtype]).toEqual([[8, 2], "uint32"]);
    const keys = [key(3), ...Array.from({ length: 8 }, (_, i) => row(rows, i))];
    const streams = keys.map((one) => uniform(one, [4000]).numbers());
    // The correlation of two independent streams has the standard error 1 / sqrt(n).
    for (const [i, a] of streams.entries())
      for (const b of streams.slice(i + 1))
        expect(Math.abs(correlation(a, b))).toBeLessThan(5 / Math.sqrt(4000));
  });

  test("splits the same way each time", () => {
    using _ = new Scope();
    expect(splitKey(key(3), 4).numbers()).toEqual(splitKey(key(3), 4).numbers());
  });

  function row(rows: MlxArray, i: number): MlxArray {
    return reshape(slice(rows, 0, i, i + 1), [2]);
  }
});

describe("a distribution", () => {
  const count = 20000;

  /** That mean and variance are these, within five standard errors for a kurtosis up to 5.4. */
  function hasMoments(values: readonly number[], mean: number, variance: number): void {
    const found = moments(values);
    const error = Math.sqrt(variance / values.length);
    expect(Math.abs(found.mean - mean)).toBeLessThan(5 * error);
    const errorOfVariance = variance * Math.sqrt(4.4 / values.length);
    expect(Math.abs(found.variance - variance)).toBeLessThan(5 * errorOfVariance);
  }

  /** From `low` up to but without `high`. */
  function staysWithin(values: readonly number[], low: number, high: number): void {
    expect(Math.min(...values)).toBeGreaterThanOrEqual(low);
    expect(Math.max(...values)).toBeLessThan(high);
  }

  test("of bits fills each width evenly", () => {
    using _ = new Scope();
    const types: [1 | 2 | 4, Dtype][] = [
      [1, "uint8"],
      [2, "uint16"],
      [4, "uint32"],
    ];
    for (const [width, dtype] of types) {
      const found = bits(key(1), [100, 200], width);
      expect([found.dtype, found.shape]).toEqual([dtype, [100, 200]]);
      const range = 2 ** (8 * width);
      // A discrete uniform distribution over the whole range.
      hasMoments(found.numbers(), (range - 1) / 2, (range ** 2 - 1) / 12);
    }
    expect(bits(key(1), [0]).numbers()).toEqual([]);
  });

  test("that is uniform stays in its range", () => {
    using _ = new Scope();
    const plain = uniform(key(1), [count]);
    expect(plain.dtype).toBe("float32");
    hasMoments(plain.numbers(), 0.5, 1 / 12);
    staysWithin(plain.numbers(), 0, 1);
    const wide = uniform(key(1), [count], { low: -3, high: 5 }).numbers();
    hasMoments(wide, 1, 64 / 12);
    staysWithin(wide, -3, 5);
    const halves = uniform(key(1), [count], { dtype: "bfloat16" });
    expect(halves.dtype).toBe("bfloat16");
    expect(Math.max(...halves.numbers())).toBeLessThanOrEqual(1);
  });

  test("that is normal has its mean and deviation", () => {
    using _ = new Scope();
    const floats = normal(key(1), [count]);
    expect(floats.dtype).toBe("float32");
    const plain = floats.numbers();
    hasMoments(plain, 0, 1);
    // 68.27 % within one deviation, 95.45 % within two.
    for (const [deviations, share] of [
      [1, 0.6827],
      [2, 0.9545],
    ] as const) {
      const found = plain.filter((x) => Math.abs(x) < deviations).length / count;
      expect(Math.abs(found - share)).toBeLessThan(5 * Math.sqrt((share * (1 - share)) / count));
    }
    hasMoments(normal(key(2), [count], { mean: 10, deviation: 3 }).numbers(), 10, 9);
    expect(normal(key(1), [2, 3], { dtype: "bfloat16" })).toMatchObject({
      dtype: "bfloat16",
      shape: [2, 3],
    });
  });

  test("of Gumbel has Euler's constant as its mean", () => {
    using _ = new Scope();
    const floats = gumbel(key(1), [count]);
    expect(floats.dtype).toBe("float32");
    hasMoments(floats.numbers(), 0.5772156649, Math.PI ** 2 / 6);
    expect(gumbel(key(1), [2], "float16").dtype).toBe("float16");
  });

  test("that is categorical follows its probabilities", () => {
    using _ = new Scope();
    const probabilities = [0.5, 0.25, 0.15, 0.1];
    // Any constant may be added to logits.
    const logits = probabilities.map((p) => Math.log(p) + 3);
    const rows = array(Array(count).fill(logits).flat(), [count, 4]);
    const drawn = categorical(key(5), rows);
    expect([drawn.dtype, drawn.shape]).toEqual(["uint32", [count]]);
    const counts = probabilities.map(() => 0);
    for (const index of drawn.numbers()) counts[index]! += 1;
    for (const [i, p] of probabilities.entries())
      expect(Math.abs(counts[i]! / count - p)).toBeLessThan(5 * Math.sqrt((p * (1 - p)) / count));
  });

  test("that is categorical runs along the axis it is given", () => {
    using _ = new Scope();
    // Column 0 allows row 2 alone, column 1 row 0 alone.
    const never = -Infinity;
    const logits = array([never, 0, never, never, 0, never], [3, 2]);
    expect(categorical(key(0), logits, 0).numbers()).toEqual([2, 0]);
    expect(categorical(key(0), logits, -2).numbers()).toEqual([2, 0]);
  });

  test.each(["float32", "bfloat16"] as const)("never draws -Infinity, of %s", (dtype) => {
    using _ = new Scope();
    const row = [-Infinity, 2, -Infinity, -30, 1, -Infinity];
    const rows = array(Array(5000).fill(row).flat(), [5000, row.length], dtype);
    const drawn = new Set(categorical(key(9), rows).numbers());
    expect(drawn).toEqual(new Set([1, 4]));
  });
});

function moments(values: readonly number[]): { mean: number; variance: number } {
  const mean = values.reduce((n, x) => n + x, 0) / values.length;
  const variance = values.reduce((n, x) => n + (x - mean) ** 2, 0) / values.length;
  return { mean, variance };
}

function correlation(a: readonly number[], b: readonly number[]): number {
  const [left, right] = [moments(a), moments(b)];
  const shared = a.reduce((n, x, i) => n + (x - left.mean) * (b[i]! - right.mean), 0) / a.length;
  return shared / Math.sqrt(left.variance * right.variance);
}
