// Products of a few rows against MLX's own in float32, on an NVIDIA GPU.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { fitsProduct, Products } from "../../src/kernels/product.ts";
import type { MlxArray } from "../../src/mlx/array.ts";
import { rmsNorm } from "../../src/mlx/fast.ts";
import { add, astype, matmul, multiply, sigmoid, split, swapAxes } from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

const exact = (x: MlxArray) => astype(x, "float32");

/** The largest difference, as a part of the largest number. */
function difference(found: MlxArray, expected: MlxArray): number {
  const [a, b] = [exact(found).numbers(), expected.numbers()];
  expect(a.length).toBe(b.length);
  const largest = b.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0) / largest;
}

describe.skipIf(backend() !== "cuda")("products (an NVIDIA GPU is needed)", () => {
  for (const dtype of ["bfloat16", "float16"] as const) {
    for (const rows of [1, 2, 5, 9, 16]) {
      for (const [inputs, outputs] of [
        [1024, 4096],
        [3072, 1024],
        [96, 64],
      ] as const) {
        test(`${dtype}: ${rows} rows, ${inputs} to ${outputs}`, () => {
          using _ = new Scope();
          const random = (seed: number, ...shape: number[]) =>
            astype(normal(key(seed), shape), dtype);
          const [x, weight] = [random(1, rows, inputs), random(2, outputs, inputs)];
          const residual = random(3, rows, outputs);
          const norm = { weight: random(4, inputs), eps: 1e-6 };
          const matrix = swapAxes(exact(weight), 0, 1);
          const plain = matmul(exact(x), matrix);
          const normed = matmul(rmsNorm(exact(x), exact(norm.weight), norm.eps), matrix);
          const gated = (product: MlxArray) => {
            const [gate, up] = split(product, 2);
            return multiply(multiply(gate!, sigmoid(gate!)), up!);
          };
          const products = new Products();
          const most = dtype === "bfloat16" ? 0.01 : 0.002;
          expect(fitsProduct(outputs, inputs, dtype)).toBe(true);
          const close = (found: MlxArray, expected: MlxArray) =>
            expect(difference(found, expected)).toBeLessThan(most);
          close(products.product(x, weight, {}), plain);
          close(products.product(x, weight, { residual }), add(plain, exact(residual)));
          close(products.product(x, weight, { norm }), normed);
          close(products.product(x, weight, { norm, isGated: true }), gated(normed));
          products.free();
        });
      }
    }
  }
});
