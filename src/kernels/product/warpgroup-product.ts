// Products of many rows with a quantized matrix, on NVIDIA GPUs with wgmma (Hopper).
import type { MlxArray } from "../../mlx/array.ts";
import type { MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCaches } from "../host/kernel-cache.ts";
import { productHeaders } from "./headers.ts";
import body from "./warpgroup-product.c" with { type: "text" };

/** What a group has, and how many share K. */
export type GroupShape = {
  rows: number;
  /** Of 128 columns. */
  tiles: number;
  shares: number;
  /** Numbers of K at once, and how many such are in shared memory. */
  step: number;
  stages: number;
};

/** Columns are dequantized once for so many rows; wgmma has a shape for each. */
const ROWS = [32, 64, 96, 128, 192, 256];

/** Rows of a group by its tiles: with more, the sums do not fit in registers. */
const MOST_ROWS = { 1: 256, 2: 128 };

const THREADS = 256;
const LEAST_STAGES = 4;
const MOST_STAGES = 6;

/** Cluster sizes that use every SM of a GPC. */
const SHARES = [1, 2, 4, 8];

/** Of a group, without what it takes to align them. */
const SHARED_BYTES = 226 * 1024;

/** Per cycle of an SM: products, and bytes read from L2 and from its cluster while all SMs read. */
const PRODUCTS = 2048;
const L2_BYTES = 24;
const CLUSTER_BYTES = 14;

/** Cycles beside a step of 128 numbers, and for a group's beginning and end. */
const STEP_CYCLES = 300;
const END_CYCLES = 3000;

/** With fewer rows product-many.c is as quick, and its norm is no launch of its own. */
const LEAST_ROWS = 65;

type Sizes = { rows: number; columns: number; inputs: number; bits: number; span: number };

/** In place of what should be the quickest. */
export type AskedShape = Partial<GroupShape> & { leastRows?: number };

/** The one that should take the least time, of those that are as it is `asked`. */
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

/** Cycles, of clusters that run one after another. */
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

/** Long steps, if there can be enough of them. */
function stagesOf(shape: Pick<GroupShape, "rows" | "tiles">, sizes: Sizes, asked: AskedShape) {
  const most = (step: number) =>
    Math.min(MOST_STAGES, Math.floor(SHARED_BYTES / stageBytes({ ...shape, step }, sizes)));
  const step = asked.step ?? (most(128) >= LEAST_STAGES ? 128 : 64);
  return { step, stages: Math.min(asked.stages ?? MOST_STAGES, most(step)) };
}

/** Rows, numbers of the matrix, and their scales and biases in whole words (warpgroup-product.c). */
function stageBytes(
  { rows, tiles, step }: Pick<GroupShape, "rows" | "tiles" | "step">,
  { bits, span }: Pick<Sizes, "bits" | "span">,
) {
  const ofColumn = (step * bits) / 8 + 2 * Math.max(4, (step / span) * 2);
  return rows * step * 2 + tiles * 128 * ofColumn;
}

export class WarpgroupProducts {
  readonly #gpu: Gpu;
  readonly #asked: AskedShape;
  readonly #kernels: KernelCaches;

  constructor(gpu: Gpu, make: MakeKernel, asked: AskedShape) {
    this.#gpu = gpu;
    this.#kernels = new KernelCaches("cuda", make, productHeaders);
    this.#asked = asked;
  }

  /** Whether it is quicker with so many rows, and the matrix of whole steps. */
  takes(rows: number, { inputs }: { inputs: number }): boolean {
    return rows >= (this.#asked.leastRows ?? LEAST_ROWS) && inputs % 128 === 0;
  }

  /** x (rows, K), weight (N, K) -> (rows, N), or gated (rows, N / 2) */
  product(
    given: Readonly<
      Record<"x" | "weight" | "scales" | "biases", MlxArray> & {
        residual: MlxArray | undefined;
      }
    >,
    form: { outputs: number; inputs: number; bits: number; span: number },
    isGated: boolean,
  ): MlxArray {
    const { x, residual } = given;
    const { outputs, inputs, bits, span } = form;
    const [rows] = x.shape as [number];
    const sizes = { rows, columns: outputs, inputs, bits, span };
    const shape = groupShape(this.#gpu, sizes, this.#asked);
    const { tiles, shares, step, stages } = shape;
    const launch = {
      outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
      grid: [
        shares * THREADS,
        Math.ceil(rows / shape.rows),
        Math.ceil(outputs / (tiles * 128)),
      ] as const,
      threadGroup: [THREADS, 1, 1] as const,
      template: {
        T: x.dtype,
        BITS: bits,
        SPAN: span,
        GATED: isGated,
        RESIDUAL: residual !== undefined,
        ROWS: shape.rows,
        TILES: tiles,
        STEP: step,
        STAGES: stages,
        SHARES: shares,
      },
    };
    const sums = shape.rows * (tiles * 128 + 4) * 4;
    const sharedMemory = Math.max(stages * stageBytes(shape, form), sums) + 1024;
    const name = `warpgroup_product_${sharedMemory}`;
    // Inputs that the kernel does not use may be any array.
    const inputsOf = { ...given, residual: residual ?? x };
    return this.#kernels.clustered(shares).run(name, body, inputsOf, "made", launch, sharedMemory);
  }

  free(): void {
    this.#kernels.free();
  }
}
