// A sum and the norm of it by one launch, and norms alone, by a GPU's kernel or by the emulated one, beside MLX's
// operations.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { combine } from "../../../src/device/routing.ts";
import { PendingSum, SumNorms } from "../../../src/kernels/token/sum-norm.ts";
import { array, type MlxArray } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { rmsNorm } from "../../../src/mlx/fast.ts";
import { type MakeKernel, makeKernel } from "../../../src/mlx/kernel.ts";
import { add, astype, multiply, slice } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";
import { mutatedKernel } from "../../support/mutated-kernel.ts";
import { makeRandom } from "../../support/random.ts";

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
        const [sum, expected] = [new PendingSum(makeSum(), { made, shares, residual }), makeSum()];
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
    const sum = new PendingSum(add(residual, 100), { made, residual });
    norms.norm(sum, numbers(3, "float16", 64), EPS);
    expect(sum.numbers()).toEqual(add(residual, made).numbers());
    norms.free();
  });

  test("no sum comes from it whose addends are gone, or of another type", () => {
    using _ = new Scope();
    const norms = makeNorms();
    const [residual, weight] = [numbers(1, "float16", 1, 64), numbers(2, "float16", 64)];
    const other = add(residual, 100);
    const expectAlone = (sum: MlxArray) => {
      expectNear(norms.norm(sum, weight, EPS)!, rmsNorm(other, weight, EPS), 2e-3);
      expect(sum.numbers()).toEqual(other.numbers());
    };
    const sumOf = (dtype: Dtype) =>
      new PendingSum(add(residual, 100), { made: numbers(3, dtype, 1, 64), residual });
    const gone = () => {
      using scope = new Scope();
      return scope.keep(sumOf("float16"));
    };
    expectAlone(gone());
    expectAlone(sumOf("bfloat16"));
    norms.free();
  });
});

const aloneCases = [
  { rows: 1, dims: 2 },
  { rows: 5, dims: 66 },
  { rows: 3, dims: 1024 },
  { rows: 2, dims: 1030 },
  { rows: 2, dims: 2048 },
  { rows: 4, dims: 2052 },
  { rows: 16, dims: 3072 },
  { rows: 1, dims: 16_384 },
];

describe.skipIf(kind === "metal")("alone", () => {
  const expectNorm = (norms: SumNorms, x: MlxArray, tolerance: number) => {
    const weight = numbers(4, x.dtype, x.shape[1]!);
    expectNear(norms.norm(x, weight, EPS)!, rmsNorm(x, weight, EPS), tolerance);
    norms.free();
  };

  for (const [dtype, tolerance] of Object.entries(tolerances) as [Dtype, number][]) {
    for (const { rows, dims } of aloneCases) {
      test(`${rows} rows of ${dims} in ${dtype}`, () => {
        using _ = new Scope();
        expectNorm(makeNorms(), numbers(1, dtype, rows, dims), tolerance);
      });
    }
  }

  test("small numbers, where epsilon shows", () => {
    using _ = new Scope();
    expectNorm(makeNorms(), multiply(numbers(1, "bfloat16", 2, 64), 1e-3), 2e-2);
  });

  test("a row that begins anywhere in another", () => {
    using _ = new Scope();
    expectNorm(makeNorms(), slice(numbers(1, "float16", 1, 70), 1, 3, 67), 2e-3);
    if (kind !== "cpu") return;
    // The emulator moves arrays to addresses of its own.
    const isAligned = "reinterpret_cast<unsigned long>(residual) % sizeof(Pack) == 0";
    const make: MakeKernel = mutatedKernel("norm", isAligned, "false");
    expectNorm(new SumNorms(make), numbers(1, "float16", 2, 64), 2e-3);
  });

  test("none of other types, of other shapes, without a weight or of too many features", () => {
    using _ = new Scope();
    const norms = makeNorms();
    const [x, weight] = [numbers(1, "float16", 1, 64), numbers(2, "float16", 64)];
    expect(norms.norm(x, undefined, EPS)).toBeUndefined();
    expect(norms.norm(x, astype(weight, "bfloat16"), EPS)).toBeUndefined();
    expect(norms.norm(x, numbers(2, "float16", 32), EPS)).toBeUndefined();
    expect(norms.norm(numbers(1, "float16", 1, 1, 64), weight, EPS)).toBeUndefined();
    const of = (dtype: Dtype, dims: number) =>
      norms.norm(numbers(1, dtype, 1, dims), numbers(2, dtype, dims), EPS);
    expect(of("float32", 64)).toBeUndefined();
    expect(of("float16", 63)).toBeUndefined();
    expect(of("float16", 16_386)).toBeUndefined();
    norms.free();
  });
});
