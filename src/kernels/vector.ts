// Products of one token with a dense matrix or with those of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
import type { Constants } from "./constants.ts";
import { KernelCache } from "./kernel-cache.ts";
import body from "./vector.c" with { type: "text" };

const WARPS = 4;

/** What a lane has of rows of the matrix at once, in packs of 8 numbers: more would not fit the registers. */
const PACKS = 16;
/** Of one row, and of the token. */
const MOST_PACKS = 8;
const MOST_LINES = 8;

const packsOf = (inputs: number, shares: number) => Math.ceil(inputs / (8 * 32 * shares));

export function fitsVector(outputs: number, inputs: number): boolean {
  const isWhole = inputs % 8 === 0 && outputs % (2 * WARPS * MOST_LINES) === 0;
  return isWhole && packsOf(inputs, WARPS) <= MOST_PACKS;
}

export type VectorOptions = ProductOptions & {
  /** The weight has a matrix for each expert, of which these (R) are the token's. */
  chosen?: MlxArray | undefined;
};

export class Vectors {
  readonly #kernels: KernelCache;
  readonly #constants: Constants;

  constructor(make: MakeKernel, constants: Constants) {
    this.#kernels = new KernelCache("cuda", make);
    this.#constants = constants;
  }

  /** x (1, K), or a row for each expert; weight (N, K) or (E, N, K) -> (1 or R, N), or where it is gated N / 2 */
  product(
    x: MlxArray,
    weight: MlxArray,
    { norm, isGated = false, residual, chosen }: VectorOptions,
  ): MlxArray {
    const [outputs, inputs] = weight.shape.slice(-2) as [number, number];
    const rows = chosen?.size ?? 1;
    const columns = isGated ? outputs / 2 : outputs;
    // Warps that share a row of the matrix: as few as can.
    const shares = [1, 2].find((count) => packsOf(inputs, count) <= MOST_PACKS) ?? WARPS;
    const packs = packsOf(inputs, shares);
    // Of rows of the matrix that it reads at once, a power of two that divides the columns.
    const most = Math.max(1, Math.floor(PACKS / (packs * (isGated ? 2 : 1))));
    const lines = Math.min(MOST_LINES, 2 ** Math.floor(Math.log2(most)));
    const sizes = this.#constants.ints(inputs, outputs);
    const given = {
      x,
      weight,
      sizes,
      norm: norm?.weight ?? x,
      numbers: this.#constants.floats(norm?.eps ?? 0),
      residual: residual ?? x,
      chosen: chosen ?? sizes,
    };
    return this.#kernels.run("vector", body, given, "made", {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [(columns / ((WARPS / shares) * lines)) * WARPS * 32, rows, 1],
      threadGroup: [WARPS * 32, 1, 1],
      template: {
        T: x.dtype,
        NORMED: norm !== undefined,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        EXPERTS: chosen !== undefined,
        EACH: rows / x.shape[0]!,
        PACKS: packs,
        LINES: lines,
        WARPS,
        SHARES: shares,
      },
    });
  }

  free(): void {
    this.#kernels.free();
  }
}
