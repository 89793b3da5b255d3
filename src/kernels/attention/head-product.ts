// Batched products of each head's columns with that head's matrix, on NVIDIA GPUs. The kernel reads its input and
// writes its output in the layouts of the neighbouring operations, where MLX would make copies.
import type { MlxArray } from "../../mlx/array.ts";
import { isHalf } from "../../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import body from "./head-product.c" with { type: "text" };
import type { HeadColumns } from "./latent-attention.ts";

/** Matrices (heads, out, in), or (heads, in, out) if transposed. */
export type HeadMatrices = { weight: MlxArray; isTransposed: boolean };

/** Bytes of shared memory per CTA on smaller GPUs. */
const SHARED_MEMORY = 99 * 1024;

/** Maximum tiles of 16 rows per CTA, and the choices of tiles of 16 columns per CTA. */
const MOST_ROW_TILES = 4;
const COLUMN_TILES = [4, 2] as const;

/** Whether the kernel supports these columns and matrices. */
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

/** Returns the most column tiles that fit in shared memory with MOST_ROW_TILES row tiles, if any. */
function columnTilesOf(matrices: HeadMatrices): number | undefined {
  const { outputs } = sizesOf(matrices);
  return COLUMN_TILES.find(
    (tiles) =>
      outputs % (tiles * 16) === 0 &&
      sharedMemory(matrices, MOST_ROW_TILES, tiles) <= SHARED_MEMORY,
  );
}

/** Returns the bytes of shared memory of a CTA: 2 bytes per element, and 16 bytes of padding per row. */
function sharedMemory(matrices: HeadMatrices, rowTiles: number, columnTiles: number): number {
  const { inputs } = sizesOf(matrices);
  const columns = columnTiles * 16;
  const [lines, line] = matrices.isTransposed ? [inputs, columns] : [columns, inputs];
  return (rowTiles * 16 * (inputs + 8) + lines * (line + 8)) * 2;
}

export class HeadProducts {
  readonly #kernels: KernelCache;

  constructor(make: MakeKernel = makeKernel) {
    this.#kernels = new KernelCache("cuda", make);
  }

  /** Multiplies x by the matrices -> (T, heads * out). Only for operands that pass fitsHeads. */
  product(x: HeadColumns, matrices: HeadMatrices): MlxArray {
    const { rows: all, first, stride } = x;
    const { weight, isTransposed } = matrices;
    const { heads, inputs, outputs } = sizesOf(matrices);
    const [rows, columns] = all.shape as [number, number];
    const rowTiles = rows <= 16 ? 1 : rows <= 32 ? 2 : MOST_ROW_TILES;
    const columnTiles = columnTilesOf(matrices)!;
    // Uses four warps, or fewer if there are fewer tiles.
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
    const given = { x: all, weight };
    // A compiled kernel has a fixed size of shared memory, so the size is part of its name.
    return this.#kernels.run(`head_product_${bytes}`, body, given, "made", launch, bytes);
  }

  free(): void {
    this.#kernels.free();
  }
}
