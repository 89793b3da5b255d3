// Products of rows with weight matrices on NVIDIA GPUs, fused with a model's neighbouring operations: the norm
// before, the gate and the residual add after. A product takes microseconds, so each launch saved counts. Each kernel
// is an entry in a table; the cheapest that fits is launched.
import type { MlxArray } from "../../mlx/array.ts";
import type { ProductOptions } from "../../mlx/cpu.ts";
import { type Dtype, isHalf } from "../../mlx/dtype.ts";
import { rmsNorm } from "../../mlx/fast.ts";
import { type MakeKernel, makeKernel } from "../../mlx/kernel.ts";
import { Constants } from "../host/constants.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import { denseRows } from "./dense-product.ts";
import { fitsWideTiles, WIDE_ROW_TILES, wideExpertProduct } from "./expert-product.ts";
import tilesBody from "./expert-tiles.c" with { type: "text" };
import { productHeaders } from "./headers.ts";
import { type Form, formOf, isWhole, type Matrix } from "./matrix.ts";
import { PromptProducts } from "./prompt-product.ts";
import { fewRows, manyRows } from "./tile-product.ts";
import { fitsVector, vectors } from "./vector.ts";
import { type AskedShape, warpgroupRows } from "./warpgroup-product.ts";
import { cheapest, type ProductKernel, type ProductWay } from "./way.ts";

/** Maximum rows of `Products.experts`: a single CTA sorts them. */
export const MOST_SORTED = 2 ** 17;

/** Whether kernels can multiply rows by the matrices of experts, (E, N, K). */
export function fitsExperts(matrix: Matrix): boolean {
  const form = formOf(matrix);
  return isHalf(form.numbers) && form.isDecoded && isWhole(form, 64);
}

/** Rows sorted by expert, in tiles. */
export type ExpertPlan = {
  chosen: MlxArray;
  experts: number;
  /** The plan that expert-tiles.c writes. For one token it is `chosen`: the expert of each row, unsorted. */
  order: MlxArray;
  rows: number;
  /** Tile size in groups of 16 rows; 0 for tiles of one row. */
  rowTiles: number;
  tiles: number;
};

type ExpertCall = { form: Form; rows: number; tokens: number; gpu: Gpu };

/**
 * Ways to tile the experts' rows. The cost is how often an expert's matrix is read: with more than `most` rows per
 * expert on average, many experts have several tiles.
 */
const tilings = [
  { rowTiles: 0, fits: ({ tokens }: ExpertCall) => tokens === 1, cost: () => 1 },
  {
    rowTiles: WIDE_ROW_TILES,
    fits: ({ form, rows, gpu }: ExpertCall) =>
      gpu.hasWgmma && form.bits === 16 && fitsWideTiles({ ...form, rows }),
    cost: () => 1,
  },
  ...[
    { rowTiles: 1, most: 10 },
    { rowTiles: 2, most: 32 },
    { rowTiles: 4, most: Number.POSITIVE_INFINITY },
  ].map(({ rowTiles, most }) => ({
    rowTiles,
    fits: () => true,
    cost: ({ form, rows }: ExpertCall) => (rows / form.experts <= most ? 1 : 2),
  })),
];

export class Products {
  readonly #gpu: Gpu;
  readonly #norm: typeof rmsNorm;
  readonly #constants = new Constants();
  readonly #vectors;
  readonly #few;
  readonly #many;
  /** Kernels that make plans, and kernels that multiply by experts' matrices in wide tiles. */
  readonly #experts: KernelCache;
  /** Kernels in order of preference at equal cost. */
  readonly #kernels: readonly ProductKernel[];
  #lastPlan: ExpertPlan | undefined;

  /** `norm` computes norms that no product kernel fuses. `asked` overrides shapes of warpgroup-product.c. */
  constructor(gpu: Gpu, make: MakeKernel = makeKernel, norm = rmsNorm, asked: AskedShape = {}) {
    this.#gpu = gpu;
    this.#norm = norm;
    this.#vectors = vectors(gpu, make, this.#constants);
    this.#few = fewRows(gpu, make);
    this.#many = manyRows(gpu, make);
    this.#experts = new KernelCache("cuda", make, { headers: productHeaders });
    this.#kernels = [
      this.#vectors,
      this.#few,
      warpgroupRows(gpu, make, asked),
      denseRows(gpu, make),
      new PromptProducts(gpu, make),
      this.#many,
    ];
  }

  /** Returns the kernels that can multiply rows of type `dtype` by a matrix (N, K), each with its cost. */
  waysFor(matrix: Matrix, dtype: Dtype): ProductWay[] {
    const form = formOf(matrix);
    if (!form.isDecoded || form.numbers !== dtype || !isHalf(dtype)) return [];
    return this.#kernels.flatMap((kernel) => {
      const way = kernel.wayFor(form);
      if (!way) return [];
      const launch: ProductWay["launch"] = (x, { norm, ...fused }) =>
        norm && !way.fusesNorm?.(norm.eps)
          ? way.launch(this.#norm(x, norm.weight, norm.eps), fused)
          : way.launch(x, { norm, ...fused });
      return [{ ...way, launch }];
    });
  }

  /** Multiplies x (rows, K) by a matrix (N, K) -> (rows, N), or gated (rows, N / 2), with our own kernels only. */
  product(x: MlxArray, matrix: Matrix, options: ProductOptions): MlxArray {
    const call = { rows: x.shape[0]!, ...options };
    return cheapest(this.waysFor(matrix, x.dtype), call)!.launch(x, options);
  }

  /** Sorts the R (token, expert) rows by expert, for `experts` below; undefined if there are too many rows. */
  plan(chosen: MlxArray, tokens: number, matrix: Matrix): ExpertPlan | undefined {
    const rows = chosen.size;
    if (rows > MOST_SORTED) return undefined;
    const form = formOf(matrix);
    const { experts } = form;
    const { rowTiles } = cheapest(tilings, { form, rows, tokens, gpu: this.#gpu })!;
    const isWide = rowTiles === WIDE_ROW_TILES;
    // Reuses the last plan: the products of an MLP have the same rows and experts.
    const last = this.#lastPlan;
    const isSame = last?.chosen === chosen && last.experts === experts;
    if (isSame && isWide === (last.rowTiles === WIDE_ROW_TILES)) return last;
    // One token needs no sorting, because its experts are all different.
    if (rowTiles === 0) {
      this.#lastPlan = { chosen, experts, order: chosen, rows, rowTiles, tiles: rows };
      return this.#lastPlan;
    }
    const tiles = Math.min(rows, Math.ceil(rows / (rowTiles * 16)) + experts);
    const order = this.#experts.run("expert_tiles", tilesBody, { experts: chosen }, "plan", {
      outputs: [{ shape: [rows + 3 * tiles], dtype: "int32" }],
      grid: [32 * 32, 1, 1],
      threadGroup: [32 * 32, 1, 1],
      template: { EXPERTS: experts, TILE: rowTiles * 16, WARPS: 32 },
    });
    this.#lastPlan = { chosen, experts, order, rows, rowTiles, tiles };
    return this.#lastPlan;
  }

  /** Multiplies x (T, K) by its experts' matrices (E, N, K), with a plan of R rows -> (R, N), or gated (R, N / 2). */
  experts(x: MlxArray, matrix: Matrix, plan: ExpertPlan, isGated: boolean): MlxArray {
    const form = formOf(matrix);
    const { rows, rowTiles, tiles: ctas, order } = plan;
    if (rowTiles === WIDE_ROW_TILES) {
      const given = { x, weight: form.weight, plan: order };
      return wideExpertProduct(this.#experts, given, plan, isGated);
    }
    if (rowTiles === 0 && fitsVector(form)) {
      return this.#vectors.product(x, form, { isGated }, order);
    }
    const work = { rows, ctas, each: rows / x.shape[0]!, isGated, norm: order };
    if (rowTiles === 0) return this.#few.experts(x, form, work);
    return this.#many.experts(x, form, rowTiles, work);
  }

  free(): void {
    for (const each of [...this.#kernels, this.#experts, this.#constants]) each.free();
  }
}
