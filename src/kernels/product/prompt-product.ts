// Products of a prompt's rows with dense matrices, on NVIDIA GPUs with wgmma (Hopper), and what comes behind them: a gate, or what
// is done to heads before they attend.
import type { MlxArray } from "../../mlx/array.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { MAP_WORDS } from "../host/source.ts";
import { productHeaders } from "./headers.ts";
import body from "./prompt-product.c" with { type: "text" };

/** A cluster's tiles: two of 128 rows of x, with the same two times 128 columns of the matrix. */
const CLUSTER = 2;
const ROWS = CLUSTER * 128;
const COLUMNS = 256;
const STEP = 64;
/** Steps of rows and columns in shared memory, two panels of 16 rows and 64 columns for eight warps, barriers, and to align them. */
const STAGES = 4;
const SHARED_BYTES = STAGES * ((128 + COLUMNS) * STEP * 2 + 16) + 8 * 2 * 16 * 64 * 2 + 1024;

const THREADS = 384;
/** Of a group: where rows are, where columns are, and where what is made goes. */
const MAPS = 3;

/** Where as much of what clusters compute is wanted, cuBLAS is slower (docs/log.md). */
const LEAST_SHARE = 0.9;

/** Of heads that it can prepare. */
export const PREPARED_HEAD_DIM = COLUMNS / 2;

/** Whether all columns are in whole tiles, inputs in whole steps, and so many rows fill all clusters. */
export function fitsPrompt(gpu: Gpu, rows: number, columns: number, inputs: number): boolean {
  if (columns % COLUMNS !== 0 || inputs % STEP !== 0) return false;
  const across = columns / COLUMNS;
  const clusters = groupsOf(gpu) / CLUSTER;
  const turns = Math.ceil((Math.ceil(rows / ROWS) * across) / clusters);
  return ((rows / ROWS) * across) / (turns * clusters) >= LEAST_SHARE;
}

/** CTAs of the whole clusters that run at once, one per SM. */
const groupsOf = ({ multiprocessors }: Gpu) => multiprocessors - (multiprocessors % CLUSTER);

type Rows = Readonly<Record<"x" | "weight", MlxArray>>;
type Heads = Readonly<Record<"layer" | "places" | "keys" | "values", MlxArray>>;
type Constants = NonNullable<KernelLaunch["template"]>;

export class PromptProducts {
  readonly #kernels: KernelCaches;
  readonly #groups: number;

  constructor(gpu: Gpu, make: MakeKernel) {
    this.#kernels = new KernelCaches("cuda", make, productHeaders);
    this.#groups = groupsOf(gpu);
  }

  /** x (rows, K), weight (N, K) of a gate and of what it gates -> (rows, N / 2) */
  gated(given: Rows, groups = this.#groups): MlxArray {
    return this.#run("prompt_product", given, given.weight.shape[0]! / 2, groups);
  }

  /**
   * weight (N, K) of queries, keys and values -> queries (rows, columns); keys and values are written to their places, as
   * prepare.c does, which has the same constants. `lastQueries`: those of the last token of each sequence are all that is wanted.
   */
  prepared(
    given: Rows & Heads,
    columns: number,
    lastQueries: boolean,
    constants: Constants,
    groups = this.#groups,
  ): MlxArray {
    const template = { ...constants, LAST_QUERIES: lastQueries };
    return this.#run("prompt_heads", given, columns, groups, ["PREPARES"], template);
  }

  #run(
    name: string,
    given: Rows,
    columns: number,
    groups: number,
    defines: readonly string[] = [],
    constants: Constants = {},
  ): MlxArray {
    const { x, weight } = given;
    const [outputs, inputs] = weight.shape as [number, number];
    const [rows] = x.shape as [number];
    const launch = {
      outputs: [
        { shape: [rows, columns], dtype: x.dtype },
        { shape: [groups * MAPS * MAP_WORDS], dtype: "int32" as const },
      ],
      grid: [groups * THREADS, 1, 1] as const,
      threadGroup: [THREADS, 1, 1] as const,
      template: { T: x.dtype, ...constants, K: inputs, N: outputs, GROUPS: groups, STAGES },
    };
    const bounds = [`CLUSTER ${CLUSTER}`, `LAUNCH_BOUNDS ${THREADS}, 1`];
    const kernels = this.#kernels.with([...bounds, ...defines]);
    return kernels.runAll(name, body, given, ["made", "maps"], launch, SHARED_BYTES)[0]!;
  }

  free(): void {
    this.#kernels.free();
  }
}
