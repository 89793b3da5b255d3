// Operations of our own for a CPU (ffi/cpu): what MLX computes there in several passes, a number at a time,
// they compute in one, vectorized, on all cores. All numbers are float32. A libmlxc from elsewhere has none of them.
import { mlxc } from "../../ffi/lib.ts";
import { ints, type MlxArray, optionalHandle } from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { op, opList } from "./op.ts";
import type { Quantization, QuantizedMatrix } from "./ops.ts";

/** An array whose memory is not filled, aligned to cache lines. */
export function allocate(shape: readonly number[], dtype: Dtype): MlxArray {
  return op("mlx_serve_room", ints(shape), shape.length, codeOf(dtype));
}

/** Rows of a matrix, of float32 where there are no scales: indices (T) -> (T, in) */
export function lookup(
  indices: MlxArray,
  { weight, scales, biases }: Partial<QuantizedMatrix> & { weight: MlxArray },
  quantization: Quantization = {},
): MlxArray {
  return op(
    "mlx_serve_lookup",
    indices.handle,
    weight.handle,
    optionalHandle(scales),
    optionalHandle(biases),
    ...packing(quantization),
  );
}

export type BlockPools = { keys: MlxArray; values: MlxArray };

/** `sharesKv`: keys and values are in the pools already, and there are only queries. */
export type HeadOptions = {
  normed: boolean;
  valuesNormed: boolean;
  sharesKv: boolean;
  rotaryDims: number;
};

/** `window`: 0 for none. `chunked`: it begins at a multiple of its size. */
export type ScoreOptions = {
  rotaryDims: number;
  window: number;
  chunked: boolean;
  capped: boolean;
  sinks: boolean;
};

/** The newest token of each sequence, written to the pools in place: qkv (B, ...) -> (B, heads * D) */
export function decodeBlocks(
  qkv: MlxArray,
  { keys, values }: BlockPools,
  tables: MlxArray,
  layer: MlxArray,
  options: HeadOptions & ScoreOptions,
): MlxArray {
  const { normed, valuesNormed, sharesKv, rotaryDims, window, chunked, capped, sinks } = options;
  return op(
    "mlx_serve_decode",
    qkv.handle,
    keys.handle,
    values.handle,
    tables.handle,
    layer.handle,
    normed,
    valuesNormed,
    sharesKv,
    rotaryDims,
    window,
    chunked,
    capped,
    sinks,
  );
}

/** Keys and values go to their slots in the pools; queries (T, heads * D) */
export function prepareBlocks(
  qkv: MlxArray,
  { keys, values }: BlockPools,
  places: MlxArray,
  layer: MlxArray,
  { normed, valuesNormed, sharesKv, rotaryDims }: HeadOptions,
): MlxArray {
  return op(
    "mlx_serve_prepare",
    qkv.handle,
    keys.handle,
    values.handle,
    places.handle,
    layer.handle,
    normed,
    valuesNormed,
    sharesKv,
    rotaryDims,
  );
}

/** Queries (T, heads * D) over the blocks of their sequences, up to their positions -> (T, heads * D) */
export function attendBlocks(
  queries: MlxArray,
  { keys, values }: BlockPools,
  tables: MlxArray,
  places: MlxArray,
  layer: MlxArray,
  { rotaryDims, window, chunked, capped, sinks }: ScoreOptions,
): MlxArray {
  return op(
    "mlx_serve_attend",
    queries.handle,
    keys.handle,
    values.handle,
    tables.handle,
    places.handle,
    layer.handle,
    rotaryDims,
    window,
    chunked,
    capped,
    sinks,
  );
}

/**
 * Latents (T, D) go to their places in the pool, or without places to the ends of their sequences; queries
 * (T, heads * D) attend to them -> (T, heads * latent)
 */
export function attendLatent(
  queries: MlxArray,
  latents: MlxArray,
  pool: MlxArray,
  tables: MlxArray,
  places: MlxArray | undefined,
  layer: MlxArray,
  { latent, rotated }: { latent: number; rotated: boolean },
): MlxArray {
  return op(
    "mlx_serve_attend_latent",
    queries.handle,
    latents.handle,
    pool.handle,
    tables.handle,
    optionalHandle(places),
    layer.handle,
    latent,
    rotated,
  );
}

/** Copies blocks within a pool, pairs of from and to; evaluate the result. */
export function copyBlocks(pool: MlxArray, pairs: MlxArray): MlxArray {
  return op("mlx_serve_copy_blocks", pool.handle, pairs.handle);
}

/** How many rows of a quantized matrix are a panel where this processor multiplies by panels, otherwise 0. */
export function panelRows(): number {
  return mlxc.mlx_serve_panel_rows();
}

/**
 * The weights, scales or biases of a quantized matrix in panels, where the processor has them and the rows are a whole number
 * of them: (..., out, n) -> (..., out / 16, n, 16). They are in the memory of the rows, which are not to be read any more.
 */
export function panels(rows: MlxArray): MlxArray | undefined {
  const isWhole = panelRows() > 0 && rows.shape.at(-2)! % panelRows() === 0;
  return isWhole ? op("mlx_serve_panels", rows.handle) : undefined;
}

/** Whether `packedProduct` takes a matrix that is quantized so. */
export function fitsPackedProduct({ mode, bits, groupSize }: Quantization): boolean {
  if (mode === "mxfp4") return true;
  return mode === "affine" && (bits === 4 || bits === 8) && [32, 64, 128].includes(groupSize ?? 64);
}

/** The bits and the group size, which default to those of the mode. */
function packing({ mode, bits = 4, groupSize = mode === "mxfp4" ? 32 : 64 }: Quantization) {
  return [bits, groupSize] as const;
}

/** What is fused with a product. */
export type ProductOptions = {
  /** An RMS norm of the rows before the product. */
  norm?: { weight: MlxArray; eps: number } | undefined;
  /** The result is silu(first half) * second half. */
  isGated?: boolean;
  /** Added to the result. */
  residual?: MlxArray | undefined;
};

/** x (..., in), matrix (out, in) -> (..., out), or where it is gated (..., out / 2) */
export function packedProduct(
  x: MlxArray,
  { weight, scales, biases }: QuantizedMatrix,
  quantization: Quantization,
  { norm, isGated = false, residual }: ProductOptions = {},
): MlxArray {
  return op(
    "mlx_serve_packed_product",
    x.handle,
    weight.handle,
    scales.handle,
    optionalHandle(biases),
    optionalHandle(norm?.weight),
    optionalHandle(residual),
    ...packing(quantization),
    norm?.eps ?? 0,
    isGated,
  );
}

/** What is fused with a product of experts: the experts' bias (E, out), and then the gate. */
export type ExpertOptions = { bias?: MlxArray | undefined; isGated?: boolean };

/**
 * x (N, in), experts (R), matrices (E, out, in) -> (R, out), or where it is gated (R, out / 2): each row of x by the
 * matrices of the next R / N experts. Without scales the matrices are float32.
 */
export function expertProduct(
  x: MlxArray,
  experts: MlxArray,
  { weight, scales, biases }: Partial<QuantizedMatrix> & { weight: MlxArray },
  quantization: Quantization = {},
  { bias, isGated = false }: ExpertOptions = {},
): MlxArray {
  return op(
    "mlx_serve_expert_product",
    x.handle,
    experts.handle,
    weight.handle,
    optionalHandle(scales),
    optionalHandle(biases),
    optionalHandle(bias),
    ...packing(quantization),
    isGated,
  );
}

/** silu(gates) * ups, or with GELU as tanh approximates it. */
export function gate(kind: "swiglu" | "geglu", gates: MlxArray, ups: MlxArray): MlxArray {
  return op("mlx_serve_gate", gates.handle, ups.handle, kind === "geglu");
}

export function rmsNorm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray {
  return op("mlx_serve_rms_norm", x.handle, optionalHandle(weight), eps);
}

/** Of each row the first index of the highest value, and that value: NaN where a value is NaN. */
export function best(x: MlxArray): { indices: MlxArray; highest: MlxArray } {
  const [indices, highest] = opList("mlx_serve_best", x.handle) as [MlxArray, MlxArray];
  return { indices, highest };
}

/** Over the last axis, which is kept with size 1. */
export function logSumExp(x: MlxArray): MlxArray {
  return op("mlx_serve_log_sum_exp", x.handle);
}

/** Over the last axis. */
export function softmax(x: MlxArray): MlxArray {
  return op("mlx_serve_softmax", x.handle);
}

/** x (R, N), words (R, N / 32): minus infinity except where a bit is set. */
export function mask(x: MlxArray, words: MlxArray): MlxArray {
  return op("mlx_serve_mask", x.handle, words.handle);
}

/**
 * x (T, channels), which may be columns of wider rows, pool (slots, taps - 1, channels), which is written to ->
 * (T, channels)
 */
export function convolve(
  x: MlxArray,
  pool: MlxArray,
  moves: MlxArray,
  { weight, bias, silu }: { weight: MlxArray; bias?: MlxArray | undefined; silu: boolean },
): MlxArray {
  return op(
    "mlx_serve_convolve",
    x.handle,
    pool.handle,
    moves.handle,
    weight.handle,
    optionalHandle(bias),
    silu,
  );
}

export type ScanOptions = {
  keyHeads: number;
  columns: { queries: number; keys: number; values: number };
  erasing?: { find: number; put: number } | undefined;
  norm?: { eps: number; queryScale: number; keyScale: number } | undefined;
  deltaRule: boolean;
};

/** x (T, columns), pool (slots, heads, values, keys), which is written to -> (T, heads * values) */
export function scan(
  x: MlxArray,
  { decays, betas }: { decays: MlxArray; betas: MlxArray },
  pool: MlxArray,
  moves: MlxArray,
  { keyHeads, columns: { queries, keys, values }, erasing, norm, deltaRule }: ScanOptions,
): MlxArray {
  return op(
    "mlx_serve_scan",
    x.handle,
    decays.handle,
    betas.handle,
    pool.handle,
    moves.handle,
    keyHeads,
    queries,
    keys,
    values,
    erasing?.find ?? -1,
    erasing?.put ?? -1,
    norm?.eps ?? -1,
    norm?.queryScale ?? 1,
    norm?.keyScale ?? 1,
    deltaRule,
  );
}
