// A sum and the norm of it by one launch, by a GPU's kernel or by the emulated one, beside MLX's operations.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { combine } from "../../src/device/routing.ts";
import { SumNorms } from "../../src/kernels/sum-norm.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import { rmsNorm } from "../../src/mlx/fast.ts";
import { makeKernel } from "../../src/mlx/kernel.ts";
import { add, astype, multiply } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

useMlx();
const kind = backend();
const makeNorms = () => new SumNorms(kind === "cpu" ? emulatedKernel : makeKernel);
const EPS = 1e-5;

function numbers(seed: number, dtype: Dtype, ...shape: number[]): MlxArray {
  const random = makeRandom(seed);
  const count = shape.reduce((a, b) => a * b);
  const values = Float32Array.from({ length: count }, () => random.below(20_001) / 2500 - 4);
  return astype(array(values, shape), dtype);
}

function expectNear(found: MlxArray, expected: MlxArray, tolerance: number): void {
  expect(found.shape).toEqual(expected.shape);
  expect(found.dtype).toBe(expected.dtype);
  const [ours, theirs] = [found.numbers(), expected.numbers()];
  const errors = ours.map((each, i) => Math.abs(each - theirs[i]!) / (1 + Math.abs(theirs[i]!)));
  expect(Math.max(...errors)).toBeLessThan(tolerance);
}

const tolerances: Partial<Record<Dtype, number>> = { float16: 2e-3, bfloat16: 2e-2 };
const cases = [
  { rows: 1, dims: 64, each: 0 },
  { rows: 3, dims: 130, each: 0 },
  { rows: 2, dims: 2050, each: 0 },
  { rows: 1, dims: 96, each: 1 },
  { rows: 3, dims: 130, each: 7 },
];

describe.skipIf(kind === "metal")("of sums", () => {
  for (const [dtype, tolerance] of Object.entries(tolerances) as [Dtype, number][]) {
    for (const { rows, dims, each } of cases) {
      const experts = each ? `, of ${each} experts` : "";
      test(`${rows} rows of ${dims} in ${dtype}${experts}`, () => {
        using _ = new Scope();
        const norms = makeNorms();
        const residual = numbers(1, dtype, rows, dims);
        const made = numbers(2, dtype, ...(each ? [rows, each, dims] : [rows, dims]));
        const shares = each ? multiply(numbers(3, "float32", rows, each), 0.25) : undefined;
        const weight = numbers(4, dtype, dims);
        const makeSum = () => (shares ? combine(made, shares, residual) : add(residual, made));
        const [sum, expected] = [makeSum(), makeSum()];
        norms.remember(sum, { made, shares, residual });
        const normed = norms.norm(sum, weight, EPS)!;
        expectNear(sum, expected, tolerance);
        expectNear(normed, rmsNorm(sum, weight, EPS), tolerance);
        norms.free();
      });
    }
  }

  test("a sum comes from the launch that makes its norm", () => {
    using _ = new Scope();
    const norms = makeNorms();
    const [residual, made] = [numbers(1, "float16", 1, 64), numbers(2, "float16", 1, 64)];
    // Where it came from shows, for it is built as another sum than the one that is remembered.
    const sum = norms.remember(add(residual, 100), { made, residual });
    norms.norm(sum, numbers(3, "float16", 64), EPS);
    expect(sum.numbers()).toEqual(add(residual, made).numbers());
    norms.free();
  });

  test("nothing but a sum whose addends are still there, of one type, has such a norm", () => {
    using _ = new Scope();
    const norms = makeNorms();
    const [residual, weight] = [numbers(1, "float16", 1, 64), numbers(2, "float16", 64)];
    const sumOf = (dtype: Dtype) => {
      const made = numbers(3, dtype, 1, 64);
      return norms.remember(add(residual, made), { made, residual });
    };
    const gone = () => {
      using scope = new Scope();
      return scope.keep(sumOf("float16"));
    };
    expect(norms.norm(residual, weight, EPS)).toBeUndefined();
    expect(norms.norm(sumOf("float16"), undefined, EPS)).toBeUndefined();
    expect(norms.norm(sumOf("bfloat16"), weight, EPS)).toBeUndefined();
    expect(norms.norm(gone(), weight, EPS)).toBeUndefined();
    const sum = sumOf("float16");
    expect(norms.norm(sum, weight, EPS)).toBeDefined();
    expect(norms.norm(sum, weight, EPS)).toBeUndefined();
    norms.free();
  });
});
