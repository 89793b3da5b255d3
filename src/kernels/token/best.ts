// Argmax: each row's highest number and its index, in two launches that use the whole GPU; MLX's
// argmax has one CTA per row.
import type { MlxArray } from "../../mlx/array.ts";
import { type Language, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import wholeBody from "./best.c" with { type: "text" };
import partsBody from "./best-parts.c" with { type: "text" };
import { tokenHeaders } from "./headers.ts";

/** Parts into which a row is divided, one per lane of the warp that combines their maxima. */
const PARTS = 32;
const THREADS = 256;

export class BestKernels {
  readonly #kernels: KernelCache;

  constructor(language: Language, make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache(language, make, { headers: tokenHeaders });
  }

  /** Finds each row's maximum, x (R, V) -> its first index (R), and the float32 maximum (R), NaN if any number is. */
  best(x: MlxArray): { indices: MlxArray; highest: MlxArray } {
    const [rows, columns] = x.shape as [number, number];
    const parts = { shape: [rows, PARTS], dtype: "uint32" } as const;
    const [orders, places] = this.#kernels.runAll(
      "best_parts",
      partsBody,
      { x },
      ["orders", "places"],
      {
        outputs: [parts, parts],
        grid: [PARTS * THREADS, rows, 1],
        threadGroup: [THREADS, 1, 1],
        template: { T: x.dtype, COLUMNS: columns, PARTS, THREADS },
      },
    ) as [MlxArray, MlxArray];
    const [indices, highest] = this.#kernels.runAll(
      "best",
      wholeBody,
      { orders, places },
      ["indices", "highest"],
      {
        outputs: [
          { shape: [rows], dtype: "uint32" },
          { shape: [rows], dtype: "float32" },
        ],
        grid: [rows * PARTS, 1, 1],
        threadGroup: [PARTS, 1, 1],
        template: { PARTS },
      },
    ) as [MlxArray, MlxArray];
    return { indices, highest };
  }

  free(): void {
    this.#kernels.free();
  }
}
