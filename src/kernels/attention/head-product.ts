// Products of the columns of each head with a matrix of its own on NVIDIA GPUs, from where the columns are to where
// they are needed: MLX would copy both.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { Constants } from "../host/constants.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./head-product.c" with { type: "text" };
import type { HeadColumns } from "./latent-attention.ts";

/** Matrices (heads, out, in), or transposed. */
export type HeadMatrices = { weight: MlxArray; isTransposed: boolean };

/** What a group has on smaller GPUs. */
const SHARED_MEMORY = 99 * 1024;

/** Tiles of 16 rows that a group has at most, and of 16 columns. */
const MOST_ROW_TILES = 4;
const COLUMN_TILES = [4, 2] as const;

/** Whether there is a kernel for these columns and matrices. */
export function fitsHeads({ rows, first, stride }: HeadColumns, matrices: HeadMatrices): boolean {
  const isAligned = [rows.shape[1]!, first, stride].every((count) => count % 8 === 0);
  const isOneType = rows.dtype === matrices.weight.dtype && isHalf(rows.dtype);
  const isWhole = sizesOf(matrices).inputs % 16 === 0;
  return isAligned && isOneType && isWhole && columnTilesOf(matrices) !== undefined;
}

function sizesOf({ weight, isTransposed }: HeadMatrices) {
  const [heads, lines, line] = weight.shape as [number, number, number];
  return isTransposed
    ? { heads, inputs: lines, outputs: line }
    : { heads, inputs: line, outputs: lines };
}

/** As many as fit the shared memory with the most rows. */
function columnTilesOf(matrices: HeadMatrices): number | undefined {
  const { outputs } = sizesOf(matrices);
  return COLUMN_TILES.find(
    (tiles) =>
      outputs % (tiles * 16) === 0 &&
      sharedMemory(matrices, MOST_ROW_TILES, tiles) <= SHARED_MEMORY,
  );
}

/** Of 2 bytes a number, and 16 more a row. */
function sharedMemory(matrices: HeadMatrices, rowTiles: number, columnTiles: number): number {
  const { inputs } = sizesOf(matrices);
  const columns = columnTiles * 16;
  const [lines, line] = matrices.isTransposed ? [inputs, columns] : [columns, inputs];
  return (rowTiles * 16 * (inputs + 8) + lines * (line + 8)) * 2;
}

export class HeadProducts {
  readonly #kernels: KernelCache;
  readonly #constants = new Constants();

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
  }

  /** For columns and matrices that fit -> (T, heads * out) */
  product(x: HeadColumns, matrices: HeadMatrices): MlxArray {
    const { rows: all, first, stride } = x;
    const { weight, isTransposed } = matrices;
    const { heads, inputs, outputs } = sizesOf(matrices);
    const [rows, columns] = all.shape as [number, number];
    const rowTiles = rows <= 16 ? 1 : rows <= 32 ? 2 : MOST_ROW_TILES;
    const columnTiles = columnTilesOf(matrices)!;
    // Four warps, where there is something to do for each.
    const rowWarps = Math.min(rowTiles, 4 / columnTiles);
    const threads = rowWarps * columnTiles * 32;
    const bytes = sharedMemory(matrices, rowTiles, columnTiles);
    const launch = {
      outputs: [{ shape: [rows, heads * outputs], dtype: all.dtype }],
      grid: [
        (outputs / (columnTiles * 16)) * threads,
        heads,
        Math.ceil(rows / (rowTiles * 16)),
      ] as const,
      threadGroup: [threads, 1, 1] as const,
      template: {
        T: all.dtype,
        HEADS: heads,
        INPUTS: inputs,
        OUTPUTS: outputs,
        X_COLUMNS: columns,
        FIRST: first,
        STRIDE: stride,
        TRANSPOSED: isTransposed,
        ROW_TILES: rowTiles,
        COLUMN_TILES: columnTiles,
        ROW_WARPS: rowWarps,
      },
    };
    const given = { x: all, weight, sizes: this.#constants.ints(rows) };
    // A kernel has one size of shared memory.
    return this.#kernels.run(`head_product_${bytes}`, body, given, "made", launch, bytes);
  }

  free(): void {
    this.#kernels.free();
    this.#constants.free();
  }
}
