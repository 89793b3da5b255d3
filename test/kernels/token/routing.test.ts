// How experts are chosen and what they make is put together, by the kernels in the emulator or on a GPU, beside MLX's
// operations.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { combine, route } from "../../../src/device/routing.ts";
import {
  fitsRouting,
  fitsScoring,
  type Routed,
  type Routing,
  RoutingKernels,
} from "../../../src/kernels/token/routing.ts";
import { array, type MlxArray } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { astype, matmul, multiply, swapAxes } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";

useMlx();
const kind = backend();
const ways =
  kind === "cpu"
    ? (["cuda", "metal"] as const).map((language) => ({
        name: `the emulated ${language} kernels`,
        makeKernels: () => new RoutingKernels(language, emulatedKernel),
      }))
    : [{ name: "the kernels", makeKernels: () => new RoutingKernels(kind) }];

function numbers(seed: number, dtype: Dtype, ...shape: number[]): MlxArray {
  const random = makeRandom(seed);
  const count = shape.reduce((a, b) => a * b);
  const values = Float32Array.from({ length: count }, () => random.below(20_001) / 2500 - 4);
  return astype(array(values, shape), dtype);
}

/** The share of each expert of a token, by its number: the order of experts says nothing. */
function sharesOf({ chosen, shares }: Routed): Map<number, number>[] {
  const each = chosen.shape[1]!;
  const [experts, parts] = [chosen.numbers(), shares.numbers()];
  return Array.from({ length: chosen.shape[0]! }, (_, token) => {
    const own = experts.slice(token * each, (token + 1) * each);
    return new Map(own.map((expert, i) => [expert, parts[token * each + i]!]));
  });
}

const exact = (x: MlxArray) => astype(x, "float32");

function expectSame(found: Routed, expected: Routed, { each, shared }: Routing, dtype: Dtype) {
  const all = sharesOf(found);
  const sorted = (shares: Map<number, number>) => [...shares.values()].sort((a, b) => a - b);
  for (const [token, own] of sharesOf(expected).entries()) {
    expect(all[token]!.size).toBe(each + shared.count);
    const [ours, theirs] = [sorted(all[token]!), sorted(own)];
    for (const [i, share] of theirs.entries()) expect(ours[i]!).toBeCloseTo(share, 4);
    if (dtype === "float32") expect(new Set(all[token]!.keys())).toEqual(new Set(own.keys()));
  }
}

const plain: Routing = {
  experts: 40,
  each: 4,
  scores: "softmax",
  isNormalized: true,
  scale: 1,
  shared: { count: 0, isGated: false },
};
const cases: Record<string, Partial<Routing>> = {
  "a softmax": {},
  "a softmax whose shares stay": { isNormalized: false, scale: 2.5 },
  "sigmoids with a correction": { scores: "sigmoid", scale: 1.5 },
  "groups by the best two": { scores: "sigmoid", groups: { count: 8, kept: 3, best: 2 }, each: 6 },
  "groups that leave out the others, with a correction": {
    scores: "sigmoid",
    groups: { count: 4, kept: 1, best: 2, leavesOut: true },
    each: 8,
  },
  "groups by their best": { groups: { count: 5, kept: 1, best: 1 }, isNormalized: false },
  "one expert": { each: 1 },
  "as many as there are": { experts: 7, each: 7 },
  "a shared expert with a gate": { shared: { count: 1, isGated: true } },
  "two shared experts": { experts: 64, shared: { count: 2, isGated: false } },
  "many experts": { experts: 513, each: 10 },
};

describe.each(ways)("$name choose", ({ makeKernels }) => {
  for (const [name, options] of Object.entries(cases)) {
    test(`${name}`, () => {
      using _ = new Scope();
      const { experts } = { ...plain, ...options };
      const correction = name.includes("correction") ? numbers(2, "float32", experts) : undefined;
      const routing: Routing = { ...plain, ...options, correction };
      expect(fitsRouting(routing)).toBeTrue();
      const width = experts + (routing.shared.isGated ? 1 : 0);
      const types =
        name === "a softmax" ? (["float32", "bfloat16"] as const) : (["float32"] as const);
      for (const dtype of types) {
        const kernels = makeKernels();
        // Rounded numbers are often equal, and either of two may be chosen.
        const raw = astype(numbers(1, "float32", 9, width), dtype);
        expectSame(kernels.route(raw, routing), route(raw, routing), routing, dtype);
        const x = astype(numbers(3, "float32", 9, 48), dtype);
        const matrix = astype(multiply(numbers(4, "float32", width, 48), 1 / 16), dtype);
        const scores = astype(matmul(exact(x), swapAxes(exact(matrix), 0, 1)), dtype);
        expect(fitsScoring(x, matrix)).toBeTrue();
        expectSame(kernels.route(x, routing, matrix), route(scores, routing), routing, dtype);
        kernels.free();
      }
    }, 60_000);
  }

  test("experts that exist where scores are NaN", () => {
    using _ = new Scope();
    const kernels = makeKernels();
    const raw = array(new Float32Array(2 * plain.experts).fill(Number.NaN), [2, plain.experts]);
    for (const expert of kernels.route(raw, plain).chosen.numbers()) {
      expect(expert).toBeLessThan(plain.experts);
    }
    kernels.free();
  });

  test("but not among too many, or too many of them", () => {
    expect(fitsRouting({ ...plain, experts: 2000 })).toBeFalse();
    expect(fitsRouting({ ...plain, each: 33 })).toBeFalse();
    expect(fitsRouting({ ...plain, each: 32, shared: { count: 1, isGated: false } })).toBeFalse();
  });
});

test.each(ways)(
  "$name put together what experts have made",
  ({ makeKernels }) => {
    for (const dtype of ["float32", "float16", "bfloat16"] as const) {
      for (const isAdded of dtype === "float32" ? [false, true] : [true]) {
        using _ = new Scope();
        const residual = isAdded ? numbers(3, dtype, 5, 522) : undefined;
        const kernels = makeKernels();
        const made = numbers(1, dtype, 5, 3, 522);
        const shares = numbers(2, "float32", 5, 3);
        const found = kernels.combine(made, shares, residual);
        const exact = (x: MlxArray) => astype(x, "float32");
        const expected = combine(exact(made), shares, residual && exact(residual)).numbers();
        expect(found.dtype).toBe(dtype);
        const most = dtype === "float32" ? 1e-4 : dtype === "float16" ? 0.03 : 0.2;
        for (const [i, value] of exact(found).numbers().entries()) {
          expect(Math.abs(value - expected[i]!)).toBeLessThan(most);
        }
        kernels.free();
      }
    }
  },
  60_000,
);
