// Products of a few rows with a matrix on NVIDIA GPUs, with what stands around them in a model: the norm
// before, the gate between, the sum behind. MLX asks cuBLAS for a product, which takes our side of a step
// longer than all the rest; a kernel of our own costs a quarter of that.
import { array, type MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { type ConfiguredKernel, Kernel } from "../mlx/kernel.ts";
import { hold, Scope } from "../mlx/scope.ts";
import productBody from "./product.c" with { type: "text" };
import { inLanguage } from "./source.ts";

const WARPS = 8;
const MOST_ROWS = 64;

export type ProductOptions = {
  /** Rows are divided by their root mean square first, and multiplied by this. */
  norm?: { weight: MlxArray; eps: number } | undefined;
  /** What comes out is silu of the first half times the second. */
  isGated?: boolean;
  /** Added to what comes out. */
  residual?: MlxArray | undefined;
};

/** How a product is cut up among the warps of a group. */
export type Tiling = {
  /** Tiles of 16 rows, and of 8 columns, that a warp has. */
  rowTiles: number;
  columnTiles: number;
  /** Warps that have other rows of the same columns. */
  rowWarps: number;
  /** Warps that share rows and columns, each with a part of the rows' length. */
  shares: number;
  /** Loads of the matrix that are under way at once. */
  ahead: number;
};

/** What the device takes longer over than our side does over asking cuBLAS is left to cuBLAS. */
const MOST_ELEMENTS = 2 ** 23;

/** Whether there is a kernel for matrices of this shape. */
export function fitsProduct(outputs: number, inputs: number, dtype: Dtype): boolean {
  const isHalf = dtype === "bfloat16" || dtype === "float16";
  const isSmall = outputs * inputs <= MOST_ELEMENTS;
  return isHalf && isSmall && inputs % 32 === 0 && outputs % 64 === 0;
}

/** Many rows are worth cuBLAS. */
export function isFew(rows: number): boolean {
  return rows <= MOST_ROWS;
}

export class Products {
  #kernel: Kernel | undefined;
  readonly #configured = new Map<string, ConfiguredKernel>();
  readonly #sizes = new Map<string, MlxArray>();

  /** x (rows, K), weight (N, K) -> (rows, N), or where it is gated (rows, N / 2) */
  product(
    x: MlxArray,
    weight: MlxArray,
    { norm, isGated = false, residual }: ProductOptions,
    tiling?: Tiling,
  ): MlxArray {
    const [rows, inputs] = x.shape as [number, number];
    const [outputs] = weight.shape as [number];
    const tiles = tiling ?? tilingOf(rows, outputs);
    const template = {
      T: x.dtype,
      MT: tiles.rowTiles,
      NT: tiles.columnTiles,
      RS: tiles.rowWarps,
      KS: tiles.shares,
      AHEAD: tiles.ahead,
      WARPS,
      GATED: isGated,
      RESIDUAL: residual !== undefined,
      EPS: Math.round((norm?.eps ?? 0) * 1e9),
    };
    const key = [rows, outputs, ...Object.values(template)].join();
    const columns = (WARPS / tiles.shares / tiles.rowWarps) * tiles.columnTiles * 8;
    const configured =
      this.#configured.get(key) ??
      this.#kernelOf().configure({
        outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
        grid: [WARPS * 32, outputs / columns, 1],
        threadGroup: [WARPS * 32, 1, 1],
        template,
      });
    this.#configured.set(key, configured);
    const sizes = this.#sizesOf(rows, inputs, outputs);
    return configured.call(x, weight, sizes, norm?.weight ?? x, residual ?? x)[0]!;
  }

  free(): void {
    for (const each of this.#configured.values()) each.free();
    for (const each of this.#sizes.values()) each.free();
    this.#kernel?.free();
  }

  #kernelOf(): Kernel {
    this.#kernel ??= new Kernel("cuda", {
      name: "mlx_serve_product",
      inputs: ["x", "weight", "sizes", "norm", "residual"],
      outputs: ["made"],
      ...inLanguage(productBody, "cuda"),
    });
    return this.#kernel;
  }

  #sizesOf(...sizes: [rows: number, inputs: number, outputs: number]): MlxArray {
    const key = sizes.join();
    const found = this.#sizes.get(key);
    if (found) return found;
    using _ = new Scope();
    const made = hold(array(Int32Array.from(sizes)));
    made.evaluate();
    this.#sizes.set(key, made);
    return made;
  }
}

/** A few ways for all numbers of rows: each is compiled. Found by trying (docs/log.md). */
function tilingOf(rows: number, outputs: number): Tiling {
  const rowTiles = 2 ** Math.ceil(Math.log2(Math.ceil(rows / 16)));
  const isWide = outputs >= 4096;
  const columnTiles = isWide && rowTiles > 1 ? 4 : 2;
  const shares = outputs > 4096 ? 4 : 8;
  return { rowTiles, columnTiles, rowWarps: 1, shares, ahead: 4 };
}
