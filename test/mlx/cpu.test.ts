// The operations of our own for a CPU against plain arithmetic, and what they refuse. Attention over blocks
// has its values in test/kernels.
import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { openBlas } from "../../ffi/blas.ts";
import { MlxError } from "../../ffi/error.ts";
import { backend, findLibrary } from "../../ffi/native.ts";
import { array, liveArrays, type MlxArray } from "../../src/mlx/array.ts";
import * as cpu from "../../src/mlx/cpu.ts";
import {
  add,
  addmm,
  astype,
  dequantize,
  flatten,
  matmul,
  type Quantization,
  type QuantizedMatrix,
  quantize,
  reshape,
  slice,
  split,
  swapAxes,
  take,
} from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

useMlx();

const random = makeRandom(5);
/** Up to `size`, below and above 0. */
const numbers = (count: number, size = 1) =>
  Float32Array.from({ length: count }, () => (random.below(20_001) / 10_000 - 1) * size);

/** With groups of several sizes. */
const uneven = (count: number) => numbers(count).map((x, i) => x / 2 ** ((i >> 5) % 5));

/** The largest error, relative to the expected value if that is above 1. */
function errorOf(found: MlxArray, expected: ArrayLike<number>): number {
  const numbers = values(found);
  expect(numbers.length).toBe(expected.length);
  let most = 0;
  for (let i = 0; i < numbers.length; i++) {
    const error = Math.abs(numbers[i]! - expected[i]!) / Math.max(1, Math.abs(expected[i]!));
    most = Math.max(most, error);
  }
  return most;
}

function rowsOf(values: Float32Array, width: number): number[][] {
  return Array.from({ length: values.length / width }, (_, row) => [
    ...values.slice(row * width, (row + 1) * width),
  ]);
}

const values = (x: MlxArray) => x.data() as Float32Array;

const joined = (rows: readonly Float32Array[]) =>
  Float32Array.from(rows.flatMap((row) => [...row]));

const silu = (x: number) => x / (1 + Math.exp(-x));
const gelu = (x: number) =>
  0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

describe.skipIf(backend() !== "cpu")("operations of our own, on a CPU", () => {
  for (const kind of ["swiglu", "geglu"] as const) {
    test(`${kind} of halves of rows, of all lengths`, () => {
      using _ = new Scope();
      for (const [rows, width] of [
        [1, 1],
        [3, 7],
        [2, 16],
        [5, 33],
        [40, 1536],
      ] as const) {
        const values = numbers(rows * width * 2, 12);
        const halves = split(array(values, [rows, 2 * width]), 2) as [MlxArray, MlxArray];
        const expected = rowsOf(values, 2 * width).flatMap((row) =>
          row
            .slice(0, width)
            .map((x, i) => (kind === "swiglu" ? silu(x) : gelu(x)) * row[width + i]!),
        );
        expect(errorOf(cpu.gate(kind, ...halves), expected)).toBeLessThan(2e-6);
      }
    });
  }

  test("silu of very large and small numbers, and of NaN", () => {
    using _ = new Scope();
    const values = Float32Array.of(1000, -1000, 88, -88, 0, Number.NaN, Infinity);
    const ones = array(Array(values.length).fill(1));
    const found = cpu.gate("swiglu", array(values), ones).numbers();
    expect(found.map((x) => Math.round(x * 1e6) / 1e6 + 0)).toEqual([
      1000,
      0,
      88,
      0,
      0,
      NaN,
      Infinity,
    ]);
  });

  test("the norm of rows, with a weight and without, in any layout", () => {
    using _ = new Scope();
    for (const [rows, width] of [
      [1, 1],
      [3, 7],
      [4, 64],
      [70, 576],
    ] as const) {
      const [values, weight] = [numbers(rows * width, 3), numbers(width)];
      const normed = (weights: ArrayLike<number> | undefined) =>
        rowsOf(values, width).flatMap((row) => {
          const mean = row.reduce((sum, x) => sum + x * x, 0) / width;
          return row.map((x, i) => (x / Math.sqrt(mean + 1e-5)) * (weights?.[i] ?? 1));
        });
      const x = array(values, [rows, width]);
      expect(errorOf(cpu.rmsNorm(x, array(weight), 1e-5), normed(weight))).toBeLessThan(2e-6);
      expect(errorOf(cpu.rmsNorm(x, undefined, 1e-5), normed(undefined))).toBeLessThan(2e-6);
      // The same numbers, column by column.
      const columns = array(values, [rows, width]);
      const strided = swapAxes(array(transposed(columns), [width, rows]), 0, 1);
      expect(errorOf(cpu.rmsNorm(strided, array(weight), 1e-5), normed(weight))).toBeLessThan(2e-6);
    }
  });

  test("the first of the highest of each row, and the highest", () => {
    using _ = new Scope();
    for (const width of [1, 3, 16, 17, 1000]) {
      const values = numbers(6 * width);
      // Twice the same, at the end of a row.
      values[2 * width - 1] = 5;
      values[Math.max(width, 2 * width - 3)] = 5;
      const { indices, highest } = cpu.best(array(values, [6, width]));
      const rows = rowsOf(values, width);
      expect(indices.numbers()).toEqual(rows.map((row) => row.indexOf(Math.max(...row))));
      expect(highest.numbers()).toEqual(rows.map((row) => Math.max(...row)));
    }
  });

  test("the highest of a row with a NaN is NaN", () => {
    using _ = new Scope();
    const rows = [
      [1, Number.NaN, 3],
      [-Infinity, -2, -Infinity],
      [1, Infinity, 2],
      [2, 3, Number.NaN],
    ];
    const { highest } = cpu.best(array(Float32Array.from(rows.flat()), [4, 3]));
    expect(highest.numbers()).toEqual([Number.NaN, -2, Infinity, Number.NaN]);
  });

  test("the logarithm of the sum of exponentials", () => {
    using _ = new Scope();
    for (const width of [1, 5, 16, 49_152]) {
      const values = numbers(3 * width, 20);
      const expected = rowsOf(values, width).map((row) => {
        const top = row.reduce((a, b) => Math.max(a, b));
        return top + Math.log(row.reduce((sum, x) => sum + Math.exp(x - top), 0));
      });
      const found = cpu.logSumExp(array(values, [3, width]));
      expect(found.shape).toEqual([3, 1]);
      expect(errorOf(found, expected)).toBeLessThan(2e-6);
    }
  });

  test("softmax of rows of all widths, and of what has none", () => {
    using _ = new Scope();
    for (const width of [1, 7, 16, 33, 1000]) {
      const values = numbers(3 * width, 9);
      const expected = Array.from({ length: 3 }, (_, r) => {
        const row = values.slice(r * width, (r + 1) * width);
        const top = row.reduce((a, b) => Math.max(a, b));
        const parts = Array.from(row, (x) => Math.exp(x - top));
        const whole = parts.reduce((a, b) => a + b);
        return parts.map((part) => part / whole);
      }).flat();
      expect(errorOf(cpu.softmax(array(values, [3, width])), expected)).toBeLessThan(2e-6);
    }
    const odd = [-Infinity, 0, 0, NaN, 1, 2, Infinity, 0, 1, -Infinity, -Infinity, -Infinity];
    expect(cpu.softmax(array(odd, [4, 3])).numbers()).toEqual([0, 0.5, 0.5, ...Array(9).fill(NaN)]);
  });

  test("a mask leaves what its bits say", () => {
    using _ = new Scope();
    for (const width of [1, 31, 32, 33, 100]) {
      const values = numbers(2 * width);
      const each = Math.ceil(width / 32);
      const words = Uint32Array.from({ length: 2 * each }, (_, i) => (i + 1) * 0x9e3779b9);
      const expected = Array.from(values, (value, i) => {
        const [row, at] = [Math.floor(i / width), i % width];
        const bit = (words[row * each + (at >> 5)]! >>> (at & 31)) & 1;
        return bit ? value : -Infinity;
      });
      const found = cpu.mask(array(values, [2, width]), array(words, [2, each]));
      expect(found.numbers()).toEqual(expected);
    }
  });

  test("products of few rows, of all sizes, with and without something to add to", () => {
    using _ = new Scope();
    for (const threads of ["1", "2"]) {
      openBlas(findLibrary(), { MLX_SERVE_THREADS: threads });
      for (const rows of [1, 2, 3, 4, 5, 7, 8, 13, 32, 48, 49]) {
        for (const [columns, depth] of [
          [1, 1],
          [3, 5],
          [64, 16],
          [70, 100],
          [130, 1500],
        ] as const) {
          const [x, w, c] = [rows * depth, columns * depth, rows * columns].map((n) => numbers(n));
          const weights = swapAxes(array(w!, [columns, depth]), 0, 1);
          const left = array(x!, [rows, depth]);
          const expected = Array.from({ length: rows * columns }, (_, i) => {
            const [row, column] = [Math.floor(i / columns) * depth, (i % columns) * depth];
            let sum = 0;
            for (let k = 0; k < depth; k++) sum += x![row + k]! * w![column + k]!;
            return sum;
          });
          expect(errorOf(matmul(left, weights), expected)).toBeLessThan(5e-5);
          const added = expected.map((value, i) => value + c![i]!);
          const sum = addmm(array(c!, [rows, columns]), left, weights);
          expect(errorOf(sum, added)).toBeLessThan(5e-5);
        }
      }
    }
    openBlas(findLibrary());
  });

  const packings: Required<Quantization>[] = [4, 8].flatMap((bits) =>
    [32, 64, 128].map((groupSize) => ({ mode: "affine", bits, groupSize }) as const),
  );
  packings.push({ mode: "mxfp4", bits: 4, groupSize: 32 });

  test("matrices are in panels where the processor has integer products of vectors", () => {
    using _ = new Scope();
    const kind = process.env.MLX_SERVE_KERNELS;
    const found = cpu.panels(
      array(
        Uint32Array.from({ length: 2 * 32 * 3 }, (_, i) => i),
        [2, 32, 3],
      ),
    );
    expect(found !== undefined).toBe(kind ? kind === "vnni" : hasKernels("vnni"));
    expect(cpu.panels(array(new Uint32Array(17), [17, 1]))).toBeUndefined();
    if (!found) return;
    expect([found.dtype, found.shape]).toEqual(["uint32", [2, 2, 3, 16]]);
    const expected = Array.from({ length: 2 * 32 * 3 }, (_, i) => {
      const [panel, word, row] = [Math.floor(i / 48), Math.floor(i / 16) % 3, i % 16];
      return (panel * 16 + row) * 3 + word;
    });
    expect(found.numbers()).toEqual(expected);
  });

  /** A matrix as it is, and in panels where there are any: with scales of 32 and of 16 bits, which lose some of them. */
  function layoutsOf(packed: QuantizedMatrix, { mode }: Quantization) {
    const types = mode === "affine" ? (["float32", "float16", "bfloat16"] as const) : [undefined];
    const others = types.flatMap((type) => {
      const rounded = (x: MlxArray) => (type ? astype(x, type) : x);
      const biases = packed.biases && rounded(packed.biases);
      const rows = { weight: packed.weight, scales: rounded(packed.scales), biases };
      const inPanels = (x: MlxArray) => cpu.panels(array(x.data(), x.shape, x.dtype));
      const weight = inPanels(rows.weight);
      if (!weight) return [];
      const scales = inPanels(rows.scales)!;
      const exact = (x: MlxArray) => (type ? astype(x, "float32") : x);
      const plain = {
        weight: rows.weight,
        scales: exact(rows.scales),
        biases: biases && exact(biases),
      };
      return [{ matrix: { weight, scales, biases: biases && inPanels(biases) }, plain }];
    });
    return [{ matrix: packed, plain: packed }, ...others];
  }

  test.each(packings)("products with $mode of $bits bits in groups of $groupSize", (how) => {
    using _ = new Scope();
    const cases = (
      [
        [1, 128],
        [70, 384],
        // Parts of its depth end within groups.
        [131, 1408],
        // More than is unpacked at once.
        [40, 2176],
        // Whole panels: one, some that are read in several places and one more, and more than a strip.
        [16, 128],
        [144, 1408],
        [208, 2176],
      ] as const
    ).flatMap(([columns, depth]) => {
      const packed = quantize(array(uneven(columns * depth), [columns, depth]), how);
      const x = numbers(200 * depth);
      return layoutsOf(packed, how).map(({ matrix, plain }) => {
        const weights = swapAxes(dequantize(plain, how, "float32"), 0, 1);
        return {
          columns,
          depth,
          x,
          matrix,
          expected: values(matmul(array(x, [200, depth]), weights)),
        };
      });
    });
    for (const threads of ["1", "2"]) {
      openBlas(findLibrary(), { MLX_SERVE_THREADS: threads });
      for (const { columns, depth, x, matrix, expected } of cases) {
        for (const rows of [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33, 70, 129, 200]) {
          using _ = new Scope();
          const some = array(x.subarray(0, rows * depth), [rows, depth]);
          const found = cpu.packedProduct(some, matrix, how);
          expect(found.shape).toEqual([rows, columns]);
          expect(errorOf(found, expected.subarray(0, rows * columns))).toBeLessThan(5e-5);
        }
      }
    }
    openBlas(findLibrary());
  });

  test("products with packed matrices, however large their numbers are", () => {
    // Its own, so that those of the other tests stay the same.
    const own = makeRandom(6);
    const numbers = (count: number) =>
      Float32Array.from({ length: count }, () => own.below(20_001) / 10_000 - 1);
    const COLUMNS = 32;
    for (const bits of [4, 8]) {
      for (const depth of [256, 288, 544, 576]) {
        using _ = new Scope();
        const how = { mode: "affine", bits, groupSize: 32 } as const;
        const packed = quantize(array(numbers(COLUMNS * depth), [COLUMNS, depth]), how);
        for (const { matrix, plain } of layoutsOf(packed, how)) {
          const weights = swapAxes(dequantize(plain, how, "float32"), 0, 1);
          for (const rows of [2, 20]) {
            for (const factor of [1, 1e-6, 1e12, 0]) {
              // Of each group the numbers are larger than those of the one before, and those of one are 0.
              const large = numbers(rows * depth).map(
                (x, i) => x * factor * 2 ** ((i >> 5) % 9) * +(i >> 5 !== 3),
              );
              const x = array(large, [rows, depth]);
              const expected = matmul(x, weights).numbers();
              const most = Math.max(...expected.map(Math.abs), Number.MIN_VALUE);
              const found = cpu.packedProduct(x, matrix, how).numbers();
              const errors = found.map((y, i) => Math.abs(y - expected[i]!) / most);
              expect(Math.max(...errors)).toBeLessThan(1e-5);
            }
          }
          for (const wrong of [Number.NaN, Number.POSITIVE_INFINITY]) {
            for (const rows of [1, 20]) {
              const x = array(numbers(rows * depth).fill(wrong, 40, 41), [rows, depth]);
              const found = cpu.packedProduct(x, matrix, how).numbers();
              expect(found.slice(0, COLUMNS).some(Number.isFinite)).toBe(false);
              expect(found.slice(COLUMNS).every(Number.isFinite)).toBe(true);
            }
          }
        }
      }
    }
  });

  test.each(packings)("rows of a table with $mode of $bits bits in groups of $groupSize", (how) => {
    using _ = new Scope();
    for (const rows of [50, 64]) {
      const packed = quantize(array(uneven(rows * 256), [rows, 256]), how);
      const tokens = array(Uint32Array.from([49, 0, 3, 3, 17]));
      for (const { matrix, plain } of layoutsOf(packed, how)) {
        const expected = take(dequantize(plain, how, "float32"), tokens).numbers();
        expect(errorOf(cpu.lookup(tokens, matrix, how), expected)).toBeLessThan(1e-6);
      }
    }
  });

  test("products with packed matrices and what is around them", () => {
    using _ = new Scope();
    const how = { mode: "affine", bits: 4, groupSize: 32 } as const;
    const COLUMNS = 96;
    const packed = quantize(array(numbers(COLUMNS * 96), [COLUMNS, 96]), how);
    const norm = { weight: array(numbers(96)), eps: 1e-5 };
    for (const { matrix, plain } of layoutsOf(packed, how))
      for (const rows of [1, 5, 20, 150]) {
        const weights = swapAxes(dequantize(plain, how, "float32"), 0, 1);
        const x = array(numbers(rows * 96, 3), [rows, 96]);
        const whole = array(numbers(rows * COLUMNS), [rows, COLUMNS]);
        // In any layout.
        const half = swapAxes(array(numbers((rows * COLUMNS) / 2), [COLUMNS / 2, rows]), 0, 1);
        for (const normed of [undefined, norm]) {
          const left = normed ? cpu.rmsNorm(x, normed.weight, normed.eps) : x;
          const product = matmul(left, weights);
          const gated = cpu.gate("swiglu", ...(split(product, 2, -1) as [MlxArray, MlxArray]));
          const check = (options: cpu.ProductOptions, expected: MlxArray) => {
            const found = cpu.packedProduct(x, matrix, how, { norm: normed, ...options });
            expect(found.shape).toEqual(expected.shape);
            // What one half is off by is multiplied by the other, which is up to 40.
            const bar = options.isGated ? 1e-4 : 5e-5;
            expect(errorOf(found, expected.numbers())).toBeLessThan(bar);
          };
          check({}, product);
          check({ residual: whole }, add(product, whole));
          check({ isGated: true }, gated);
          check({ isGated: true, residual: half }, add(gated, half));
        }
      }
  });

  test("products with packed matrices, of rows in any layout", () => {
    using _ = new Scope();
    const how = { mode: "affine", bits: 4, groupSize: 32 } as const;
    const packed = quantize(array(numbers(40 * 64), [40, 64]), how);
    const weights = swapAxes(dequantize(packed, how), 0, 1);
    const strided = swapAxes(array(numbers(64 * 6), [64, 6]), 0, 1);
    const found = cpu.packedProduct(strided, packed, how);
    expect(errorOf(found, matmul(strided, weights).numbers())).toBeLessThan(5e-5);
    const stacked = array(numbers(2 * 3 * 64), [2, 3, 64]);
    const product = cpu.packedProduct(stacked, packed, how);
    expect(product.shape).toEqual([2, 3, 40]);
    expect(errorOf(product, matmul(stacked, weights).numbers())).toBeLessThan(5e-5);
    expect(cpu.packedProduct(array([], [0, 64]), packed, how).numbers()).toEqual([]);
  });

  const EXPERTS = 5;
  /** Which expert each row goes to. */
  const routings: ((row: number) => number)[] = [
    () => 3,
    (row) => (row * 2) % EXPERTS,
    // Most rows to one, and none to some.
    (row) => (row % 8 === 0 ? 4 : 1),
  ];

  /** Matrices as float32 or quantized, and their numbers as float32. */
  function expertMatrices(shape: number[], how: Quantization | undefined) {
    const plain = array(uneven(shape.reduce((a, b) => a * b)), shape);
    if (!how) return [{ matrices: { weight: plain }, weights: plain }];
    return layoutsOf(quantize(plain, how), how).map(({ matrix, plain }) => ({
      matrices: matrix,
      weights: dequantize(plain, how, "float32"),
    }));
  }

  /** Rows of x by all experts, of which a function picks the chosen ones: `each` per row of x. */
  function expertRows(x: MlxArray, weights: MlxArray) {
    const [columns, depth] = weights.shape.slice(1) as [number, number];
    const all = values(matmul(x, swapAxes(reshape(weights, [-1, depth]), 0, 1)));
    return (chosen: readonly number[], each: number): Float32Array[] =>
      chosen.map((expert, i) => {
        const first = (Math.floor(i / each) * EXPERTS + expert) * columns;
        return all.subarray(first, first + columns);
      });
  }

  test.each([undefined, ...packings])("products of rows with their experts: %j", (how) => {
    for (const [columns, depth] of [
      [1, 128],
      [70, 384],
      // Parts of its depth end within groups.
      [35, 1408],
      [48, 384],
    ] as const) {
      using _ = new Scope();
      for (const { matrices, weights } of expertMatrices([EXPERTS, columns, depth], how)) {
        const x = numbers(200 * depth);
        const pick = expertRows(array(x, [200, depth]), weights);
        const cases = [1, 2, 3, 6, 7, 32, 150, 200].flatMap((rows) =>
          routings.map((route) => {
            const chosen = Array.from({ length: rows }, (_, row) => route(row));
            const each = rows % 3 === 0 ? 3 : 1;
            const tokens = rows / each;
            return {
              x: array(x.subarray(0, tokens * depth), [tokens, depth]),
              experts: array(Uint32Array.from(chosen)),
              expected: joined(pick(chosen, each)),
            };
          }),
        );
        for (const threads of ["1", "2"]) {
          openBlas(findLibrary(), { MLX_SERVE_THREADS: threads });
          for (const { x, experts, expected } of cases) {
            const found = cpu.expertProduct(x, experts, matrices, how);
            expect(found.shape).toEqual([expected.length / columns, columns]);
            expect(errorOf(found, expected)).toBeLessThan(5e-5);
          }
        }
      }
    }
    openBlas(findLibrary());
  });

  const formats = [undefined, packings[0], packings.at(-1)];
  test.each(formats)("products with experts, their biases and the gate: %j", (how) => {
    const [columns, depth] = [96, 96];
    for (const rows of [1, 6, 150]) {
      using _ = new Scope();
      for (const { matrices, weights } of expertMatrices([EXPERTS, columns, depth], how)) {
        const bias = numbers(EXPERTS * columns);
        const chosen = Array.from({ length: rows }, () => random.below(2) * 3);
        const x = array(numbers(rows * depth), [rows, depth]);
        const products = expertRows(x, weights)(chosen, 1);
        for (const isBiased of [false, true]) {
          const whole = products.map((row, i) =>
            row.map((value, at) => value + (isBiased ? bias[chosen[i]! * columns + at]! : 0)),
          );
          const half = columns / 2;
          const gated = whole.map((row) =>
            row.slice(0, half).map((value, at) => silu(value) * row[half + at]!),
          );
          for (const isGated of [false, true]) {
            const found = cpu.expertProduct(x, array(Int32Array.from(chosen)), matrices, how, {
              bias: isBiased ? array(bias, [EXPERTS, columns]) : undefined,
              isGated,
            });
            expect(found.shape).toEqual([rows, isGated ? half : columns]);
            expect(errorOf(found, joined(isGated ? gated : whole))).toBeLessThan(5e-5);
          }
        }
      }
    }
  });

  test("products with experts, of rows and indices in any layout, and of none", () => {
    using _ = new Scope();
    const [columns, depth] = [40, 64];
    const [{ matrices, weights }] = expertMatrices([EXPERTS, columns, depth], undefined) as [
      { matrices: { weight: MlxArray }; weights: MlxArray },
    ];
    const x = array(numbers(depth * 6), [depth, 6]);
    const chosen = [4, 0, 3, 3, 1, 0];
    // A column of a matrix.
    const indices = flatten(
      slice(array(Int32Array.from(chosen.flatMap((e) => [2, e])), [6, 2]), 1, 1, 2),
    );
    const found = cpu.expertProduct(swapAxes(x, 0, 1), indices, matrices);
    const expected = expertRows(swapAxes(x, 0, 1), weights)(chosen, 1);
    expect(errorOf(found, joined(expected))).toBeLessThan(5e-5);
    const none = cpu.expertProduct(array([], [0, depth]), array(new Int32Array(0)), matrices);
    expect([none.shape, none.numbers()]).toEqual([[0, columns], []]);
  });
});

/** What a processor must have for them, as Linux calls it. */
const needed: Readonly<Record<string, string>> = {
  avx2: "avx2",
  avx512: "avx512vl",
  vnni: "avx512_vnni",
};

function hasKernels(kind: string): boolean {
  const flag = needed[kind];
  if (process.arch !== "x64" || !flag) return kind === "plain";
  return readFileSync("/proc/cpuinfo", "latin1").includes(` ${flag} `);
}

/** These tests again, and those of attention, with what other processors would run. */
describe.skipIf(backend() !== "cpu" || process.env.MLX_SERVE_KERNELS !== undefined)(
  "the kernels for other processors",
  () => {
    for (const kind of process.arch === "x64" ? ["plain", "avx2", "avx512", "vnni"] : []) {
      // Where this processor is the lesser one, it would run others.
      test.skipIf(!hasKernels(kind))(
        `${kind} give the same`,
        () => {
          const files = ["test/mlx/cpu.test.ts", "test/kernels/attention/paged-attention.test.ts"];
          const some =
            'operations of our own|^kernels on cpu.*("headDim":(8|40|100),|softcap|sinks)';
          const command = [process.execPath, "test", "--timeout=60000", "-t", some, ...files];
          const { exitCode, stderr } = Bun.spawnSync(command, {
            cwd: `${import.meta.dir}/../..`,
            env: { ...process.env, MLX_SERVE_KERNELS: kind },
          });
          expect(exitCode === 0 ? "" : stderr.toString()).toBe("");
        },
        120_000,
      );
    }
  },
);

/** Column by column. */
function transposed(x: MlxArray): Float32Array {
  return Float32Array.from(swapAxes(x, 0, 1).numbers());
}

describe.skipIf(backend() !== "cpu")("operations of our own refuse", () => {
  const some = (...shape: number[]) => array(Array(shape.reduce((a, b) => a * b)).fill(1), shape);
  const ints = (count: number) => array(new Int32Array(count));
  const shorts = (...shape: number[]) =>
    array(Array(shape.reduce((a, b) => a * b)).fill(1), shape, "float16");
  const pools = (...shape: number[]) => ({ keys: some(...shape), values: some(...shape) });
  const good = () => pools(3, 2, 32, 8);
  const heads = {
    normed: false,
    valuesNormed: false,
    sharesKv: false,
    rotaryDims: 0,
    longBeyond: 0,
    sinks: false,
  };
  const scores = { rotaryDims: 0, window: 0, chunked: false, capped: false, sinks: false };
  const all = { ...heads, ...scores };
  const layer = () => some(4 + 24);
  // Two heads of keys and values of 8, four of queries.
  const qkv = () => some(2, 64);
  const tables = () => ints(1 + 2 * 9);

  const decode = (
    x: MlxArray,
    {
      of = good(),
      table = tables(),
      numbers = layer(),
      options = {},
    }: Partial<{
      of: cpu.BlockPools;
      table: MlxArray;
      numbers: MlxArray;
      options: Partial<typeof all>;
    }> = {},
  ) => cpu.decodeBlocks(x, of, table, numbers, { ...all, ...options });

  /** Rows of 64 with 3 columns in 4 bits, but for what is said. */
  const multiply = ({
    x = some(2, 64),
    weight = array(new Uint32Array(24), [3, 8]),
    scales = some(3, 2),
    biases = some(3, 2),
    bits = 4,
    groupSize = 32,
    ...around
  }: Partial<QuantizedMatrix> & Quantization & cpu.ProductOptions & { x?: MlxArray }) =>
    cpu.packedProduct(x, { weight, scales, biases }, { bits, groupSize }, around);

  /** The same in mxfp4. */
  const floats = ({
    scales = array(new Uint8Array(6), [3, 2]),
    groupSize = 32,
  }: {
    scales?: MlxArray;
    groupSize?: number;
  }) => {
    const weight = array(new Uint32Array(24), [3, 8]);
    return cpu.packedProduct(some(2, 64), { weight, scales }, { mode: "mxfp4", groupSize });
  };

  /** Two rows of 64 with 3 columns of 2 experts in 4 bits, but for what is said. */
  const expert = ({
    x = some(2, 64),
    experts = ints(2),
    weight = array(new Uint32Array(48), [2, 3, 8]),
    scales = some(2, 3, 2),
    biases = some(2, 3, 2),
    bits = 4,
    groupSize = 32,
    ...fused
  }: Partial<QuantizedMatrix> &
    Quantization &
    cpu.ExpertOptions & { x?: MlxArray; experts?: MlxArray } = {}) =>
    cpu.expertProduct(x, experts, { weight, scales, biases }, { bits, groupSize }, fused);
  const plainExpert = (x: MlxArray, weight: MlxArray) => cpu.expertProduct(x, ints(2), { weight });

  const refusals: [what: string, op: string, call: () => unknown, says: RegExp][] = [
    ["rows of another type", "serve_decode", () => decode(shorts(2, 64)), /rows are not float32/],
    ["rows with three axes", "serve_decode", () => decode(some(2, 8, 8)), /rows are not float32/],
    [
      "no whole number of heads",
      "serve_decode",
      () => decode(some(2, 63)),
      /no whole number of heads/,
    ],
    ["no queries", "serve_decode", () => decode(some(2, 32)), /no multiple of the KV heads/],
    [
      "query heads that do not divide",
      "serve_decode",
      () => decode(some(2, 56)),
      /no multiple of the KV heads/,
    ],
    [
      "pools of another type",
      "serve_decode",
      () => decode(qkv(), { of: { keys: shorts(3, 2, 32, 8), values: some(3, 2, 32, 8) } }),
      /pools are not float32/,
    ],
    [
      "blocks of another size",
      "serve_decode",
      () => decode(qkv(), { of: pools(3, 2, 16, 8) }),
      /pools are not \(blocks/,
    ],
    [
      "pools that differ",
      "serve_decode",
      () => decode(qkv(), { of: { keys: some(3, 2, 32, 8), values: some(4, 2, 32, 8) } }),
      /differ in shape/,
    ],
    [
      "heads that are too large",
      "serve_decode",
      () => decode(some(1, 3 * 2048), { of: pools(1, 1, 32, 2048) }),
      /too large/,
    ],
    [
      "too many query heads per KV head",
      "serve_decode",
      () => decode(some(1, 102 * 8), { of: pools(1, 1, 32, 8) }),
      /too many query heads/,
    ],
    ["tables of another type", "serve_decode", () => decode(qkv(), { table: some(19) }), /tables/],
    ["too few tables", "serve_decode", () => decode(qkv(), { table: ints(3) }), /too few tables/],
    [
      "too few numbers",
      "serve_decode",
      () => decode(qkv(), { numbers: some(19) }),
      /too few numbers/,
    ],
    [
      "no wavelengths",
      "serve_decode",
      () => decode(qkv(), { options: { rotaryDims: 8 } }),
      /too few numbers/,
    ],
    [
      "no wavelengths of long sequences",
      "serve_decode",
      () => decode(qkv(), { numbers: some(32), options: { rotaryDims: 8, longBeyond: 9 } }),
      /too few numbers/,
    ],
    [
      "half a pair",
      "serve_decode",
      () => decode(qkv(), { options: { rotaryDims: 3 } }),
      /rotary dimensions/,
    ],
    [
      "a window below 0",
      "serve_decode",
      () => decode(qkv(), { options: { window: -1 } }),
      /window/,
    ],
    [
      "no sinks",
      "serve_decode",
      () => decode(qkv(), { options: { sinks: true } }),
      /too few numbers/,
    ],
    [
      "places that are not three each",
      "serve_prepare",
      () => cpu.prepareBlocks(qkv(), good(), ints(5), layer(), heads),
      /three numbers a token/,
    ],
    [
      "places of another type",
      "serve_attend",
      () => cpu.attendBlocks(some(2, 32), good(), tables(), some(6), layer(), scores),
      /places are not int32/,
    ],
    [
      "a pool with two axes",
      "serve_copy_blocks",
      () => cpu.copyBlocks(some(2, 3), ints(2)),
      /four axes/,
    ],
    [
      "half a pair of blocks",
      "serve_copy_blocks",
      () => cpu.copyBlocks(some(1, 1, 1, 1), ints(3)),
      /pairs/,
    ],
    [
      "rows of another type",
      "serve_packed_product",
      () => multiply({ x: shorts(2, 64) }),
      /not float32/,
    ],
    ["a number alone", "serve_packed_product", () => multiply({ x: array(1) }), /no rows/],
    ["other bits", "serve_packed_product", () => multiply({ bits: 5 }), /neither 4 nor 8 bits/],
    [
      "other groups",
      "serve_packed_product",
      () => multiply({ groupSize: 16 }),
      /not of 32, 64 or 128/,
    ],
    [
      "weights of another type",
      "serve_packed_product",
      () => multiply({ weight: some(3, 8) }),
      /rows of uint32/,
    ],
    [
      "stacked weights",
      "serve_packed_product",
      () => multiply({ weight: array(new Uint32Array(24), [1, 3, 8]) }),
      /rows of uint32/,
    ],
    [
      "rows that are too long",
      "serve_packed_product",
      () => multiply({ x: some(2, 96) }),
      /fit the last axis/,
    ],
    [
      "rows of half a group",
      "serve_packed_product",
      () => multiply({ x: some(2, 80) }),
      /fit the last axis/,
    ],
    [
      "weights of other bits",
      "serve_packed_product",
      () => multiply({ bits: 8 }),
      /fit the last axis/,
    ],
    [
      "mxfp4 in other groups",
      "serve_packed_product",
      () => floats({ groupSize: 64 }),
      /4 bits in groups of 32/,
    ],
    [
      "mxfp4 with other scales",
      "serve_packed_product",
      () => floats({ scales: some(3, 2) }),
      /uint8 scale/,
    ],
    [
      "too few scales",
      "serve_packed_product",
      () => multiply({ scales: some(3, 1) }),
      /for each group/,
    ],
    [
      "scales of another type",
      "serve_packed_product",
      () => multiply({ scales: shorts(3, 2) }),
      /for each group/,
    ],
    [
      "biases of other columns",
      "serve_packed_product",
      () => multiply({ biases: some(2, 2) }),
      /for each group/,
    ],
    ["half a column", "serve_packed_product", () => multiply({ isGated: true }), /no halves/],
    [
      "a norm of other rows",
      "serve_packed_product",
      () => multiply({ norm: { weight: some(32), eps: 1 } }),
      /norm does not fit/,
    ],
    [
      "a norm of another type",
      "serve_packed_product",
      () => multiply({ norm: { weight: shorts(64), eps: 1 } }),
      /norm does not fit/,
    ],
    [
      "a residual of other columns",
      "serve_packed_product",
      () => multiply({ residual: some(2, 4) }),
      /residual does not fit/,
    ],
    [
      "a residual of another type",
      "serve_packed_product",
      () => multiply({ residual: shorts(2, 3) }),
      /residual does not fit/,
    ],
    [
      "rows of another type",
      "serve_expert_product",
      () => expert({ x: shorts(2, 64) }),
      /not float32/,
    ],
    ["stacked rows", "serve_expert_product", () => expert({ x: some(1, 2, 64) }), /no matrix/],
    [
      "experts that are no integers",
      "serve_expert_product",
      () => expert({ experts: some(2) }),
      /32-bit integers/,
    ],
    [
      "experts with two axes",
      "serve_expert_product",
      () => expert({ experts: array(new Int32Array(2), [1, 2]) }),
      /32-bit integers/,
    ],
    [
      "an expert too many",
      "serve_expert_product",
      () => expert({ experts: ints(3) }),
      /as many experts for each row/,
    ],
    [
      "experts of no rows",
      "serve_expert_product",
      () => expert({ x: array([], [0, 64]) }),
      /as many experts for each row/,
    ],
    ["other bits", "serve_expert_product", () => expert({ bits: 3 }), /neither 4 nor 8 bits/],
    [
      "other groups",
      "serve_expert_product",
      () => expert({ groupSize: 16 }),
      /not of 32, 64 or 128/,
    ],
    [
      "one quantized matrix",
      "serve_expert_product",
      () => expert({ weight: array(new Uint32Array(24), [3, 8]) }),
      /rows of uint32/,
    ],
    [
      "rows that are too long",
      "serve_expert_product",
      () => expert({ x: some(2, 96) }),
      /fit the last axis/,
    ],
    [
      "scales of fewer experts",
      "serve_expert_product",
      () => expert({ scales: some(1, 3, 2) }),
      /for each group/,
    ],
    ["half a column", "serve_expert_product", () => expert({ isGated: true }), /no halves/],
    [
      "a bias of other columns",
      "serve_expert_product",
      () => expert({ bias: some(2, 4) }),
      /bias does not fit/,
    ],
    [
      "a bias of another type",
      "serve_expert_product",
      () => expert({ bias: shorts(2, 3) }),
      /bias does not fit/,
    ],
    [
      "one plain matrix",
      "serve_expert_product",
      () => plainExpert(some(2, 64), some(3, 64)),
      /matrices of float32/,
    ],
    [
      "plain matrices of another type",
      "serve_expert_product",
      () => plainExpert(some(2, 64), shorts(2, 3, 64)),
      /matrices of float32/,
    ],
    [
      "rows that are too short",
      "serve_expert_product",
      () => plainExpert(some(2, 32), some(2, 3, 64)),
      /fit the last axis/,
    ],
    [
      "halves that differ",
      "serve_gate",
      () => cpu.gate("swiglu", some(2, 3), some(2, 4)),
      /differ/,
    ],
    ["16 bits", "serve_gate", () => cpu.gate("swiglu", shorts(2), some(2)), /not float32/],
    [
      "a weight that does not fit",
      "serve_rms_norm",
      () => cpu.rmsNorm(some(2, 3), some(2), 1),
      /weight/,
    ],
    ["a number alone", "serve_best", () => cpu.best(array(1)), /no rows/],
    ["rows of nothing", "serve_best", () => cpu.best(array([], [2, 0])), /no rows/],
    ["integers", "serve_log_sum_exp", () => cpu.logSumExp(ints(3)), /not float32/],
    ["integers", "serve_softmax", () => cpu.softmax(ints(3)), /not float32/],
    ["words that are no words", "serve_mask", () => cpu.mask(some(2, 40), some(2, 2)), /uint32/],
    [
      "too few words",
      "serve_mask",
      () => cpu.mask(some(2, 40), array(new Uint32Array(2), [2, 1])),
      /a bit for each/,
    ],
  ];
  for (const [what, op, call, says] of refusals) {
    test(`${op}: ${what}`, () => {
      const before = liveArrays();
      let found: unknown;
      {
        using _ = new Scope();
        try {
          call();
        } catch (error) {
          found = error;
        }
      }
      expect(found).toBeInstanceOf(MlxError);
      expect((found as MlxError).op).toBe(op);
      expect((found as MlxError).message).toMatch(says);
      expect(liveArrays()).toBe(before);
    });
  }

  test("pools that are views of others, when they are evaluated", () => {
    using _ = new Scope();
    const strided = () => swapAxes(some(3, 2, 8, 32), 2, 3);
    const found = decode(qkv(), { of: { keys: strided(), values: strided() } });
    expect(() => found.evaluate()).toThrow("an input is not in row order");
  });
});
