// Products of tiles of 16 rows with tensor cores, on all NVIDIA GPUs: a kernel for few rows, and one for many, which
// dequantizes the matrix once for all rows of a CTA. Both can also multiply rows by their experts' matrices.
import type { MlxArray } from "../../mlx/array.ts";
import type { KernelLaunch, MakeKernel } from "../../mlx/kernel.ts";
import type { Gpu } from "../host/gpu.ts";
import { KernelCache } from "../host/kernel-cache.ts";
import { productHeaders } from "./headers.ts";
import { type Form, isWhole } from "./matrix.ts";
import fewBody from "./product.c" with { type: "text" };
import manyBody from "./product-many.c" with { type: "text" };
import { FEW_ROWS, type ProductKernel, tileCost } from "./way.ts";

const FEW_WARPS = 8;
const MANY_WARPS = 4;

/** `tiles`: tiles of 8 columns per warp. `shares`: warps of a CTA that have the same columns and split K. */
type Columns = { tiles: number; shares: number };

/**
 * Chooses the columns for few rows. More columns per warp mean fewer reads of the rows, if enough CTAs remain.
 * `ahead`: loads of the matrix in flight.
 */
function fewColumns({ multiprocessors }: Gpu, { bits, outputs }: Form) {
  const fits = (columns: number) => outputs % columns === 0;
  if (bits === 16) return { tiles: 2, shares: outputs > 4096 && fits(32) ? 4 : 8, ahead: 4 };
  if (outputs >= 64 * multiprocessors && fits(64)) return { tiles: 4, shares: 4, ahead: 2 };
  if (outputs >= 32 * multiprocessors && fits(32)) return { tiles: 4, shares: 8, ahead: 2 };
  return { tiles: 2, shares: 8, ahead: 4 };
}

/** Chooses tiles for many rows, `rowTiles` of 16 rows per CTA: larger CTAs read less, but fewer keep the GPU busy. */
function manyColumns({ multiprocessors }: Gpu, { outputs }: Form, rows: number) {
  const perSm = (Math.ceil(rows / 32) * outputs) / multiprocessors;
  if (perSm <= 48 || outputs % 32 !== 0) return { rowTiles: 2, tiles: 2, shares: 4 };
  if (perSm <= 104 || outputs % 64 !== 0) return { rowTiles: 2, tiles: 4, shares: 4 };
  return { rowTiles: rows <= 32 || perSm <= 200 ? 2 : 4, tiles: 4, shares: 2 };
}

/** Converts epsilon to billionths, as the kernel takes it; the kernel computes no norm if that is 0. */
const billionths = (eps: number) => Math.round(eps * 1e9);

/** `norm`: the norm's weight; with experts, the plan (rows sorted by expert). `each`: output rows per row of x. */
type Work = {
  rows: number;
  ctas: number;
  each?: number;
  norm?: MlxArray | undefined;
  isGated?: boolean | undefined;
  residual?: MlxArray | undefined;
};

function run(
  kernels: KernelCache,
  [name, body]: readonly [string, string],
  x: MlxArray,
  form: Form,
  { tiles, shares, warps }: Columns & { warps: number },
  { rows, ctas, each = 1, norm = x, isGated = false, residual }: Work,
  constants: KernelLaunch["template"],
  sharedMemory = 0,
): MlxArray {
  const { weight, scales = x, biases = x, bits, span, outputs } = form;
  const columns = (warps / shares) * tiles * 8;
  const launch: KernelLaunch = {
    outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
    grid: [ctas * warps * 32, outputs / columns, 1],
    threadGroup: [warps * 32, 1, 1],
    template: {
      ...{ T: x.dtype, BITS: bits, SPAN: span, NT: tiles, KS: shares, WARPS: warps },
      ...{ GATED: isGated, RESIDUAL: residual !== undefined, EACH: each },
      ...constants,
    },
  };
  // Inputs that the kernel does not use may be any array.
  const given = { x, weight, scales, biases, norm, residual: residual ?? x };
  return kernels.run(name, body, given, "made", launch, sharedMemory);
}

/** Makes products of few rows. `experts` multiplies each row by the matrix of its expert. */
export function fewRows(gpu: Gpu, make: MakeKernel) {
  // Limits registers so that two CTAs fit on an SM: the compiler would take more.
  const defines = [`LAUNCH_BOUNDS ${FEW_WARPS * 32}, 2`];
  const kernels = new KernelCache("cuda", make, { headers: productHeaders, defines });
  const product = (x: MlxArray, form: Form, work: Work, eps: number, hasExperts: boolean) => {
    const { ahead, ...columns } = fewColumns(gpu, form);
    return run(kernels, ["product", fewBody], x, form, { ...columns, warps: FEW_WARPS }, work, {
      ...{ K: form.inputs, N: form.outputs, AHEAD: ahead, EPS: billionths(eps) },
      EXPERTS: hasExperts,
    });
  };
  return {
    wayFor: (form) => {
      if (!isWhole(form, 16)) return undefined;
      // A single row by a dense matrix is left to MLX's kernel, which is faster.
      const least = form.bits === 16 ? 2 : 1;
      return {
        fits: ({ rows }) => least <= rows && rows <= FEW_ROWS,
        cost: tileCost(form),
        fusesNorm: (eps) => billionths(eps) > 0,
        launch: (x, { norm, ...fused }) => {
          const work = { rows: x.shape[0]!, ctas: 1, norm: norm?.weight, ...fused };
          return product(x, form, work, norm?.eps ?? 0, false);
        },
      };
    },
    experts: (x: MlxArray, form: Form, work: Work) => product(x, form, work, 0, true),
    free: () => kernels.free(),
  } satisfies ProductKernel & Record<string, unknown>;
}

/** Makes products of many rows. `experts` takes rows sorted by expert, in tiles of `rowTiles` * 16 rows. */
export function manyRows(gpu: Gpu, make: MakeKernel) {
  const kernels = new KernelCache("cuda", make, { headers: productHeaders });
  const product = (
    x: MlxArray,
    form: Form,
    { rowTiles, ...columns }: Columns & { rowTiles: number },
    work: Work,
    hasExperts: boolean,
  ) => {
    // Two stages for the rows of x: each has 512 / bits elements of 2 bytes per row and share of K.
    const sharedMemory = 2 * rowTiles * 16 * columns.shares * (512 / form.bits) * 2;
    // A compiled kernel has a fixed size of shared memory, so the size is part of its name.
    const kernel = [`product_many_${sharedMemory}`, manyBody] as const;
    const constants = { MT: rowTiles, EXPERTS: hasExperts };
    const warps = { ...columns, warps: MANY_WARPS };
    return run(kernels, kernel, x, form, warps, work, constants, sharedMemory);
  };
  return {
    wayFor: (form) => {
      if (!isWhole(form, 16)) return undefined;
      return {
        fits: ({ rows }) => rows > FEW_ROWS,
        cost: tileCost(form),
        launch: (x, { isGated, residual }) => {
          const rows = x.shape[0]!;
          const columns = manyColumns(gpu, form, rows);
          const ctas = Math.ceil(rows / (columns.rowTiles * 16));
          return product(x, form, columns, { rows, ctas, isGated, residual }, false);
        },
      };
    },
    experts: (x: MlxArray, form: Form, rowTiles: number, work: Work) => {
      // Wide tiles, for which the warps do not split K, read less if many rows share a matrix.
      const shares = rowTiles === 4 && form.outputs % 128 === 0 ? 1 : 4;
      return product(x, form, { rowTiles, tiles: 4, shares }, work, true);
    },
    free: () => kernels.free(),
  } satisfies ProductKernel & Record<string, unknown>;
}
