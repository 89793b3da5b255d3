// Products of a prompt's rows with a dense matrix, on NVIDIA GPUs with wgmma (Hopper).
import type { MlxArray } from "../mlx/array.ts";
import type { MakeKernel } from "../mlx/kernel.ts";
import { KernelCaches } from "./kernel-cache.ts";
import body from "./prompt-product.c" with { type: "text" };

/** With fewer rows there are fewer tiles than what makes a GPU busy. */
export const LEAST_ROWS = 1024;

/** Of neighbouring tiles that share what they read: so many with the same columns, and with the same rows. */
export type ClusterShape = { down: number; across: number };

/** The first that a matrix has columns for. */
const CLUSTERS: readonly ClusterShape[] = [
  { down: 2, across: 2 },
  { down: 2, across: 1 },
];

/** Of a tile: 128 rows of x. */
const COLUMNS = 256;
const STEP = 64;
/** Steps of rows and columns in shared memory, what eight warps make of 16 rows and 128 columns, barriers, and to align them. */
const STAGES = 4;
const SHARED_BYTES = STAGES * ((128 + COLUMNS) * STEP * 2 + 16) + 8 * 16 * 128 * 2 + 1024;

const THREADS = 384;
/** Groups of an H200 that run at once, one on each multiprocessor, in clusters of up to four. */
const GROUPS = 128;
/** What copies know of a matrix, in numbers of 32 bits. */
const MAP_WORDS = 32;

/** Undefined where a matrix is not made of whole tiles and steps. */
export function clusterShape(columns: number, inputs: number): ClusterShape | undefined {
  if (inputs % STEP !== 0) return undefined;
  return CLUSTERS.find(({ across }) => columns % (across * COLUMNS) === 0);
}

export class PromptProducts {
  readonly #kernels: KernelCaches;

  constructor(make: MakeKernel) {
    this.#kernels = new KernelCaches("cuda", make);
  }

  /** x (rows, K), weight (N, K), sizes (rows) -> (rows, N), or gated (rows, N / 2) */
  product(
    given: Readonly<
      Record<"x" | "weight" | "sizes", MlxArray> & { residual: MlxArray | undefined }
    >,
    { down, across }: ClusterShape,
    isGated: boolean,
    groups = GROUPS,
  ): MlxArray {
    const { x, weight, residual } = given;
    const [outputs, inputs] = weight.shape as [number, number];
    const [rows] = x.shape as [number];
    const launch = {
      outputs: [
        { shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype },
        { shape: [groups * 2 * MAP_WORDS], dtype: "int32" as const },
      ],
      grid: [groups * THREADS, 1, 1] as const,
      threadGroup: [THREADS, 1, 1] as const,
      template: {
        T: x.dtype,
        K: inputs,
        N: outputs,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        DOWN: down,
        ACROSS: across,
        GROUPS: groups,
        STAGES,
      },
    };
    const defines = [`CLUSTER ${down * across}`, `LAUNCH_BOUNDS ${THREADS}, 1`];
    // Inputs that the kernel does not use may be any array.
    const inputsOf = { ...given, residual: residual ?? x };
    const kernels = this.#kernels.with(defines);
    const made = ["made", "maps"];
    return kernels.runAll("prompt_product", body, inputsOf, made, launch, SHARED_BYTES)[0]!;
  }

  free(): void {
    this.#kernels.free();
  }
}
