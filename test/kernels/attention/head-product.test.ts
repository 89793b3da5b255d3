// Products of heads beside MLX's own in float32: on an NVIDIA GPU, or some of them emulated by a CPU.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { fitsHeads, HeadProducts } from "../../../src/kernels/attention/head-product.ts";
import { columnsOf } from "../../../src/kernels/attention/latent-attention.ts";
import type { MlxArray } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { astype, matmul, reshape, swapAxes } from "../../../src/mlx/ops.ts";
import { key, normal } from "../../../src/mlx/random.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();
const hasCuda = backend() === "cuda";

type Case = {
  rows: number;
  heads: number;
  inputs: number;
  outputs: number;
  dtype: Dtype;
  isTransposed: boolean;
};

const random = (dtype: Dtype, seed: number, ...shape: number[]) =>
  astype(normal(key(seed), shape), dtype);

function expectProduct(each: Case, products: HeadProducts): void {
  using _ = new Scope();
  const { rows, heads, inputs, outputs, dtype, isTransposed } = each;
  const [first, stride] = [8, inputs + 24];
  const x = { rows: random(dtype, 1, rows, first + heads * stride), first, stride };
  const shape = isTransposed ? [heads, inputs, outputs] : [heads, outputs, inputs];
  const weight = random(dtype, 2, ...shape);
  expect(fitsHeads(x, { weight, isTransposed })).toBeTrue();
  const exact = (of: MlxArray) => astype(of, "float32");
  const matrices = isTransposed ? weight : swapAxes(weight, -1, -2);
  const byHead = columnsOf({ ...x, rows: exact(x.rows) }, heads, inputs); // (T, heads, in)
  const product = matmul(swapAxes(byHead, 0, 1), exact(matrices)); // (heads, T, out)
  const expected = reshape(swapAxes(product, 0, 1), [rows, -1]).numbers();
  const made = products.product(x, { weight, isTransposed });
  expect(made.shape).toEqual([rows, heads * outputs]);
  const found = exact(made).numbers();
  const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const worst = expected.reduce((most, value, i) => Math.max(most, Math.abs(value - found[i]!)), 0);
  expect(worst / largest).toBeLessThan(dtype === "float16" ? 2e-3 : 1e-2);
  products.free();
}

const cases: Case[] = [1, 16, 17, 64, 65, 300].flatMap((rows) =>
  [
    { heads: 16, inputs: 128, outputs: 512, isTransposed: true },
    { heads: 16, inputs: 128, outputs: 512, isTransposed: false },
    { heads: 16, inputs: 512, outputs: 128, isTransposed: false },
    { heads: 3, inputs: 48, outputs: 32, isTransposed: true },
  ].map((each) => ({ ...each, rows, dtype: rows === 17 ? "float16" : "bfloat16" })),
);

describe.skipIf(!hasCuda)("products of heads", () => {
  test.each(cases)("%o", (each) => expectProduct(each, new HeadProducts()));
});

const emulated: Case[] = [
  { rows: 1, heads: 2, inputs: 128, outputs: 128, dtype: "bfloat16", isTransposed: true },
  { rows: 20, heads: 2, inputs: 512, outputs: 64, dtype: "float16", isTransposed: false },
  { rows: 70, heads: 1, inputs: 512, outputs: 32, dtype: "bfloat16", isTransposed: false },
  { rows: 66, heads: 2, inputs: 48, outputs: 128, dtype: "bfloat16", isTransposed: true },
];

describe.skipIf(hasCuda)("products of heads, emulated", () => {
  test.each(emulated)(
    "%o",
    (each) => expectProduct(each, new HeadProducts(emulatedKernel)),
    120_000,
  );
});

test("columns and matrices that have no kernel", () => {
  using _ = new Scope();
  const rows = random("bfloat16", 1, 4, 64);
  const weight = random("bfloat16", 2, 2, 32, 16);
  const fits = (change: Partial<Parameters<typeof fitsHeads>[0]>, matrices = weight) =>
    fitsHeads({ rows, first: 0, stride: 32, ...change }, { weight: matrices, isTransposed: false });
  expect(fits({})).toBeTrue();
  expect(fits({ first: 4 })).toBeFalse();
  expect(fits({ stride: 20 })).toBeFalse();
  expect(fits({ rows: random("float16", 1, 4, 64) })).toBeFalse();
  expect(fits({ rows: random("bfloat16", 1, 4, 60) })).toBeFalse();
  expect(fits({}, random("bfloat16", 2, 2, 16, 16))).toBeFalse();
  expect(fits({}, random("bfloat16", 2, 2, 32, 24))).toBeFalse();
  // Too large for the shared memory.
  expect(fits({}, random("bfloat16", 2, 1, 32, 1024))).toBeFalse();
});
