// Products of rows with a matrix against MLX's own in float32: on an NVIDIA GPU, or some of them emulated by a CPU.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { type Gpu, gpuFacts } from "../../../src/kernels/host/gpu.ts";
import { denseShape } from "../../../src/kernels/product/dense-product.ts";
import { WIDE_ROW_TILES } from "../../../src/kernels/product/expert-product.ts";
import type { Matrix } from "../../../src/kernels/product/matrix.ts";
import { type ExpertPlan, fitsExperts, Products } from "../../../src/kernels/product/product.ts";
import { fitsPrompt, PromptProducts } from "../../../src/kernels/product/prompt-product.ts";
import { groupShape } from "../../../src/kernels/product/warpgroup-product.ts";
import { array, type MlxArray } from "../../../src/mlx/array.ts";
import { rmsNorm } from "../../../src/mlx/fast.ts";
import type { MakeKernel } from "../../../src/mlx/kernel.ts";
import {
  add,
  astype,
  dequantize,
  matmul,
  multiply,
  quantize,
  reshape,
  sigmoid,
  split,
  swapAxes,
  take,
} from "../../../src/mlx/ops.ts";
import { key, normal } from "../../../src/mlx/random.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { checkHeads } from "../../support/checked-heads.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { ampere, hopper } from "../../support/gpus.ts";
import { useMlx } from "../../support/mlx.ts";

const mlx = useMlx();
const hasCuda = backend() === "cuda";

const makeProducts = (isHopper = true) =>
  hasCuda
    ? new Products(isHopper ? gpuFacts(mlx.device) : ampere)
    : new Products(isHopper ? hopper : ampere, emulatedKernel);

const exact = (x: MlxArray) => astype(x, "float32");

/** The largest difference, as a part of the largest number. */
function difference(found: MlxArray, expected: MlxArray): number {
  const [a, b] = [exact(found).numbers(), expected.numbers()];
  expect(a.length).toBe(b.length);
  const largest = b.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0) / largest;
}

const halves = ["bfloat16", "float16"] as const;
type Half = (typeof halves)[number];

const random = (dtype: Half, seed: number, ...shape: number[]) =>
  astype(normal(key(seed), shape), dtype);

function gated(product: MlxArray): MlxArray {
  const [gate, up] = split(product, 2);
  return multiply(multiply(gate!, sigmoid(gate!)), up!);
}

/** Compares the product, alone and with what can be around it, with that of the same matrix in float32. */
function expectProducts(
  matrix: Matrix,
  dense: MlxArray,
  dtype: Half,
  rows: number,
  products = makeProducts(),
): void {
  const [outputs, inputs] = dense.shape as [number, number];
  const x = random(dtype, 1, rows, inputs);
  const residual = random(dtype, 3, rows, outputs);
  const norm = { weight: random(dtype, 4, inputs), eps: 1e-6 };
  const transposed = swapAxes(exact(dense), 0, 1);
  const plain = matmul(exact(x), transposed);
  const normed = matmul(rmsNorm(exact(x), exact(norm.weight), norm.eps), transposed);
  // Packed weights are rounded once more.
  const most = dtype === "float16" ? 0.002 : matrix.kind === "packed" ? 0.015 : 0.01;
  const close = (found: MlxArray, expected: MlxArray) =>
    expect(difference(found, expected)).toBeLessThan(most);
  close(products.product(x, matrix, {}), plain);
  close(products.product(x, matrix, { residual }), add(plain, exact(residual)));
  close(products.product(x, matrix, { norm }), normed);
  close(products.product(x, matrix, { norm, isGated: true }), gated(normed));
  products.free();
}

/** Each row by the matrix of its expert; some experts have many rows, some none. */
function expectExperts(
  matrix: Matrix,
  dense: MlxArray,
  dtype: Half,
  { tokens, each }: { tokens: number; each: number },
): ExpertPlan {
  const [experts, outputs, inputs] = dense.shape as [number, number, number];
  const rows = tokens * each;
  const chosen = Uint32Array.from({ length: rows }, (_, i) => ((i * i) % 7) % (experts - 1));
  const x = random(dtype, 1, tokens, inputs);
  const products = makeProducts();
  expect(fitsExperts(matrix)).toBe(true);
  const rowExperts = array(chosen);
  const plan = products.plan(rowExperts, tokens, matrix)!;
  // As an MLP's second product asks for it, with a row for each.
  expect(products.plan(rowExperts, rows, matrix)).toBe(plan);
  const all = matmul(exact(x), swapAxes(exact(dense), 1, 2)); // (E, tokens, N)
  const own = Int32Array.from(chosen, (expert, i) => expert * tokens + Math.floor(i / each));
  const plain = take(reshape(all, [experts * tokens, outputs]), array(own), 0);
  const most = dtype === "float16" ? 0.002 : matrix.kind === "packed" ? 0.015 : 0.01;
  expect(difference(products.experts(x, matrix, plan, false), plain)).toBeLessThan(most);
  expect(difference(products.experts(x, matrix, plan, true), gated(plain))).toBeLessThan(most);
  products.free();
  return plan;
}

describe.skipIf(hasCuda)("products, emulated", () => {
  for (const [bits, tokens, each, outputs] of [
    [16, 1, 2, 64],
    [16, 1, 5, 128],
    [4, 1, 3, 64],
    [16, 3, 2, 64],
    [16, 30, 3, 64],
    [16, 50, 4, 128],
    [4, 5, 2, 64],
  ] as const) {
    test(`of ${tokens} rows with ${each} experts each, ${bits} bits`, () => {
      using _ = new Scope();
      const weight = random("bfloat16", 2, 4, outputs, 256);
      if (bits === 16) {
        expectExperts({ kind: "dense", weight }, weight, "bfloat16", { tokens, each });
        return;
      }
      const quantization = { mode: "affine", groupSize: 32, bits } as const;
      const matrix = quantize(weight, quantization);
      const dense = dequantize(matrix, quantization, "bfloat16");
      expectExperts({ kind: "packed", matrix, quantization }, dense, "bfloat16", { tokens, each });
    }, 60_000);
  }

  // A row of the matrix for a warp, with lanes behind its end, and shared by two warps and by four; groups that take turns.
  for (const [dtype, outputs, inputs] of [
    ["bfloat16", 128, 352],
    ["float16", 64, 2304],
    ["bfloat16", 64, 8192],
    ["bfloat16", 2304, 2304],
  ] as const) {
    test(`of one row of ${inputs} with ${outputs} dense ones, ${dtype}`, () => {
      using _ = new Scope();
      const weight = random(dtype, 2, outputs, inputs);
      const matrix = { kind: "dense", weight } as const;
      expectProducts(matrix, weight, dtype, 1);
    }, 60_000);
  }

  // By warpgroups: clusters of four and two, none, stages that are filled again, groups of two warpgroups, rows that others finish.
  for (const [dtype, rows, outputs, inputs, shape] of [
    ["bfloat16", 17, 64, 512, { rows: 32, warpgroups: 1, shares: 4, stages: 2 }],
    ["float16", 64, 128, 4096, { rows: 64, warpgroups: 1, shares: 4, stages: 11 }],
    ["bfloat16", 90, 64, 512, { rows: 96, warpgroups: 1, shares: 4, stages: 2 }],
    ["bfloat16", 128, 128, 384, { rows: 128, warpgroups: 1, shares: 2, stages: 3 }],
    ["bfloat16", 33, 128, 384, { rows: 64, warpgroups: 1, shares: 2, stages: 3 }],
    ["bfloat16", 30, 64, 64 * 15, { rows: 32, warpgroups: 1, shares: 1, stages: 12 }],
    ["bfloat16", 20, 8704, 128, { rows: 32, warpgroups: 2, shares: 1, stages: 2 }],
  ] as const) {
    test(`of ${rows} rows of ${inputs} with ${outputs} dense ones, ${dtype}`, () => {
      using _ = new Scope();
      const weight = random(dtype, 2, outputs, inputs);
      expect(denseShape(hopper, { rows, columns: outputs, inputs })).toEqual(shape);
      expectProducts({ kind: "dense", weight }, weight, dtype, rows);
    }, 60_000);
  }

  // Lanes behind the end of a row of the matrix, several rows for a warp, and a row shared by two warps and by eight.
  for (const [bits, outputs, inputs] of [
    [4, 2 * 8448, 384],
    [8, 64, 1024],
    [8, 64, 5120],
    [4, 64, 8448],
  ] as const) {
    test(`of one row of ${inputs} with ${outputs} of ${bits} bits`, () => {
      using _ = new Scope();
      const quantization = { mode: "affine", groupSize: 64, bits } as const;
      const matrix = quantize(random("bfloat16", 2, outputs, inputs), quantization);
      const dense = dequantize(matrix, quantization, "bfloat16");
      expectProducts({ kind: "packed", matrix, quantization }, dense, "bfloat16", 1);
    }, 60_000);
  }

  // By streams: spans of a quarter of a step and of two, numbers of steps that are odd, slots that are filled again, and more
  // turns than results are kept of.
  for (const [bits, groupSize, dtype, outputs, inputs, multiprocessors] of [
    [4, 32, "bfloat16", 512, 2048, 2],
    [4, 64, "float16", 512, 2048, 2],
    [4, 128, "bfloat16", 128, 640, 1],
    [8, 32, "float16", 64, 448, 1],
    [8, 128, "bfloat16", 64, 1152, 1],
  ] as const) {
    test(`of one row of ${inputs} with ${outputs} of ${bits} bits in groups of ${groupSize}, streamed`, () => {
      using _ = new Scope();
      const quantization = { mode: "affine", groupSize, bits } as const;
      const matrix = quantize(random(dtype, 2, outputs, inputs), quantization);
      const dense = dequantize(matrix, quantization, dtype);
      const names = new Set<string>();
      const make: MakeKernel = (language, source) => {
        names.add(source.name);
        return emulatedKernel(language, source);
      };
      const products = new Products({ ...hopper, multiprocessors }, make);
      expectProducts({ kind: "packed", matrix, quantization }, dense, dtype, 1, products);
      expect([...names].join()).toContain("streamed_vector");
    }, 60_000);
  }

  // More rounds than a CTA loads residuals for.
  test.each([16, 4])(
    "of one row with a norm and a residual on a GPU with one SM, %i bits",
    (bits) => {
      using _ = new Scope();
      const quantization = { mode: "affine", groupSize: 64, bits } as const;
      const weight = random("float16", 2, 832, 256);
      const packed = bits === 4 ? quantize(weight, quantization) : undefined;
      const dense = packed ? dequantize(packed, quantization, "float16") : weight;
      const matrix: Matrix = packed
        ? { kind: "packed", matrix: packed, quantization }
        : { kind: "dense", weight };
      const [x, residual] = [random("float16", 1, 1, 256), random("float16", 3, 1, 832)];
      const norm = { weight: random("float16", 4, 256), eps: 1e-6 };
      const normed = rmsNorm(exact(x), exact(norm.weight), norm.eps);
      const expected = add(matmul(normed, swapAxes(exact(dense), 0, 1)), exact(residual));
      const products = new Products({ ...ampere, multiprocessors: 1 }, emulatedKernel);
      const found = products.product(x, matrix, { norm, residual });
      expect(difference(found, expected)).toBeLessThan(0.002);
      products.free();
    },
    60_000,
  );

  test("of numbers of the token that are far from 1", () => {
    using _ = new Scope();
    const quantization = { mode: "affine", groupSize: 64, bits: 4 } as const;
    const matrix = quantize(random("bfloat16", 2, 64, 1024), quantization);
    const transposed = swapAxes(dequantize(matrix, quantization, "float32"), 0, 1);
    // From the smallest to the largest that are usual, all in one row.
    const powers = Float32Array.from({ length: 1024 }, (_, i) => 2 ** ((i % 61) - 30));
    const x = astype(multiply(normal(key(1), [1, 1024]), array(powers, [1, 1024])), "bfloat16");
    const products = makeProducts();
    for (const times of [1, 2 ** -90, 2 ** 60]) {
      const scaled = astype(multiply(exact(x), array(Float32Array.of(times))), "bfloat16");
      const found = products.product(scaled, { kind: "packed", matrix, quantization }, {});
      expect(difference(found, matmul(exact(scaled), transposed))).toBeLessThan(0.01);
    }
    products.free();
  }, 60_000);

  // Tiles that are full, nearly empty, and of one warpgroup alone; more steps than stages.
  for (const [dtype, tokens, each] of [
    ["bfloat16", 50, 4],
    ["float16", 200, 1],
  ] as const) {
    test(`of ${tokens} rows with ${each} experts each in wide tiles, ${dtype}`, () => {
      using _ = new Scope();
      const weight = random(dtype, 2, 3, 512, 448);
      const plan = expectExperts({ kind: "dense", weight }, weight, dtype, { tokens, each });
      expect(plan.rowTiles).toBe(WIDE_ROW_TILES);
    }, 60_000);
  }

  test("of experts in wide tiles only where they are whole and on Hopper", () => {
    using _ = new Scope();
    const chosen = array(new Uint32Array(256));
    const rowTiles = (gpu: Gpu, ...shape: number[]) => {
      const products = new Products(gpu, emulatedKernel);
      const weight = random("bfloat16", 2, ...shape);
      const plan = products.plan(chosen, 128, { kind: "dense", weight })!;
      products.free();
      return plan.rowTiles;
    };
    expect(rowTiles(hopper, 3, 256, 64)).toBe(WIDE_ROW_TILES);
    expect(rowTiles(ampere, 3, 256, 64)).toBe(4);
    expect(rowTiles(hopper, 4, 256, 64)).toBe(4);
    expect(rowTiles(hopper, 3, 128, 64)).toBe(4);
    expect(rowTiles(hopper, 3, 256, 96)).toBe(4);
  }, 60_000);

  test("of columns that are no multiple of 64", () => {
    using _ = new Scope();
    const quantization = { mode: "affine", groupSize: 32, bits: 4 } as const;
    const matrix = quantize(random("bfloat16", 2, 80, 256), quantization);
    const dense = dequantize(matrix, quantization, "bfloat16");
    for (const rows of [5, 37]) {
      const products = makeProducts(false);
      expectProducts({ kind: "packed", matrix, quantization }, dense, "bfloat16", rows, products);
    }
  }, 60_000);

  // Groups of each number of rows, and several of them; with one tile and two; alone and in clusters, where steps are
  // fewer than groups too; columns that fill no group.
  for (const [bits, groupSize, dtype, rows, outputs, inputs, shape] of [
    [4, 32, "bfloat16", 17, 80, 384, undefined],
    [4, 64, "float16", 64, 176, 384, { tiles: 1, shares: 1, step: 64, stages: 4 }],
    [4, 128, "bfloat16", 70, 48, 640, { tiles: 2, shares: 2, step: 128, stages: 3 }],
    [4, 64, "bfloat16", 40, 48, 640, { tiles: 2, shares: 8, step: 128, stages: 4 }],
    [4, 128, "bfloat16", 33, 32, 128, { tiles: 1, shares: 3, step: 64, stages: 3 }],
    [8, 64, "bfloat16", 37, 272, 256, { tiles: 2, shares: 1, step: 64, stages: 3 }],
    [8, 32, "float16", 100, 32, 384, undefined],
    [8, 128, "float16", 130, 16, 256, undefined],
    [8, 64, "float16", 250, 16, 128, { tiles: 1 }],
    [4, 64, "bfloat16", 300, 16, 128, { tiles: 1 }],
  ] as const) {
    const shapeOf = shape ? `, ${Object.values(shape)}` : "";
    test(`of ${rows} rows of ${inputs} with ${outputs} of ${bits} bits in groups of ${groupSize} by wgmma${shapeOf}`, () => {
      using _ = new Scope();
      const quantization = { mode: "affine", groupSize, bits } as const;
      const matrix = quantize(random(dtype, 2, outputs, inputs), quantization);
      const dense = dequantize(matrix, quantization, dtype);
      const asked = { leastRows: 17, ...shape };
      const products = new Products(hopper, emulatedKernel, undefined, asked);
      expectProducts({ kind: "packed", matrix, quantization }, dense, dtype, rows, products);
    }, 120_000);
  }

  // Tiles that are full, nearly empty, and of one group of a cluster; one cluster for all tiles, and several; more steps than
  // stages, and fewer.
  for (const [dtype, rows, outputs, inputs, groups] of [
    ["bfloat16", 260, 512, 320, 2],
    ["float16", 130, 1024, 128, 4],
    ["bfloat16", 100, 768, 320, 4],
    ["float16", 300, 768, 128, 8],
  ] as const) {
    test(`of a prompt's ${rows} rows of ${inputs} with gates, ${outputs} columns in all, ${dtype}, by ${groups} groups`, () => {
      using _ = new Scope();
      const prompts = new PromptProducts(hopper, emulatedKernel);
      const [x, weight] = [random(dtype, 1, rows, inputs), random(dtype, 2, outputs, inputs)];
      const made = prompts.gated({ x, weight }, groups);
      const plain = matmul(exact(x), swapAxes(exact(weight), 0, 1));
      expect(difference(made, gated(plain))).toBeLessThan(dtype === "float16" ? 0.002 : 0.01);
      prompts.free();
    }, 120_000);
  }

  // Heads of two kinds in one tile, and of one; the same groups as above.
  for (const each of [
    { dtype: "bfloat16", rows: 260, inputs: 320, heads: 2, kvHeads: 1, groups: 2, isRotated: true },
    { dtype: "float16", rows: 130, inputs: 128, heads: 4, kvHeads: 2, groups: 4, isRotated: true },
    {
      dtype: "bfloat16",
      rows: 100,
      inputs: 320,
      heads: 6,
      kvHeads: 1,
      groups: 4,
      isRotated: false,
    },
    // Of some rows only keys and values; a sequence's last token is the last of a tile too.
    {
      dtype: "bfloat16",
      rows: 780,
      inputs: 64,
      heads: 4,
      kvHeads: 1,
      groups: 4,
      isRotated: true,
      begins: [40, 512],
    },
    // Two sequences that are rotated differently, in the rows of one thread too.
    {
      dtype: "bfloat16",
      rows: 100,
      inputs: 64,
      heads: 2,
      kvHeads: 1,
      groups: 2,
      isRotated: true,
      longFrom: 37,
    },
  ] as const) {
    test(`of a prompt with what is done to heads, ${JSON.stringify(each)}`, () => {
      checkHeads(each, emulatedKernel);
    }, 120_000);
  }

  test("of a prompt with gates where whole tiles fill the clusters of a GPU", () => {
    expect(fitsPrompt(hopper, 8192, 16_384, 3072)).toBe(true);
    expect(fitsPrompt(hopper, 2048, 6144, 1024)).toBe(true);
    expect(fitsPrompt(hopper, 1024, 6144, 1024)).toBe(false);
    expect(fitsPrompt(hopper, 128, 16_384, 3072)).toBe(false);
    expect(fitsPrompt(hopper, 8192, 16_512, 3072)).toBe(false);
    expect(fitsPrompt(hopper, 8192, 16_384, 3040)).toBe(false);
  });

  test("of 5 rows with a dense matrix", () => {
    using _ = new Scope();
    const weight = random("float16", 2, 64, 160);
    expectProducts({ kind: "dense", weight }, weight, "float16", 5);
  });

  for (const [bits, rows] of [
    [4, 5],
    [8, 1],
    [4, 37],
    [8, 17],
  ] as const) {
    test(`of ${rows} rows with a matrix of ${bits} bits`, () => {
      using _ = new Scope();
      const quantization = { mode: "affine", groupSize: 32, bits } as const;
      const matrix = quantize(random("bfloat16", 2, 64, 384), quantization);
      const dense = dequantize(matrix, quantization, "bfloat16");
      const products = makeProducts(false);
      expectProducts({ kind: "packed", matrix, quantization }, dense, "bfloat16", rows, products);
    }, 60_000);
  }
});

describe.skipIf(!hasCuda)("products (an NVIDIA GPU is needed)", () => {
  for (const bits of [16, 8, 4]) {
    for (const [tokens, each] of [
      [1, 4],
      [16, 4],
      [128, 4],
      [700, 8],
      [2000, 5],
    ] as const) {
      test(`${tokens} rows with ${each} experts each, ${bits} bits`, () => {
        using _ = new Scope();
        const weight = random("bfloat16", 2, 32, 1024, 512);
        const quantization = { mode: "affine", groupSize: 64, bits } as const;
        const matrix = bits === 16 ? undefined : quantize(weight, quantization);
        const dense = matrix ? dequantize(matrix, quantization, "bfloat16") : weight;
        const form: Matrix = matrix
          ? { kind: "packed", matrix, quantization }
          : { kind: "dense", weight };
        expectExperts(form, dense, "bfloat16", { tokens, each });
      }, 60_000);
    }
  }

  for (const dtype of halves) {
    for (const [inputs, outputs] of [
      [2048, 2816],
      [1408, 2048],
    ] as const) {
      test(`${dtype}: 2000 rows with 5 experts each, ${inputs} to ${outputs}`, () => {
        using _ = new Scope();
        const weight = random(dtype, 2, 16, outputs, inputs);
        expectExperts({ kind: "dense", weight }, weight, dtype, { tokens: 2000, each: 5 });
      }, 60_000);
    }
    for (const rows of [1, 2, 5, 9, 16, 20, 37, 64]) {
      for (const [inputs, outputs] of [
        [1024, 4096],
        [3072, 1024],
        [1024, 8704],
        [96, 64],
      ] as const) {
        test(`${dtype}: ${rows} rows, ${inputs} to ${outputs}`, () => {
          using _ = new Scope();
          const weight = random(dtype, 2, outputs, inputs);
          expectProducts({ kind: "dense", weight }, weight, dtype, rows);
        }, 60_000);
      }
    }
    for (const bits of [4, 8]) {
      for (const groupSize of [32, 64, 128]) {
        for (const rows of [1, 5, 16, 37, 100]) {
          test(`${dtype}: ${rows} rows, ${bits} bits in groups of ${groupSize}`, () => {
            using _ = new Scope();
            // Columns and rows for each way to share them.
            for (const [inputs, outputs] of [
              [384, 8448],
              [1152, 4288],
              [1280, 64],
            ] as const) {
              const quantization = { mode: "affine", groupSize, bits } as const;
              const matrix = quantize(random(dtype, 2, outputs, inputs), quantization);
              const dense = dequantize(matrix, quantization, dtype);
              expectProducts({ kind: "packed", matrix, quantization }, dense, dtype, rows);
            }
          }, 60_000);
        }
      }
    }
  }
});

test("shapes of warpgroup products fit an SM's shared memory, and their CTAs fill the GPU", () => {
  const shapeOf = (rows: number, columns: number, inputs: number, bits = 4) =>
    groupShape(hopper, { rows, columns, inputs, bits, span: 64 });
  for (const rows of [17, 50, 128, 129, 256, 1000]) {
    for (const bits of [4, 8]) {
      const { tiles, step, stages, ...shape } = shapeOf(rows, 4096, 4096, bits);
      const ofColumn = (step * bits) / 8 + 2 * Math.max(4, step / 32);
      const bytes = stages * (step * shape.rows * 2 + tiles * 128 * ofColumn);
      expect(bytes).toBeLessThanOrEqual(226 * 1024);
      expect(stages).toBeGreaterThanOrEqual(4);
    }
  }
  // Of Llama-3.2-3B.
  expect(shapeOf(128, 16_384, 3072)).toMatchObject({ rows: 128, tiles: 2, shares: 2 });
  expect(shapeOf(64, 3072, 3072)).toMatchObject({ rows: 64, tiles: 2, shares: 8 });
  expect(shapeOf(65, 128_256, 3072)).toMatchObject({ rows: 96, tiles: 2, shares: 1 });
  expect(shapeOf(256, 16_384, 3072)).toMatchObject({ rows: 128, tiles: 2, shares: 1 });
});
