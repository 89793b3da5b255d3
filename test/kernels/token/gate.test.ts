// SwiGLU of halves beside each other, by a GPU's kernel or by the emulated one, beside plain arithmetic.
import { afterAll, describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { Gates } from "../../../src/kernels/token/gate.ts";
import { makeKernel } from "../../../src/mlx/kernel.ts";
import { astype } from "../../../src/mlx/ops.ts";
import { key, normal } from "../../../src/mlx/random.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";

useMlx();
const kind = backend();
const tolerances = { float16: 1e-3, bfloat16: 1e-2 } as const;

describe.skipIf(kind === "metal")("halves", () => {
  const gates = new Gates(kind === "cpu" ? emulatedKernel : makeKernel);
  afterAll(() => gates.free());

  for (const dtype of ["float16", "bfloat16"] as const) {
    // A part of a group, and more than one.
    for (const [rows, columns] of [
      [1, 8],
      [3, 1000],
    ] as const) {
      test(`${rows} rows of ${columns} in ${dtype}`, () => {
        using _ = new Scope();
        const halves = astype(normal(key(1), [rows, 2 * columns]), dtype);
        const given = halves.numbers();
        const found = gates.swiglu(halves)!.numbers();
        expect(found.length).toBe(rows * columns);
        for (const [i, value] of found.entries()) {
          const at = Math.floor(i / columns) * 2 * columns + (i % columns);
          const [gate, up] = [given[at]!, given[at + columns]!];
          const expected = (gate / (1 + Math.exp(-gate))) * up;
          expect(Math.abs(value - expected)).toBeLessThan(
            tolerances[dtype] * (1 + Math.abs(expected)),
          );
        }
      });
    }
  }

  test("of 32 bits, of three axes or in no whole packs have no kernel", () => {
    using _ = new Scope();
    expect(gates.swiglu(normal(key(1), [2, 16]))).toBeUndefined();
    expect(gates.swiglu(astype(normal(key(1), [2, 24]), "float16"))).toBeUndefined();
    expect(gates.swiglu(astype(normal(key(1), [2, 1, 16]), "float16"))).toBeUndefined();
  });
});
