// Products of a prompt's rows with dense matrices, on NVIDIA GPUs with wgmma (Hopper), fused with
// the next operation: a gate, or RoPE and the writing of keys and values to the KV cache.
import type { MlxArray } from "../../mlx/array.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { MAP_WORDS } from "../host/source.ts";
import { productHeaders } from "./headers.ts";
import type { Form } from "./matrix.ts";
import body from "./prompt-product.c" with { type: "text" };
import { FEW_ROWS, type ProductKernel, type ProductWay } from "./way.ts";

/** CTAs per cluster, with 128 rows each and the same columns. */
const CLUSTER = 2;
const ROWS = CLUSTER * 128;
const COLUMNS = 256;
const STEP = 64;
/** Ring stages. Shared memory also holds mbarriers, two panels (16 rows, 64 columns) per warp, and padding. */
const STAGES = 4;
const SHARED_BYTES = STAGES * ((128 + COLUMNS) * STEP * 2 + 16) + 8 * 2 * 16 * 64 * 2 + 1024;

const THREADS = 384;
/** TMA descriptors per CTA: one each for the rows, the matrix and the output. */
const MAPS = 3;

/** Share of clusters in use, averaged over all waves, below which cuBLAS is faster (docs/log.md). */
const LEAST_SHARE = 0.9;

/** Size of the heads to which the kernel can apply RoPE. */
export const PREPARED_HEAD_DIM = COLUMNS / 2;

/** Whether the kernel is faster than cuBLAS: whole tiles and steps, and full waves of clusters. */
export function fitsPrompt(gpu: Gpu, rows: number, columns: number, inputs: number): boolean {
  return hasWholeTiles(columns, inputs) && costOf(gpu, rows, columns) <= 1;
}

const hasWholeTiles = (columns: number, inputs: number) =>
  columns % COLUMNS === 0 && inputs % STEP === 0;

/** Returns the cost relative to cuBLAS's product (`Way` in way.ts). */
function costOf(gpu: Gpu, rows: number, columns: number): number {
  const across = columns / COLUMNS;
  const clusters = groupsOf(gpu) / CLUSTER;
  const waves = Math.ceil((Math.ceil(rows / ROWS) * across) / clusters);
  return LEAST_SHARE / (((rows / ROWS) * across) / (waves * clusters));
}

/** Returns the number of CTAs that run at once, one per SM, in whole clusters. */
const groupsOf = ({ multiprocessors }: Gpu) => multiprocessors - (multiprocessors % CLUSTER);

type Rows = Readonly<Record<"x" | "weight", MlxArray>>;
type Heads = Readonly<Record<"layer" | "places" | "keys" | "values", MlxArray>>;
type Constants = NonNullable<KernelLaunch["template"]>;

export class PromptProducts implements ProductKernel {
  readonly #kernels: KernelCaches;
  readonly #gpu: Gpu;

  constructor(gpu: Gpu, make: MakeKernel) {
    this.#kernels = new KernelCaches("cuda", make, productHeaders);
    this.#gpu = gpu;
  }

  /** Returns this kernel's entry in the table of products; it fits gated products only. */
  wayFor({ weight, bits, outputs, inputs }: Form): ProductWay | undefined {
    if (bits < 16 || !this.#gpu.hasWgmma || !hasWholeTiles(outputs, inputs)) return undefined;
    return {
      fits: ({ rows, isGated, residual }) => rows > FEW_ROWS && isGated === true && !residual,
      cost: ({ rows }) => costOf(this.#gpu, rows, outputs),
      launch: (x) => this.gated({ x, weight }),
    };
  }

  /** Multiplies x (rows, K) by weight (N, K), gate and up projections -> (rows, N / 2). */
  gated(given: Rows, groups = groupsOf(this.#gpu)): MlxArray {
    return this.#run("prompt_product", given, given.weight.shape[0]! / 2, groups);
  }

  /**
   * Multiplies by weight (N, K), the query, key and value projections -> queries (rows, columns). Writes keys and
   * values to the KV cache like prepare.c, with its constants. `lastQueries`: only each sequence's last query is
   * needed.
   */
  prepared(
    given: Rows & Heads,
    columns: number,
    lastQueries: boolean,
    constants: Constants,
    groups = groupsOf(this.#gpu),
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
