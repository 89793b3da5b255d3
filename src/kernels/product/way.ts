// Ways to compute a product: kernels and MLX's operations, each with the calls it fits, its cost, its launch.
import type { MlxArray } from "../../mlx/array.ts";
import type { ProductOptions } from "../../mlx/cpu.ts";
import { type Form, formOf, type Matrix } from "./matrix.ts";

export type Way<Call, Launch> = {
  fits(call: Call): boolean;
  /**
   * Returns the time relative to MLX's product (cuBLAS) with the matrix in 16 bits. For few rows that product takes
   * as long as reading the matrix. Measurements: docs/log.md.
   */
  cost(call: Call): number;
  launch: Launch;
};

/** Returns the cheapest way that fits the call; of equally cheap ways the first. */
export function cheapest<Call, W extends Pick<Way<Call, unknown>, "fits" | "cost">>(
  ways: readonly W[],
  call: Call,
): W | undefined {
  let best: W | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const way of ways) {
    const cost = way.fits(call) ? way.cost(call) : Number.POSITIVE_INFINITY;
    if (cost < least) [best, least] = [way, cost];
  }
  return best;
}

export type ProductCall = ProductOptions & { rows: number };

/** A way to multiply x (rows, K) -> (rows, N), or gated (rows, N / 2). */
export type ProductWay = Way<ProductCall, (x: MlxArray, options: ProductOptions) => MlxArray> & {
  /** Whether the kernel also computes a norm with this epsilon. Default: false. */
  fusesNorm?(eps: number): boolean;
};

/** A kernel's entry in the table of products. */
export type ProductKernel = {
  /** Returns undefined if the kernel cannot multiply by the matrix. */
  wayFor(form: Form): ProductWay | undefined;
  free(): void;
};

/** Maximum rows that count as few: one tile of a tensor core instruction. */
export const FEW_ROWS = 16;

/** Above this many elements cuBLAS's product with a dense matrix is faster than ours. */
const SMALL_ELEMENTS = 10 * 2 ** 20;
/** From this many elements on, a product with few rows takes as long as reading the matrix. */
const LARGE_ELEMENTS = 2 ** 27;
/** Maximum rows for which our product by a large quantized matrix is faster than by a dequantized copy. */
const READING_ROWS = 64;
/** Rows above which dequantizing the matrix for cuBLAS in every step is faster than our kernels. */
const DEQUANTIZING_ROWS = 256;

/** Returns the number of rows for which our tensor core kernels and MLX's product take equally long. */
function breakEvenRows({ bits, outputs, inputs }: Form): number {
  const elements = outputs * inputs;
  if (bits === 16) return elements <= SMALL_ELEMENTS ? FEW_ROWS : 1;
  return elements >= LARGE_ELEMENTS ? READING_ROWS : FEW_ROWS;
}

/**
 * Cost of the kernels for one row. They are memory-bound, so the cost is the bytes read, relative to 16-bit weights.
 */
export const readingCost = ({ bits }: Pick<Form, "bits">) => bits / 16;

/** Returns the cost of kernels that multiply tiles of rows with tensor cores. */
export function tileCost(form: Form): (call: ProductCall) => number {
  const [reading, breakEven] = [readingCost(form), breakEvenRows(form)];
  return ({ rows }) => Math.max(reading, rows / breakEven);
}

/** Returns the cost of MLX's product, which dequantizes the matrix for several rows, unless a copy is kept. */
export function mlxCost(matrix: Matrix, isCopied: boolean): (call: ProductCall) => number {
  const form = formOf(matrix);
  const many = form.bits === 16 || isCopied ? 1 : DEQUANTIZING_ROWS / breakEvenRows(form);
  return ({ rows }) => (rows === 1 ? readingCost(form) : many);
}
