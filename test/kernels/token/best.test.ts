// The highest number of each row, by a GPU's kernels or by the emulated ones, beside a loop.
import { expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { BestKernels } from "../../../src/kernels/token/best.ts";
import { array } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { astype } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";

useMlx();
const kind = backend();
const ROWS = 7;
const ways =
  kind === "cpu"
    ? (["cuda", "metal"] as const).map((language) => ({
        name: `the emulated ${language} kernels`,
        make: () => new BestKernels(language, emulatedKernel),
      }))
    : [{ name: "the kernels", make: () => new BestKernels(kind) }];

// Rows of whole packs, and others; parts that a group loads at once, and not.
const sizes: Partial<Record<Dtype, number[]>> = {
  float32: [1, 300, 5003],
  bfloat16: [304, 20_001],
  float16: [31],
};
for (const { name, make } of ways) {
  for (const [dtype, columnsOf] of Object.entries(sizes) as [Dtype, number[]][]) {
    for (const columns of columnsOf) {
      test(`of ${columns} in ${dtype}, by ${name}`, () => {
        using _ = new Scope();
        const random = makeRandom(columns);
        // Few distinct ones, so that the first of several counts.
        const any = () => random.below(9) - 4;
        const rows = Array.from({ length: ROWS }, (_, row) =>
          Array.from({ length: columns }, () => (row === 1 ? -7 : row === 2 ? -Infinity : any())),
        );
        // Signs of zero and of NaN make no difference.
        rows[3] = rows[3]!.map((each) => (each < 0 ? each : -0));
        rows[3]![columns - 1] = 0;
        rows[4]![columns >> 1] = Number.NaN;
        rows[5]![0] = -Number.NaN;
        rows[6]![columns - 1] = Infinity;
        const kernels = make();
        const x = astype(array(Float32Array.from(rows.flat()), [ROWS, columns]), dtype);
        const { indices, highest } = kernels.best(x);
        const expected = rows.map((row) => {
          const nan = row.findIndex(Number.isNaN);
          const most = row.reduce((a, b) => Math.max(a, b));
          return nan >= 0 ? nan : row.indexOf(most);
        });
        expect(indices.numbers()).toEqual(expected);
        expect(highest.dtype).toBe("float32");
        expect(highest.numbers().map((each) => each + 0)).toEqual(
          rows.map((row, i) => row[expected[i]!]! + 0),
        );
        kernels.free();
      });
    }
  }
}
