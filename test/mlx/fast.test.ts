// The fused operations against plain TypeScript in f64, written from their definitions.
import { describe, expect, test } from "bun:test";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import { type Attention, attention, layerNorm, rmsNorm, rope } from "../../src/mlx/fast.ts";
import { swapAxes } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

/** Numbers from -1 to 1 that look random and are the same every time. */
function noise(count: number, seed = 1): number[] {
  let state = seed;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.fround(state / 2 ** 31 - 1);
  });
}

function isClose(found: MlxArray, values: readonly number[], within = 1e-5): void {
  const numbers = found.numbers();
  expect(numbers.length).toBe(values.length);
  for (const [i, value] of values.entries()) {
    const error = Math.abs(numbers[i]! - value) / Math.max(1, Math.abs(value));
    if (!(error <= within)) expect(`element ${i}: ${numbers[i]}`).toBe(`element ${i}: ${value}`);
  }
}

const total = (values: readonly number[]) => values.reduce((n, x) => n + x, 0);

/** Each row of the last axis by itself. */
function byRow(x: readonly number[], width: number, f: (row: number[]) => number[]): number[] {
  return Array.from({ length: x.length / width }, (_, i) =>
    f(x.slice(i * width, (i + 1) * width)),
  ).flat();
}

describe("layerNorm", () => {
  test("takes the mean away, divides by the deviation, and applies a weight and a bias", () => {
    using _ = new Scope();
    const x = array([1, 3, 5, 9], [2, 2]);
    isClose(layerNorm(x, undefined, undefined, 0), [-1, 1, -1, 1]);
    isClose(layerNorm(x, array([2, 3]), array([10, 20]), 0), [8, 23, 8, 23]);
  });
});

describe("rope", () => {
  test("rotates features that are half of them apart, each row by its own position", () => {
    using _ = new Scope();
    const x = array([1, 0, 0, 1, 7, 1, 0, 0, 1, 7], [2, 1, 1, 5]);
    const found = rope(x, 4, array([1, 2]), array(Int32Array.of(0, 3)));
    const [c, s, c2, s2] = [Math.cos(3), Math.sin(3), Math.cos(1.5), Math.sin(1.5)];
    isClose(found, [1, 0, 0, 1, 7, c, -s2, s, c2, 7]);
  });
});

describe("rmsNorm", () => {
  const reference = (
    x: readonly number[],
    width: number,
    eps: number,
    weight?: readonly number[],
  ) =>
    byRow(x, width, (row) => {
      const root = Math.sqrt(total(row.map((v) => v * v)) / width + eps);
      return row.map((v, i) => (v / root) * (weight?.[i] ?? 1));
    });

  test("divides each row by its root mean square", () => {
    using _ = new Scope();
    // 3, 4: the mean square is 12.5.
    const root = Math.sqrt(12.5);
    isClose(rmsNorm(array([3, 4], [1, 2]), undefined, 0), [3 / root, 4 / root]);
    const x = noise(2 * 3 * 8);
    const found = rmsNorm(array(x, [2, 3, 8]), undefined, 1e-5);
    expect(found.shape).toEqual([2, 3, 8]);
    isClose(found, reference(x, 8, 1e-5));
  });

  test("multiplies by a weight, and takes eps inside the root", () => {
    using _ = new Scope();
    const [x, weight] = [noise(3 * 8), noise(8, 2)];
    for (const eps of [1e-6, 0.5])
      isClose(rmsNorm(array(x, [3, 8]), array(weight), eps), reference(x, 8, eps, weight));
  });

  test("keeps 16 bits, and accumulates in more", () => {
    using _ = new Scope();
    const found = rmsNorm(array(Array(1024).fill(3), [1, 1024], "bfloat16"), undefined, 0);
    expect(found.dtype).toBe("bfloat16");
    expect(found.numbers()).toEqual(Array(1024).fill(1));
  });

  test("normalizes the last axis of a view", () => {
    using _ = new Scope();
    const x = noise(4 * 3);
    const transposed = x.map((_, i) => x[(i % 4) * 3 + Math.floor(i / 4)]!);
    const found = rmsNorm(swapAxes(array(x, [4, 3]), 0, 1), undefined, 1e-5);
    isClose(found, reference(transposed, 4, 1e-5));
  });
});

describe("attention", () => {
  type Sizes = { batch: number; heads: number; groups: number; length: number; keys: number };
  type Score = (at: { batch: number; head: number; i: number; j: number }) => number;
  const size = 4;
  const scale = 0.4;

  /** `bias` is added to the score of query i and key j; `sink` is one score more for a head. */
  function reference(
    { batch, heads, groups, length, keys }: Sizes,
    [q, k, v]: readonly [number[], number[], number[]],
    bias: Score,
    sink?: (head: number) => number,
  ): number[] {
    const found: number[] = [];
    for (let b = 0; b < batch; b++)
      for (let head = 0; head < heads; head++) {
        // Heads in a row share the keys and values of one group.
        const group = Math.floor(head / (heads / groups));
        const rowOf = (i: number) => ((b * heads + head) * length + i) * size;
        const keyOf = (j: number) => ((b * groups + group) * keys + j) * size;
        for (let i = 0; i < length; i++) {
          const weights = Array.from({ length: keys }, (_, j) => {
            let score = 0;
            for (let d = 0; d < size; d++) score += q[rowOf(i) + d]! * k[keyOf(j) + d]!;
            return Math.exp(score * scale + bias({ batch: b, head, i, j }));
          });
          const sum = total(weights) + (sink ? Math.exp(sink(head)) : 0);
          for (let d = 0; d < size; d++)
            found.push(total(weights.map((w, j) => (w / sum) * v[keyOf(j) + d]!)));
        }
      }
    return found;
  }

  function compare(
    sizes: Sizes,
    bias: Score,
    options: () => Omit<Attention, "scale">,
    sink?: (head: number) => number,
  ): void {
    using _ = new Scope();
    const { batch, heads, groups, length, keys } = sizes;
    const [ofQ, ofK] = [
      [batch, heads, length, size],
      [batch, groups, keys, size],
    ] as const;
    const count = (shape: readonly number[]) => shape.reduce((n, dim) => n * dim, 1);
    const q = noise(count(ofQ), 1).map((x) => 3 * x);
    const [k, v] = [noise(count(ofK), 2).map((x) => 3 * x), noise(count(ofK), 3)];
    const inputs = [array(q, ofQ), array(k, ofK), array(v, ofK)] as const;
    const found = attention(...inputs, { scale, ...options() });
    expect([found.shape, found.dtype]).toEqual([[...ofQ], "float32"]);
    isClose(found, reference(sizes, [q, k, v], bias, sink));
  }

  // Prefill, a chunk behind others, one token; each head alone, and heads in groups.
  const sizes: [string, Sizes][] = [
    ["all positions", { batch: 2, heads: 2, groups: 2, length: 5, keys: 5 }],
    ["the last positions", { batch: 1, heads: 2, groups: 2, length: 3, keys: 7 }],
    ["one position", { batch: 2, heads: 2, groups: 2, length: 1, keys: 6 }],
    ["grouped heads", { batch: 2, heads: 6, groups: 2, length: 3, keys: 5 }],
    ["one group for all heads", { batch: 1, heads: 4, groups: 1, length: 1, keys: 9 }],
  ];

  describe.each(sizes)("of %s", (_name, each) => {
    const { batch, heads, length, keys } = each;

    test("sees all keys without a mask", () => {
      compare(
        each,
        () => 0,
        () => ({}),
      );
    });

    test("sees no later key when it is causal", () => {
      // The last query stands beside the last key.
      const bias: Score = ({ i, j }) => (j <= i + keys - length ? 0 : -Infinity);
      compare(each, bias, () => ({ mask: "causal" }));
    });

    test("sees what a bool mask says, the same for every head", () => {
      const seen = (b: number, i: number, j: number) => j === 0 || (i + 2 * j + b) % 3 !== 0;
      const flags: number[] = [];
      for (let b = 0; b < batch; b++)
        for (let i = 0; i < length; i++)
          for (let j = 0; j < keys; j++) flags.push(seen(b, i, j) ? 1 : 0);
      const bias: Score = (at) => (seen(at.batch, at.i, at.j) ? 0 : -Infinity);
      compare(each, bias, () => ({ mask: array(flags, [batch, 1, length, keys], "bool") }));
    });

    test("adds a mask to the scores, one a head", () => {
      const added = noise(batch * heads * length * keys, 8);
      const bias: Score = (at) =>
        added[((at.batch * heads + at.head) * length + at.i) * keys + at.j]!;
      compare(each, bias, () => ({ mask: array(added, [batch, heads, length, keys]) }));
    });

    test("adds one mask to all", () => {
      const added = noise(length * keys, 9).map((x) => (x > 0.7 ? -Infinity : x));
      for (let i = 0; i < length; i++) added[i * keys] = 0;
      const bias: Score = ({ i, j }) => added[i * keys + j]!;
      compare(each, bias, () => ({ mask: array(added, [length, keys]) }));
    });

    test("lets a sink take its share, with and without a mask", () => {
      const sinks = Array.from({ length: heads }, (_, head) => head - 0.5);
      const sink = (head: number) => sinks[head]!;
      compare(
        each,
        () => 0,
        () => ({ sinks: array(sinks) }),
        sink,
      );
      const bias: Score = ({ i, j }) => (j <= i + keys - length ? 0 : -Infinity);
      compare(each, bias, () => ({ mask: "causal", sinks: array(sinks) }), sink);
    });
  });

  test("keeps 16 bits", () => {
    using _ = new Scope();
    const q = array(noise(8), [1, 1, 2, 4], "bfloat16");
    const found = attention(q, q, q, { scale: 0.5, mask: "causal" });
    expect(found.dtype).toBe("bfloat16");
    // The first query sees its own key alone.
    expect(found.numbers().slice(0, 4)).toEqual(q.numbers().slice(0, 4));
  });
});
