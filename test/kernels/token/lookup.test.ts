// Rows of a matrix by a GPU's kernel or by the emulated one, beside MLX's `take`.
import { afterAll, describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { Lookups } from "../../../src/kernels/token/lookup.ts";
import { array } from "../../../src/mlx/array.ts";
import { makeKernel } from "../../../src/mlx/kernel.ts";
import { astype, slice, take } from "../../../src/mlx/ops.ts";
import { key, normal } from "../../../src/mlx/random.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();
const kind = backend();
const ROWS = 11;

describe.skipIf(kind === "metal")("rows", () => {
  const lookups = new Lookups(kind === "cpu" ? emulatedKernel : makeKernel);
  afterAll(() => lookups.free());

  /** A part of a warp, groups with packs left over, more packs than a group has threads; tokens of a group each, and more. */
  const cases = [
    { count: 1, dims: 8 },
    { count: 3, dims: 3072 },
    { count: 2, dims: 8200 },
    { count: 1023, dims: 16 },
    { count: 1024, dims: 16 },
    { count: 1028, dims: 264 },
  ];
  for (const dtype of ["float32", "float16", "bfloat16"] as const) {
    for (const { count, dims } of cases) {
      test(`${count} of ${dims} in ${dtype}`, () => {
        using _ = new Scope();
        const matrix = astype(normal(key(1), [ROWS, dims]), dtype);
        const tokens = array(Uint32Array.from({ length: count }, (_, i) => (i * 7 + 10) % ROWS));
        const found = lookups.rows(matrix, tokens)!;
        expect(found.shape).toEqual([count, dims]);
        expect(found.dtype).toBe(dtype);
        expect(found.numbers()).toEqual(take(matrix, tokens).numbers());
      });
    }
  }

  test("of a matrix that is a part of another", () => {
    using _ = new Scope();
    const matrix = slice(normal(key(1), [ROWS, 24]), 1, 4, 20);
    const tokens = array(Uint32Array.of(10, 0));
    expect(lookups.rows(matrix, tokens)!.numbers()).toEqual(take(matrix, tokens).numbers());
  });

  test("behind the last are the last", () => {
    using _ = new Scope();
    const matrix = normal(key(1), [ROWS, 8]);
    const beyond = array(Uint32Array.of(ROWS, 2 ** 31, 2 ** 32 - 1));
    const last = array(new Uint32Array(3).fill(ROWS - 1));
    expect(lookups.rows(matrix, beyond)!.numbers()).toEqual(take(matrix, last).numbers());
  });

  test("by other integers, of more axes or in no whole packs have no kernel", () => {
    using _ = new Scope();
    const matrix = normal(key(1), [ROWS, 8]);
    expect(lookups.rows(matrix, array(Int32Array.of(1, 2)))).toBeUndefined();
    expect(lookups.rows(matrix, array(Uint32Array.of(1, 2), [1, 2]))).toBeUndefined();
    const narrow = astype(normal(key(1), [ROWS, 12]), "float16");
    expect(lookups.rows(narrow, array(Uint32Array.of(1, 2)))).toBeUndefined();
  });
});
