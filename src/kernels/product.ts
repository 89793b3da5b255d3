// Products of a few rows with a matrix on NVIDIA GPUs, with what stands around them in a model: the norm
// before, the gate between, the sum behind. Where a product takes microseconds, each launch that is saved counts.
import { array, type MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { type ConfiguredKernel, Kernel } from "../mlx/kernel.ts";
import { hold, Scope } from "../mlx/scope.ts";
import productBody from "./product.c" with { type: "text" };
import { inLanguage } from "./source.ts";

const WARPS = 8;

export type ProductOptions = {
  /** Rows are divided by their root mean square first, and multiplied by this. */
  norm?: { weight: MlxArray; eps: number } | undefined;
  /** What comes out is silu of the first half times the second. */
  isGated?: boolean;
  /** Added to what comes out. */
  residual?: MlxArray | undefined;
};

/** Tiles of 8 columns that a warp has. */
const COLUMN_TILES = 2;

/** Loads of the matrix that are under way at once. */
const AHEAD = 4;

/** cuBLAS is quicker with larger ones. */
const MOST_ELEMENTS = 2 ** 23;

/** Whether there is a kernel for matrices of this shape. */
export function fitsProduct(outputs: number, inputs: number, dtype: Dtype): boolean {
  const isHalf = dtype === "bfloat16" || dtype === "float16";
  const isSmall = outputs * inputs <= MOST_ELEMENTS;
  return isHalf && isSmall && inputs % 32 === 0 && outputs % 64 === 0;
}

/** Many rows are worth cuBLAS, and MLX is quickest with one (docs/log.md). */
export function isFew(rows: number): boolean {
  return rows > 1 && rows <= 16;
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
  ): MlxArray {
    const [rows, inputs] = x.shape as [number, number];
    const [outputs] = weight.shape as [number];
    // Warps that have the same columns, each with a share of the rows' length.
    const shares = outputs > 4096 ? 4 : 8;
    const template = {
      T: x.dtype,
      NT: COLUMN_TILES,
      KS: shares,
      AHEAD,
      WARPS,
      GATED: isGated,
      RESIDUAL: residual !== undefined,
      EPS: Math.round((norm?.eps ?? 0) * 1e9),
    };
    const key = [rows, outputs, ...Object.values(template)].join();
    const columns = (WARPS / shares) * COLUMN_TILES * 8;
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
