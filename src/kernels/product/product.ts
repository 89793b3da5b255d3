// Products of rows with a matrix on NVIDIA GPUs, fused with their neighbours in a model: the norm before, the gate,
// the residual behind. Where a product takes microseconds, each launch that is saved counts. There is a kernel for
// few rows, and one for many with a quantized matrix, which it dequantizes once for all of them. Where GPUs can do more,
// many rows have others: with a quantized matrix (warpgroup-product.ts), and with dense experts (expert-product.ts).
import type { MlxArray } from "../../mlx/array.ts";
import type { ProductOptions } from "../../mlx/cpu.ts";
import { type Dtype, isHalf } from "../../mlx/dtype.ts";
import { rmsNorm } from "../../mlx/fast.ts";
import { type KernelLaunch, type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { Constants } from "../host/constants.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import { DenseProducts, denseShape } from "./dense-product.ts";
import { fitsWideTiles, WIDE_ROW_TILES, WideExpertProducts } from "./expert-product.ts";
import tilesBody from "./expert-tiles.c" with { type: "text" };
import { productHeaders } from "./headers.ts";
import type { Matrix } from "./matrix.ts";
import fewBody from "./product.c" with { type: "text" };
import manyBody from "./product-many.c" with { type: "text" };
import { fitsPrompt, PromptProducts } from "./prompt-product.ts";
import { fitsVector, Vectors } from "./vector.ts";
import { type AskedShape, WarpgroupProducts } from "./warpgroup-product.ts";

/** cuBLAS is faster with larger matrices. */
const MOST_ELEMENTS = 10 * 2 ** 20;

/** The most rows of the kernel for few, and its warps. */
const FEW = 16;
const FEW_WARPS = 8;

/** With more rows than this it is faster to dequantize the matrix for cuBLAS. */
const MANY = 256;

/** With so many rows reading a matrix takes the time, if it is large: less, where it is quantized. */
const READING_ROWS = 64;
const LARGE = 2 ** 27;

/** Whether there is a kernel for rows of this type and such a matrix. */
export function fitsProduct(matrix: Matrix, dtype: Dtype): boolean {
  const { weight, numbers, bits, outputs, inputs } = formOf(matrix);
  const isKnown =
    matrix.kind === "dense"
      ? outputs * inputs <= MOST_ELEMENTS
      : matrix.quantization.mode === "affine" && (bits === 4 || bits === 8);
  // A step of a warp is 64 bytes of a row; the smallest groups have 16 columns; offsets have 32 bits.
  const isWhole = inputs % (512 / bits) === 0 && outputs % 16 === 0 && weight.bytes < 2 ** 32;
  return isHalf(dtype) && numbers === dtype && isKnown && isWhole;
}

/** Rows that `Products.experts` takes at most: one group of threads sorts them. */
export const MOST_SORTED = 2 ** 17;

/** Rows an expert of tiles of 16: with more on average, many experts have several, and are read as often. */
const MOST_OF_ONE_TILE = 10;

/** Whether there is a kernel for such matrices of experts, (E, N, K), and rows of their type. */
export function fitsExperts(matrix: Matrix): boolean {
  const { numbers, bits, outputs, inputs, bytes } = expertForm(matrix);
  const isKnown =
    matrix.kind === "dense" ||
    (matrix.quantization.mode === "affine" && (bits === 4 || bits === 8));
  const isWhole = inputs % (512 / bits) === 0 && outputs % 64 === 0 && bytes < 2 ** 32;
  return isHalf(numbers) && isKnown && isWhole;
}

function expertForm(matrix: Matrix) {
  const { weight, numbers, bits, span } = formOf(matrix);
  const [experts, outputs, columns] = weight.shape as [number, number, number];
  const inputs = matrix.kind === "dense" ? columns : (columns * 32) / bits;
  return { weight, numbers, bits, span, experts, outputs, inputs, bytes: weight.bytes / experts };
}

/**
 * Whether our kernels are the fastest for so many rows (docs/log.md): for many cuBLAS is faster, unless they are `gated`; for
 * quantized matrices only from more rows on, unless they are kept dequantized too.
 */
export function quickestRows(
  matrix: Matrix,
  dtype: Dtype,
  isUnpacked: boolean,
  gpu: Gpu,
): (rows: number, isGated: boolean) => boolean {
  const form = formOf(matrix);
  const { outputs, inputs } = form;
  const isRead = matrix.kind === "packed" && outputs * inputs >= LARGE;
  const unpacked = isRead ? READING_ROWS : FEW;
  const most = !fitsProduct(matrix, dtype) ? 0 : isUnpacked ? unpacked : MANY;
  const isVector = fitsOneRow(matrix, dtype);
  const isDense =
    gpu.hasWgmma && matrix.kind === "dense" && matrix.weight.dtype === dtype && isHalf(dtype);
  return (rows, isGated) => {
    if (rows === 1 && matrix.kind === "dense") return isVector;
    if (rows <= most) return true;
    const isPrompt = isGated && fitsPrompt(gpu, rows, outputs, inputs);
    return isDense && (isPrompt || denseShapeOf(gpu, rows, form) !== undefined);
  };
}

/** How a dense matrix is multiplied where there is wgmma; undefined where there are other kernels, or cuBLAS. */
function denseShapeOf(gpu: Gpu, rows: number, { outputs, inputs }: Form) {
  return rows <= FEW ? undefined : denseShape(gpu, { rows, columns: outputs, inputs });
}

function fitsOneRow(matrix: Matrix, dtype: Dtype): boolean {
  const form = formOf(matrix);
  const isOneType = form.numbers === dtype && isHalf(dtype);
  const isKnown = matrix.kind === "dense" || fitsProduct(matrix, dtype);
  return isOneType && isKnown && fitsVector(form);
}

type Form = ReturnType<typeof formOf>;

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
  /** Per group: warps, rows, and bytes of dynamic shared memory. */
  warps: number;
  rows: number;
  sharedMemory: number;
  /** Tiles of 8 columns per warp. */
  tiles: number;
  /** Warps with the same columns, which split K between them. */
  shares: number;
  template: Readonly<Record<string, number | boolean>>;
};

/** With more columns per warp the rows are read less often, if there are still enough groups. */
function launchOfFew(
  { multiprocessors }: Gpu,
  kind: Matrix["kind"],
  { outputs, inputs }: Form,
  eps: number,
): Launch {
  const launch = (tiles: number, shares: number, ahead: number) => ({
    name: "product",
    body: fewBody,
    warps: FEW_WARPS,
    rows: FEW,
    sharedMemory: 0,
    tiles,
    shares,
    // Loads of the matrix in flight.
    template: { K: inputs, N: outputs, AHEAD: ahead, EPS: billionths(eps), EXPERTS: false },
  });
  const isWhole = (columns: number) => outputs % columns === 0;
  if (kind === "dense") return launch(2, outputs > 4096 && isWhole(32) ? 4 : 8, 4);
  if (outputs >= 64 * multiprocessors && isWhole(64)) return launch(4, 4, 2);
  if (outputs >= 32 * multiprocessors && isWhole(32)) return launch(4, 8, 2);
  return launch(2, 8, 4);
}

/** Of product-many.c, with tiles of `rowTiles` times 16 rows. */
function manyLaunch(
  rowTiles: number,
  tiles: number,
  shares: number,
  bits: number,
  hasExperts = false,
): Launch {
  // The rows' elements of two steps: 512 / bits of each share.
  const sharedMemory = 2 * rowTiles * 16 * shares * (512 / bits) * 2;
  return {
    // A kernel has one size of shared memory.
    name: `product_many_${sharedMemory}`,
    body: manyBody,
    warps: 4,
    rows: rowTiles * 16,
    sharedMemory,
    tiles,
    shares,
    template: { MT: rowTiles, EXPERTS: hasExperts },
  };
}

/** Larger tiles read less, but there are fewer of them to keep the GPU busy (docs/log.md). */
function launchOfMany(
  { multiprocessors }: Gpu,
  rows: number,
  outputs: number,
  bits: number,
): Launch {
  const columns = Math.ceil(rows / 32) * outputs;
  const each = columns / multiprocessors;
  if (each <= 48 || outputs % 32 !== 0) return manyLaunch(2, 2, 4, bits);
  if (each <= 104 || outputs % 64 !== 0) return manyLaunch(2, 4, 4, bits);
  return manyLaunch(rows <= 32 || each <= 200 ? 2 : 4, 4, 2, bits);
}

/** Where many rows share a matrix, wide tiles without shares of K read less. */
function launchOfExperts({ rowTiles }: ExpertPlan, { outputs, bits }: Form): Launch {
  const shares = rowTiles === 4 && outputs % 128 === 0 ? 1 : 4;
  return manyLaunch(rowTiles, 4, shares, bits, true);
}

/** A row for each expert. */
function launchOfRows(gpu: Gpu, kind: Matrix["kind"], form: Form): Launch {
  const launch = launchOfFew(gpu, kind, form, 0);
  return { ...launch, rows: 1, template: { ...launch.template, EXPERTS: true } };
}

/** As the kernel takes it, which has no norm where it is 0. */
const billionths = (eps: number) => Math.round(eps * 1e9);

/** Rows sorted by their experts. */
export type ExpertPlan = {
  chosen: MlxArray;
  experts: number;
  /** As expert-tiles.c writes it; with tiles of one row in no order, their experts alone. */
  order: MlxArray;
  rows: number;
  /** Of 16 rows in a tile; 0 for one row. */
  rowTiles: number;
  tiles: number;
};

export class Products {
  readonly #gpu: Gpu;
  /** Bounded so that two groups share an SM: otherwise the compiler takes too many registers. */
  readonly #few: KernelCache;
  readonly #many: KernelCache;
  readonly #constants = new Constants();
  readonly #wide: WideExpertProducts | undefined;
  readonly #warpgroups: WarpgroupProducts | undefined;
  readonly #dense: DenseProducts | undefined;
  readonly #prompts: PromptProducts | undefined;
  readonly #vectors: Vectors;
  readonly #norm: typeof rmsNorm;
  #lastPlan: ExpertPlan | undefined;

  /**
   * `norm`: of rows too many to be fused with a product. `groups`: in place of those that should be the quickest with
   * wgmma.
   */
  constructor(gpu: Gpu, make: MakeKernel = makeKernel, norm = rmsNorm, groups: AskedShape = {}) {
    this.#gpu = gpu;
    const headers = productHeaders;
    const defines = [`LAUNCH_BOUNDS ${FEW_WARPS * 32}, 2`];
    this.#few = new KernelCache("cuda", make, { headers, defines });
    this.#many = new KernelCache("cuda", make, { headers });
    this.#norm = norm;
    this.#vectors = new Vectors(gpu, make, this.#constants);
    if (!gpu.hasWgmma) return;
    this.#wide = new WideExpertProducts(make);
    this.#warpgroups = new WarpgroupProducts(gpu, make, groups);
    this.#dense = new DenseProducts(make);
    this.#prompts = new PromptProducts(gpu, make);
  }

  /** x (rows, K), matrix (N, K) -> (rows, N), or where it is gated (rows, N / 2) */
  product(
    x: MlxArray,
    matrix: Matrix,
    { norm, isGated = false, residual }: ProductOptions,
  ): MlxArray {
    const [rows] = x.shape as [number];
    if (rows === 1 && fitsOneRow(matrix, x.dtype)) {
      return this.#vectors.product(x, matrix, formOf(matrix), { norm, isGated, residual });
    }
    // For many rows a separate launch of the norm costs little.
    if (norm && (rows > FEW || billionths(norm.eps) === 0)) {
      return this.product(this.#norm(x, norm.weight, norm.eps), matrix, { isGated, residual });
    }
    const form = formOf(matrix);
    const { weight, outputs, inputs, bits } = form;
    if (matrix.kind === "packed" && rows > FEW && this.#warpgroups?.takes(rows, form)) {
      const { scales, biases } = matrix.matrix;
      const given = { x, weight, scales, biases: biases!, residual };
      return this.#warpgroups.product(given, form, isGated);
    }
    if (this.#dense && this.#prompts && matrix.kind === "dense" && rows > FEW) {
      const dense = denseShapeOf(this.#gpu, rows, form);
      if (dense) return this.#dense.product({ x, weight, residual }, dense, isGated);
      if (isGated && !residual && fitsPrompt(this.#gpu, rows, outputs, inputs)) {
        return this.#prompts.gated({ x, weight });
      }
    }
    const launch =
      rows > FEW
        ? launchOfMany(this.#gpu, rows, outputs, bits)
        : launchOfFew(this.#gpu, matrix.kind, form, norm?.eps ?? 0);
    const groups = Math.ceil(rows / launch.rows);
    return this.#launch(x, matrix, form, launch, {
      rows,
      groups,
      isGated,
      norm: norm?.weight,
      residual,
    });
  }

  /** Rows by their experts (R), for `experts`; undefined where they are too many. */
  plan(chosen: MlxArray, tokens: number, matrix: Matrix): ExpertPlan | undefined {
    const rows = chosen.size;
    const { experts, outputs, inputs } = expertForm(matrix);
    if (rows > MOST_SORTED) return undefined;
    const isWide =
      this.#wide !== undefined &&
      matrix.kind === "dense" &&
      fitsWideTiles({ rows, experts, outputs, inputs });
    // The products of an MLP have the same rows.
    const last = this.#lastPlan;
    const isSame = last?.chosen === chosen && last.experts === experts;
    if (isSame && isWide === (last.rowTiles === WIDE_ROW_TILES)) return last;
    // The experts of one token are all different.
    if (tokens === 1) {
      this.#lastPlan = { chosen, experts, order: chosen, rows, rowTiles: 0, tiles: rows };
      return this.#lastPlan;
    }
    const each = rows / experts;
    const rowTiles = isWide ? WIDE_ROW_TILES : each <= MOST_OF_ONE_TILE ? 1 : each <= 32 ? 2 : 4;
    const tiles = Math.min(rows, Math.ceil(rows / (rowTiles * 16)) + experts);
    const template = { EXPERTS: experts, TILE: rowTiles * 16, WARPS: 32 };
    const order = this.#many.run("expert_tiles", tilesBody, { experts: chosen }, "plan", {
      outputs: [{ shape: [rows + 3 * tiles], dtype: "int32" }],
      grid: [32 * 32, 1, 1],
      threadGroup: [32 * 32, 1, 1],
      template,
    });
    this.#lastPlan = { chosen, experts, order, rows, rowTiles, tiles };
    return this.#lastPlan;
  }

  /** x (N, K), a plan of R rows, matrices (E, N, K) -> (R, N), or where it is gated (R, N / 2) */
  experts(x: MlxArray, matrix: Matrix, plan: ExpertPlan, isGated: boolean): MlxArray {
    const form = expertForm(matrix);
    const { rows, rowTiles, tiles: groups, order } = plan;
    if (rowTiles === 0 && fitsVector(form)) {
      return this.#vectors.product(x, matrix, form, { isGated, chosen: order });
    }
    if (this.#wide && rowTiles === WIDE_ROW_TILES) {
      return this.#wide.product({ x, weight: form.weight, plan: order }, plan, isGated);
    }
    const launch =
      rowTiles === 0 ? launchOfRows(this.#gpu, matrix.kind, form) : launchOfExperts(plan, form);
    const each = rows / x.shape[0]!;
    return this.#launch(x, matrix, form, launch, { rows, groups, each, isGated, norm: order });
  }

  free(): void {
    this.#wide?.free();
    this.#warpgroups?.free();
    this.#dense?.free();
    this.#prompts?.free();
    this.#vectors.free();
    this.#few.free();
    this.#many.free();
    this.#constants.free();
  }

  /** `groups` in the direction of rows. */
  #launch(
    x: MlxArray,
    matrix: Matrix,
    { weight, bits, span, outputs }: Form,
    launch: Launch,
    work: {
      rows: number;
      groups: number;
      each?: number;
      isGated: boolean;
      norm: MlxArray | undefined;
      residual?: MlxArray | undefined;
    },
  ): MlxArray {
    const { rows, groups, each = 1, isGated, norm, residual } = work;
    const threads = launch.warps * 32;
    const columns = (launch.warps / launch.shares) * launch.tiles * 8;
    const configuration: KernelLaunch = {
      outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
      grid: [groups * threads, outputs / columns, 1],
      threadGroup: [threads, 1, 1],
      template: {
        T: x.dtype,
        BITS: bits,
        SPAN: span,
        NT: launch.tiles,
        KS: launch.shares,
        WARPS: launch.warps,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        EACH: each,
        ...launch.template,
      },
    };
    const { scales, biases } = matrix.kind === "packed" ? matrix.matrix : { scales: x, biases: x };
    const { name, body, sharedMemory } = launch;
    const kernels = body === fewBody ? this.#few : this.#many;
    // Inputs that the kernel does not use may be any array.
    const given = {
      x,
      weight,
      scales,
      biases: biases!,
      norm: norm ?? x,
      residual: residual ?? x,
    };
    return kernels.run(name, body, given, "made", configuration, sharedMemory);
  }
}
