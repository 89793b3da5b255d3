// Products of rows with a matrix on NVIDIA GPUs, with what stands around them in a model: the norm before, the
// gate between, the sum behind. Where a product takes microseconds, each launch that is saved counts. There is a
// kernel for a few rows, and one for many with a packed matrix, which it unpacks once for all of them.
import { array, type MlxArray } from "../mlx/array.ts";
import type { ProductOptions } from "../mlx/cpu.ts";
import { type Dtype, isHalf } from "../mlx/dtype.ts";
import { rmsNorm } from "../mlx/fast.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import type { Quantization, QuantizedMatrix } from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import fewBody from "./product.c" with { type: "text" };
import manyBody from "./product-many.c" with { type: "text" };
import { kernelSource } from "./source.ts";

/** (..., N, K), dense or packed by MLX. */
export type Matrix = { kind: "dense"; weight: MlxArray } | Packed;
export type Packed = { kind: "packed"; matrix: QuantizedMatrix; quantization: Quantization };

/** cuBLAS is quicker with larger ones. */
const MOST_ELEMENTS = 2 ** 23;

/** Rows that are a few. */
const FEW = 16;

/** With more rows than this a packed matrix had better be unpacked. */
const MANY = 256;

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
 * Whether with so many rows there is nothing quicker (docs/log.md): with one of a dense matrix MLX is, with many
 * cuBLAS, but later where a packed matrix has to be unpacked for it.
 */
export function isQuickest(rows: number, kind: Matrix["kind"], isUnpacked: boolean): boolean {
  return (kind === "packed" || rows > 1) && rows <= (isUnpacked ? FEW : MANY);
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

type Launch = {
  /** The kernel's name, and its text. */
  name: string;
  body: string;
  /** Of a group: its warps, its rows, and the bytes of its dynamic shared memory. */
  warps: number;
  rows: number;
  sharedMemory: number;
  /** Tiles of 8 columns that a warp has. */
  tiles: number;
  /** Warps with the same columns, which have a share of the rows' length each. */
  shares: number;
  template: Readonly<Record<string, number>>;
};

/** With more columns a warp rows are read less often, where there are groups enough. */
function launchOfFew(kind: Matrix["kind"], outputs: number, eps: number): Launch {
  const launch = (tiles: number, shares: number, ahead: number) => ({
    name: "product",
    body: fewBody,
    warps: 8,
    rows: FEW,
    sharedMemory: 0,
    tiles,
    shares,
    // Loads of the matrix that are under way at once.
    template: { AHEAD: ahead, EPS: Math.round(eps * 1e9) },
  });
  if (kind === "dense") return launch(2, outputs > 4096 ? 4 : 8, 4);
  if (outputs >= 64 * GROUPS) return launch(4, 4, 2);
  if (outputs >= 32 * GROUPS) return launch(4, 8, 2);
  return launch(2, 8, 4);
}

/** In larger pieces less is read, but there are fewer of them (docs/log.md). */
function launchOfMany(rows: number, outputs: number, bits: number): Launch {
  const launch = (rowTiles: number, tiles: number, shares: number) => ({
    name: "product_many",
    body: manyBody,
    warps: 4,
    rows: rowTiles * 16,
    // Of its rows what two steps multiply: 512 / bits elements of each share.
    sharedMemory: 2 * rowTiles * 16 * shares * (512 / bits) * 2,
    tiles,
    shares,
    template: { MT: rowTiles },
  });
  const columns = Math.ceil(rows / 32) * outputs;
  if (columns <= 48 * GROUPS) return launch(2, 2, 4);
  if (columns <= 104 * GROUPS) return launch(2, 4, 4);
  return launch(rows <= 32 || columns <= 200 * GROUPS ? 2 : 4, 4, 2);
}

type Kernel = ReturnType<MakeKernel>;

export class Products {
  readonly #makeKernel: MakeKernel;
  readonly #kernels = new Map<string, Kernel>();
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
    // Beside many rows a launch for their norm is little.
    if (norm && rows > FEW) {
      return this.product(rmsNorm(x, norm.weight, norm.eps), matrix, { isGated, residual });
    }
    const { weight, bits, span, outputs, inputs } = formOf(matrix);
    const launch =
      rows > FEW
        ? launchOfMany(rows, outputs, bits)
        : launchOfFew(matrix.kind, outputs, norm?.eps ?? 0);
    const template = {
      T: x.dtype,
      BITS: bits,
      SPAN: span,
      NT: launch.tiles,
      KS: launch.shares,
      WARPS: launch.warps,
      GATED: isGated,
      RESIDUAL: residual !== undefined,
      ...launch.template,
    };
    const key = [rows, outputs, ...Object.values(template)].join();
    let configured = this.#configured.get(key);
    if (!configured) {
      const threads = launch.warps * 32;
      const columns = (launch.warps / launch.shares) * launch.tiles * 8;
      configured = this.#kernelOf(launch).configure({
        outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
        grid: [Math.ceil(rows / launch.rows) * threads, outputs / columns, 1],
        threadGroup: [threads, 1, 1],
        template,
      });
      this.#configured.set(key, configured);
    }
    const sizes = this.#sizesOf(rows, inputs, outputs);
    const { scales, biases } = matrix.kind === "packed" ? matrix.matrix : { scales: x, biases: x };
    const around = [norm?.weight ?? x, residual ?? x] as const;
    return configured.call(x, weight, scales, biases!, sizes, ...around)[0]!;
  }

  free(): void {
    for (const each of this.#configured.values()) each.free();
    for (const each of this.#sizes.values()) each.free();
    for (const each of this.#kernels.values()) each.free();
  }

  #kernelOf({ name, body, sharedMemory }: Launch): Kernel {
    const key = `${name} ${sharedMemory}`;
    const found = this.#kernels.get(key);
    if (found) return found;
    const made = this.#makeKernel("cuda", {
      name: `mlx_serve_${name}`,
      inputs: ["x", "weight", "scales", "biases", "sizes", "norm", "residual"],
      outputs: ["made"],
      sharedMemory,
      ...kernelSource(body, "cuda"),
    });
    this.#kernels.set(key, made);
    return made;
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
