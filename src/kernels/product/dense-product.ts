// Products of up to 128 rows with a dense matrix, on NVIDIA GPUs with wgmma (Hopper).
import type { MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import body from "./dense-product.c" with { type: "text" };
import { productHeaders } from "./headers.ts";
import { FEW_ROWS, type ProductKernel } from "./way.ts";

/** Shape of a CTA's work. */
export type DenseShape = {
  rows: number;
  /** Warpgroups per CTA, with 64 columns each. */
  warpgroups: number;
  /** CTAs per cluster, which split K. */
  shares: number;
  /** Stages of the ring in shared memory, each with 64 elements along K. */
  stages: number;
};

/** Choices of rows per CTA, which are dimension N of the wgmma instruction. More than 128 rows were not tried. */
const ROWS = [32, 64, 96, 128];
const STEP = 64;
const COLUMNS = 64;

/** Choices of CTAs per cluster. With eight, some CTAs share an SM while other SMs are idle (docs/log.md). */
const SHARES = [1, 2, 4];
const MOST_STAGES = 12;

/** Shared memory per CTA. With more, L1 becomes so small that attention on the same SM is slower (docs/log.md). */
const SHARED_BYTES = 195 * 1024;
/** Bytes for an mbarrier, and for padding that aligns the stages. */
const ALIGNING_BYTES = 1024 + 8;

/** CTAs that suffice to saturate memory bandwidth. */
const ENOUGH = 64;

type Sizes = { rows: number; columns: number; inputs: number };

/** Chooses a shape; undefined if rows or CTAs are too many, or if sizes are not whole multiples of CTAs and steps. */
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

/** Returns the bytes of a stage and of the accumulators in dense-product.c. */
function bytesOf({ rows, warpgroups }: Pick<DenseShape, "rows" | "warpgroups">) {
  const columns = warpgroups * COLUMNS;
  return { stage: (rows + columns) * STEP * 2, sums: rows * (columns + 4) * 4 };
}

export function denseRows(gpu: Gpu, make: MakeKernel): ProductKernel {
  const kernels = new KernelCaches("cuda", make, productHeaders);
  return {
    wayFor: ({ weight, bits, outputs, inputs }) => {
      if (bits < 16 || !gpu.hasWgmma) return undefined;
      const shapeOf = (rows: number) => denseShape(gpu, { rows, columns: outputs, inputs });
      return {
        fits: ({ rows }) => rows > FEW_ROWS && shapeOf(rows) !== undefined,
        // Cost 1, like cuBLAS's product, though this kernel takes 3 to 10% less time: at equal cost ours is chosen.
        cost: () => 1,
        launch: (x, { isGated = false, residual }) => {
          const shape = shapeOf(x.shape[0]!)!;
          const { warpgroups, shares, stages } = shape;
          const launch = {
            outputs: [{ shape: [x.shape[0]!, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
            grid: [shares * warpgroups * 128, 1, outputs / (warpgroups * COLUMNS)] as const,
            threadGroup: [warpgroups * 128, 1, 1] as const,
            template: {
              ...{ T: x.dtype, K: inputs, N: outputs, GATED: isGated },
              ...{ RESIDUAL: residual !== undefined, ROWS: shape.rows, WARPGROUPS: warpgroups },
              ...{ STAGES: stages, SHARES: shares },
            },
          };
          const { stage, sums } = bytesOf(shape);
          const received = shares > 1 ? sums : 0;
          const bytes = Math.max(stages * stage, sums) + received + ALIGNING_BYTES;
          // Inputs that the kernel does not use may be any array.
          const given = { x, weight, residual: residual ?? x };
          const cache = kernels.clustered(shares);
          return cache.run(`dense_product_${bytes}`, body, given, "made", launch, bytes);
        },
      };
    },
    free: () => kernels.free(),
  };
}
