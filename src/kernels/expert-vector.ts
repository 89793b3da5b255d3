// Products of one token with the dense matrices of its experts, on NVIDIA GPUs.
import type { MlxArray } from "../mlx/array.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
import type { Constants } from "./constants.ts";
import body from "./expert-vector.c" with { type: "text" };
import { KernelCache } from "./kernel-cache.ts";

const WARPS = 4;

/** What a warp reads at once: packs of 8 numbers for each of its lanes. More would not fit the registers. */
const PACKS = 16;

/** Of 8 numbers, what a lane has of a row with so many. */
function packsOf(inputs: number): number {
  return Math.ceil(inputs / (8 * 32));
}

export function fitsVector(inputs: number): boolean {
  return packsOf(inputs) <= PACKS && inputs % 8 === 0;
}

export class ExpertVectors {
  readonly #kernels: KernelCache;
  readonly #constants: Constants;

  constructor(make: MakeKernel, constants: Constants) {
    this.#kernels = new KernelCache("cuda", make);
    this.#constants = constants;
  }

  /** x (1, K) or a row for each expert, weight (E, N, K), experts (R) -> (R, N), or where it is gated (R, N / 2) */
  product(x: MlxArray, weight: MlxArray, experts: MlxArray, isGated: boolean): MlxArray {
    const [, outputs, inputs] = weight.shape as [number, number, number];
    const rows = experts.size;
    const columns = isGated ? outputs / 2 : outputs;
    const packs = packsOf(inputs);
    // Of rows of the matrix that it reads at once, a power of two that divides the columns.
    const most = Math.max(1, Math.floor(PACKS / (packs * (isGated ? 2 : 1))));
    const lines = Math.min(8, 2 ** Math.floor(Math.log2(most)));
    const given = { x, weight, sizes: this.#constants.ints(inputs, outputs), experts };
    return this.#kernels.run("expert_vector", body, given, "made", {
      outputs: [{ shape: [rows, columns], dtype: x.dtype }],
      grid: [(columns / (WARPS * lines)) * WARPS * 32, rows, 1],
      threadGroup: [WARPS * 32, 1, 1],
      template: {
        T: x.dtype,
        GATED: isGated,
        EACH: rows / x.shape[0]!,
        PACKS: packs,
        LINES: lines,
        WARPS,
      },
    });
  }

  free(): void {
    this.#kernels.free();
  }
}
