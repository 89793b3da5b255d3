// Gated products of a prompt's rows with dense matrices, on NVIDIA GPUs with wgmma (Hopper).
import type { MlxArray } from "../mlx/array.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
import { KernelCaches } from "./kernel-cache.ts";
import body from "./prompt-product.c" with { type: "text" };
import { MAP_WORDS } from "./source.ts";

/** A cluster's tiles: two of 128 rows of x, with the same 128 columns of the gate and of up. */
const CLUSTER = 2;
const ROWS = CLUSTER * 128;
const COLUMNS = 256;
const STEP = 64;
/** Steps of rows and columns in shared memory, two panels of 16 rows and 64 columns for eight warps, barriers, and to align them. */
const STAGES = 4;
const SHARED_BYTES = STAGES * ((128 + COLUMNS) * STEP * 2 + 16) + 8 * 2 * 16 * 64 * 2 + 1024;

const THREADS = 384;
/** Groups of an H200 that run at once, one on each multiprocessor. */
const GROUPS = 132;
/** Of a group: where rows are, where columns are, and where what is made goes. */
const MAPS = 3;

/** Where as much of what clusters compute is wanted, cuBLAS is slower (docs/log.md). */
const LEAST_SHARE = 0.9;

/** Whether both matrices together are made of whole tiles and steps, and so many rows fill all clusters. */
export function fitsPrompt(rows: number, columns: number, inputs: number): boolean {
  if (columns % COLUMNS !== 0 || inputs % STEP !== 0) return false;
  const across = columns / COLUMNS;
  const clusters = GROUPS / CLUSTER;
  const turns = Math.ceil((Math.ceil(rows / ROWS) * across) / clusters);
  return ((rows / ROWS) * across) / (turns * clusters) >= LEAST_SHARE;
}

export class PromptProducts {
  readonly #kernels: KernelCaches;

  constructor(make: MakeKernel) {
    this.#kernels = new KernelCaches("cuda", make);
  }

  /** x (rows, K), weight (N, K) of the gate and up, sizes (rows) -> (rows, N / 2) */
  product(given: Readonly<Record<"x" | "weight" | "sizes", MlxArray>>, groups = GROUPS): MlxArray {
    const { x, weight } = given;
    const [outputs, inputs] = weight.shape as [number, number];
    const [rows] = x.shape as [number];
    const launch = {
      outputs: [
        { shape: [rows, outputs / 2], dtype: x.dtype },
        { shape: [groups * MAPS * MAP_WORDS], dtype: "int32" as const },
      ],
      grid: [groups * THREADS, 1, 1] as const,
      threadGroup: [THREADS, 1, 1] as const,
      template: { T: x.dtype, K: inputs, N: outputs, GROUPS: groups, STAGES },
    };
    const defines = [`CLUSTER ${CLUSTER}`, `LAUNCH_BOUNDS ${THREADS}, 1`];
    const kernels = this.#kernels.with(defines);
    const made = ["made", "maps"];
    return kernels.runAll("prompt_product", body, given, made, launch, SHARED_BYTES)[0]!;
  }

  free(): void {
    this.#kernels.free();
  }
}
