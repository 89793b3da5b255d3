// Products of many rows with a quantized matrix, on NVIDIA GPUs with wgmma (Hopper).
import type { MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { productHeaders } from "./headers.ts";
import { isWhole } from "./matrix.ts";
import body from "./warpgroup-product.c" with { type: "text" };
import { type ProductKernel, tileCost } from "./way.ts";

/** Shape of a CTA's work. */
export type GroupShape = {
  rows: number;
  /** Tiles per CTA, with 128 columns each. */
  tiles: number;
  /** CTAs per cluster, which split K. */
  shares: number;
  /** Elements along K per pipeline stage. */
  step: number;
  /** Stages of the ring in shared memory. */
  stages: number;
};

/** Choices of rows per CTA: dimension N of the wgmma instruction. All rows share the dequantized columns. */
const ROWS = [32, 64, 96, 128, 192, 256];

/** Maximum rows per CTA for each number of tiles; accumulators of more rows do not fit in registers. */
const MOST_ROWS = { 1: 256, 2: 128 };

const THREADS = 256;
const LEAST_STAGES = 4;
const MOST_STAGES = 6;

/** Cluster sizes with which all SMs of a GPC are used. */
const SHARES = [1, 2, 4, 8];

/** Shared memory per CTA, without the padding that aligns the stages. */
const SHARED_BYTES = 226 * 1024;

/** Throughput of an SM per cycle: multiply-adds, and bytes from L2 and from the cluster while all SMs load. */
const PRODUCTS = 2048;
const L2_BYTES = 24;
const CLUSTER_BYTES = 14;

/** Overhead in cycles per step of 128 elements along K, and per CTA. */
const STEP_CYCLES = 300;
const END_CYCLES = 3000;

/** Minimum rows: for fewer rows product-many.c is as fast (docs/log.md). */
const LEAST_ROWS = 65;

type Sizes = { rows: number; columns: number; inputs: number; bits: number; span: number };

/** Overrides of the fastest shape, for tests and benchmarks. */
export type AskedShape = Partial<GroupShape> & { leastRows?: number };

/** Returns the shape with the lowest estimated time; properties that `asked` sets are fixed. */
export function groupShape(gpu: Gpu, sizes: Sizes, asked: AskedShape = {}): GroupShape {
  const shapes = ([2, 1] as const)
    .filter((tiles) => tiles === (asked.tiles ?? tiles))
    .flatMap((tiles) => {
      const groups = Math.ceil(sizes.rows / MOST_ROWS[tiles]);
      const rows = asked.rows ?? ROWS.find((most) => sizes.rows <= most * groups)!;
      return (asked.shares ? [asked.shares] : SHARES).map((shares) => ({ rows, tiles, shares }));
    });
  const best = shapes.reduce((a, b) => (costOf(gpu, b, sizes) < costOf(gpu, a, sizes) ? b : a));
  return { ...best, ...stagesOf(best, sizes, asked) };
}

type Split = Pick<GroupShape, "rows" | "tiles" | "shares">;

/** Estimates cycles: the cycles of one CTA, times the number of waves of clusters. */
function costOf(
  { multiprocessors, gpcs }: Gpu,
  { rows, tiles, shares }: Split,
  sizes: Sizes,
): number {
  const clusters = Math.ceil(sizes.columns / (tiles * 128)) * Math.ceil(sizes.rows / rows);
  const ofGpc = Math.floor(multiprocessors / gpcs);
  const atOnce = shares === 1 ? multiprocessors : gpcs * Math.floor(ofGpc / shares);
  const steps = Math.ceil(sizes.inputs / 128 / shares);
  const multiplied = (tiles * 128 * rows * 128) / PRODUCTS;
  const loaded = stageBytes({ rows, tiles, step: 128 }, sizes) / L2_BYTES;
  const summed = (rows * tiles * 128 * 4 * (shares - 1)) / shares / CLUSTER_BYTES;
  const cycles = steps * (Math.max(multiplied, loaded) + STEP_CYCLES) + summed + END_CYCLES;
  return Math.ceil(clusters / atOnce) * cycles;
}

/** Returns elements along K per step, and stages: long steps if enough stages of them fit in shared memory. */
function stagesOf(shape: Pick<GroupShape, "rows" | "tiles">, sizes: Sizes, asked: AskedShape) {
  const most = (step: number) =>
    Math.min(MOST_STAGES, Math.floor(SHARED_BYTES / stageBytes({ ...shape, step }, sizes)));
  const step = asked.step ?? (most(128) >= LEAST_STAGES ? 128 : 64);
  return { step, stages: Math.min(asked.stages ?? MOST_STAGES, most(step)) };
}

/** Returns the bytes of a stage: rows, weights, and scales and biases in whole 32-bit words (warpgroup-product.c). */
function stageBytes(
  { rows, tiles, step }: Pick<GroupShape, "rows" | "tiles" | "step">,
  { bits, span }: Pick<Sizes, "bits" | "span">,
) {
  const ofColumn = (step * bits) / 8 + 2 * Math.max(4, (step / span) * 2);
  return rows * step * 2 + tiles * 128 * ofColumn;
}

export function warpgroupRows(gpu: Gpu, make: MakeKernel, asked: AskedShape): ProductKernel {
  const kernels = new KernelCaches("cuda", make, productHeaders);
  return {
    wayFor: (form) => {
      const { weight, scales, biases, bits, span, outputs, inputs } = form;
      const isSuited = scales && biases && gpu.hasWgmma && inputs % 128 === 0;
      if (!isSuited || !isWhole(form, 16)) return undefined;
      return {
        fits: ({ rows }) => rows >= (asked.leastRows ?? LEAST_ROWS),
        cost: tileCost(form),
        launch: (x, { isGated = false, residual }) => {
          const rows = x.shape[0]!;
          const shape = groupShape(gpu, { rows, columns: outputs, inputs, bits, span }, asked);
          const { tiles, shares, step, stages } = shape;
          const ctas = [Math.ceil(rows / shape.rows), Math.ceil(outputs / (tiles * 128))] as const;
          const launch = {
            outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
            grid: [shares * THREADS, ...ctas] as const,
            threadGroup: [THREADS, 1, 1] as const,
            template: {
              ...{ T: x.dtype, BITS: bits, SPAN: span, GATED: isGated },
              ...{ RESIDUAL: residual !== undefined, ROWS: shape.rows, TILES: tiles },
              ...{ STEP: step, STAGES: stages, SHARES: shares },
            },
          };
          const sums = shape.rows * (tiles * 128 + 4) * 4;
          const bytes = Math.max(stages * stageBytes(shape, form), sums) + 1024;
          // Inputs that the kernel does not use may be any array.
          const given = { x, weight, scales, biases, residual: residual ?? x };
          const cache = kernels.clustered(shares);
          return cache.run(`warpgroup_product_${bytes}`, body, given, "made", launch, bytes);
        },
      };
    },
    free: () => kernels.free(),
  };
}
