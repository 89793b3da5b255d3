// Products of a few rows with a matrix on NVIDIA GPUs, with what stands around them in a model: the norm
// before, the gate between, the sum behind. Where a product takes microseconds, each launch that is saved counts.
import { array, type MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import { type Dtype, isHalf } from "../mlx/dtype.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import type { Quantization, QuantizedMatrix } from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import productBody from "./product.c" with { type: "text" };
import { inLanguage } from "./source.ts";

const WARPS = 8;

/** (..., N, K), dense or packed by MLX. */
export type Matrix = { kind: "dense"; weight: MlxArray } | Packed;
export type Packed = { kind: "packed"; matrix: QuantizedMatrix; quantization: Quantization };

/** cuBLAS is quicker with larger ones. */
const MOST_ELEMENTS = 2 ** 23;

/** A kernel computes so many rows for each of its groups. */
const ROWS = 16;

/** Groups that an H200 runs at once, one on each of its processors. */
const GROUPS = 132;

/** Whether there is a kernel for rows of this type and such a matrix. */
export function fitsProduct(matrix: Matrix, dtype: Dtype): boolean {
  const { weight, numbers, bits, outputs, inputs } = formOf(matrix);
  const isKnown =
    matrix.kind === "dense"
      ? outputs * inputs <= MOST_ELEMENTS
      : matrix.quantization.mode === "affine" && (bits === 4 || bits === 8);
  // A step of a warp is 64 bytes of a row; offsets have 32 bits.
  const isWhole = inputs % (512 / bits) === 0 && outputs % 64 === 0 && weight.bytes < 2 ** 32;
  return isHalf(dtype) && numbers === dtype && isKnown && isWhole;
}

/**
 * Many rows are worth cuBLAS, more of them where a packed matrix has to be unpacked first; and MLX is quickest with
 * one of a dense matrix (docs/log.md).
 */
export function isFew(rows: number, kind: Matrix["kind"], isUnpacked: boolean): boolean {
  return (kind === "packed" || rows > 1) && rows <= (isUnpacked ? ROWS : 4 * ROWS);
}

function formOf(matrix: Matrix) {
  if (matrix.kind === "dense") {
    const { weight } = matrix;
    const [outputs, inputs] = weight.shape as [number, number];
    return { weight, numbers: weight.dtype, bits: 16, span: 1, outputs, inputs };
  }
  const { weight, scales } = matrix.matrix;
  const { bits = 4, groupSize = 64 } = matrix.quantization;
  const [outputs, words] = weight.shape as [number, number];
  const inputs = (words * 32) / bits;
  return { weight, numbers: scales.dtype, bits, span: groupSize, outputs, inputs };
}

/**
 * Tiles of 8 columns that a warp has, warps with the same columns that have a share of the rows' length
 * each, and loads of the matrix that are under way at once. With more columns rows are read less often,
 * where there are groups enough.
 */
function launchOf(kind: Matrix["kind"], outputs: number) {
  if (kind === "dense") return { tiles: 2, shares: outputs > 4096 ? 4 : 8, ahead: 4 };
  if (outputs >= 64 * GROUPS) return { tiles: 4, shares: 4, ahead: 2 };
  if (outputs >= 32 * GROUPS) return { tiles: 4, shares: 8, ahead: 2 };
  return { tiles: 2, shares: 8, ahead: 4 };
}

type Kernel = ReturnType<MakeKernel>;

export class Products {
  readonly #makeKernel: MakeKernel;
  #kernel: Kernel | undefined;
  readonly #configured = new Map<string, ReturnType<Kernel["configure"]>>();
  readonly #sizes = new Map<string, MlxArray>();

  constructor(make: MakeKernel = makeKernel) {
    this.#makeKernel = make;
  }

  /** x (rows, K), matrix (N, K) -> (rows, N), or where it is gated (rows, N / 2) */
  product(
    x: MlxArray,
    matrix: Matrix,
    { norm, isGated = false, residual }: ProductOptions,
  ): MlxArray {
    const [rows] = x.shape as [number];
    const { weight, bits, span, outputs, inputs } = formOf(matrix);
    const { tiles, shares, ahead } = launchOf(matrix.kind, outputs);
    const template = {
      T: x.dtype,
      BITS: bits,
      SPAN: span,
      NT: tiles,
      KS: shares,
      AHEAD: ahead,
      WARPS,
      GATED: isGated,
      RESIDUAL: residual !== undefined,
      EPS: Math.round((norm?.eps ?? 0) * 1e9),
    };
    const key = [rows, outputs, ...Object.values(template)].join();
    const columns = (WARPS / shares) * tiles * 8;
    const configured =
      this.#configured.get(key) ??
      this.#kernelOf().configure({
        outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
        grid: [Math.ceil(rows / ROWS) * WARPS * 32, outputs / columns, 1],
        threadGroup: [WARPS * 32, 1, 1],
        template,
      });
    this.#configured.set(key, configured);
    const sizes = this.#sizesOf(rows, inputs, outputs);
    const { scales, biases } = matrix.kind === "packed" ? matrix.matrix : { scales: x, biases: x };
    const around = [norm?.weight ?? x, residual ?? x] as const;
    return configured.call(x, weight, scales, biases!, sizes, ...around)[0]!;
  }

  free(): void {
    for (const each of this.#configured.values()) each.free();
    for (const each of this.#sizes.values()) each.free();
    this.#kernel?.free();
  }

  #kernelOf(): Kernel {
    this.#kernel ??= this.#makeKernel("cuda", {
      name: "mlx_serve_product",
      inputs: ["x", "weight", "scales", "biases", "sizes", "norm", "residual"],
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
