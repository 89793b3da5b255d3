// Products of many rows with the dense matrices of their experts, on NVIDIA GPUs with wgmma (Hopper).
import type { MlxArray } from "../../mlx/array.ts";
import type { KernelCache } from "../host/kernel-cache.ts";
import body from "./expert-product.c" with { type: "text" };

/** Rows and columns of a CTA's tile, and elements along K per step. */
const ROWS = 128;
const COLUMNS = 256;
const STEP = 64;
const STAGES = 4;

/** Average rows per expert above which wide tiles are well filled. */
const LEAST_ROWS = 64;

/** Tiles that run together and read the same columns, so that those hit the L2 cache. */
const BAND = 8;

/** Groups of 16 rows per tile. */
export const WIDE_ROW_TILES = ROWS / 16;

type Sizes = { rows: number; experts: number; outputs: number; inputs: number };

export function fitsWideTiles({ rows, experts, outputs, inputs }: Sizes): boolean {
  return rows / experts > LEAST_ROWS && outputs % COLUMNS === 0 && inputs % STEP === 0;
}

/** Multiplies x (T, K) by weight (E, N, K), with a plan of R rows in wide tiles -> (R, N), or gated (R, N / 2). */
export function wideExpertProduct(
  kernels: KernelCache,
  given: Readonly<Record<"x" | "weight" | "plan", MlxArray>>,
  { rows, tiles }: { rows: number; tiles: number },
  isGated: boolean,
): MlxArray {
  const { x, weight } = given;
  const outputs = weight.shape[1]!;
  const launch = {
    outputs: [{ shape: [rows, isGated ? outputs / 2 : outputs], dtype: x.dtype }],
    grid: [BAND * 256, outputs / COLUMNS, Math.ceil(tiles / BAND)] as const,
    threadGroup: [256, 1, 1] as const,
    template: { T: x.dtype, GATED: isGated, EACH: rows / x.shape[0]!, BAND, STAGES },
  };
  // The stages, and padding to align them.
  const sharedMemory = STAGES * (ROWS + COLUMNS) * STEP * 2 + 1024;
  return kernels.run("expert_product", body, given, "made", launch, sharedMemory);
}
