// Products of some rows with a dense matrix, on NVIDIA GPUs with wgmma (Hopper).
import type { MlxArray } from "../../mlx/array.ts";
import type { MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import body from "./dense-product.c" with { type: "text" };
import { productHeaders } from "./headers.ts";

/** What a group has, and how many share K. */
export type DenseShape = {
  rows: number;
  /** Of 64 columns. */
  warpgroups: number;
  shares: number;
  /** Of 64 numbers of K each, in shared memory. */
  stages: number;
};

/** wgmma has a shape for each. With 128 it is 3 to 10% quicker than cuBLAS; with more it was not tried (docs/log.md). */
const ROWS = [32, 64, 96, 128];
const STEP = 64;
const COLUMNS = 64;

/** Groups of a cluster: of eight, some share a multiprocessor while others have nothing to do (docs/log.md). */
const SHARES = [1, 2, 4];
const MOST_STAGES = 12;

/** Of a group. With more, so little is left for L1 that attention on the same multiprocessor takes longer (docs/log.md). */
const SHARED_BYTES = 195 * 1024;
/** What it takes to align the stages behind a barrier. */
const ALIGNING_BYTES = 1024 + 8;

/** CTAs that suffice to saturate memory bandwidth. */
const ENOUGH = 64;

type Sizes = { rows: number; columns: number; inputs: number };

/** Undefined with more rows, and where a matrix is too large for one group on each multiprocessor, or not made of whole steps. */
export function denseShape(
  { multiprocessors }: Gpu,
  { rows, columns, inputs }: Sizes,
): DenseShape | undefined {
  const groupRows = ROWS.find((most) => rows <= most);
  const warpgroups = columns > multiprocessors * COLUMNS ? 2 : 1;
  const groups = columns / (warpgroups * COLUMNS);
  if (!groupRows || !Number.isInteger(groups) || groups > multiprocessors) return undefined;
  const isWhole = (shares: number) => inputs % (shares * STEP) === 0;
  const shares = SHARES.filter(isWhole).find(
    (each, i, all) => groups * each >= ENOUGH || i === all.length - 1,
  );
  if (!shares) return undefined;
  const { stage, sums } = bytesOf({ rows: groupRows, warpgroups });
  const left = SHARED_BYTES - ALIGNING_BYTES - (shares > 1 ? sums : 0);
  const stages = Math.min(MOST_STAGES, inputs / STEP / shares, Math.floor(left / stage));
  return { rows: groupRows, warpgroups, shares, stages };
}

/** As dense-product.c has them. */
function bytesOf({ rows, warpgroups }: Pick<DenseShape, "rows" | "warpgroups">) {
  const columns = warpgroups * COLUMNS;
  return { stage: (rows + columns) * STEP * 2, sums: rows * (columns + 4) * 4 };
}

export class DenseProducts {
  readonly #kernels: KernelCaches;

  constructor(make: MakeKernel) {
    this.#kernels = new KernelCaches("cuda", make, productHeaders);
  }

  /** x (rows, K), weight (N, K) -> (rows, N), or gated (rows, N / 2) */
  product(
    given: Readonly<Record<"x" | "weight", MlxArray> & { residual: MlxArray | undefined }>,
    shape: DenseShape,
    isGated: boolean,
  ): MlxArray {
    const { x, weight, residual } = given;
    const [outputs, inputs] = weight.shape as [number, number];
    const [rows] = x.shape as [number];
    const { warpgroups, shares, stages } = shape;
    const launch = {
      outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
      grid: [shares * warpgroups * 128, 1, outputs / (warpgroups * COLUMNS)] as const,
      threadGroup: [warpgroups * 128, 1, 1] as const,
      template: {
        T: x.dtype,
        K: inputs,
        N: outputs,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        ROWS: shape.rows,
        WARPGROUPS: warpgroups,
        STAGES: stages,
        SHARES: shares,
      },
    };
    const { stage, sums } = bytesOf(shape);
    const received = shares > 1 ? sums : 0;
    const sharedMemory = Math.max(stages * stage, sums) + received + ALIGNING_BYTES;
    const name = `dense_product_${sharedMemory}`;
    // Inputs that the kernel does not use may be any array.
    const inputsOf = { ...given, residual: residual ?? x };
    return this.#kernels.clustered(shares).run(name, body, inputsOf, "made", launch, sharedMemory);
  }

  free(): void {
    this.#kernels.free();
  }
}
