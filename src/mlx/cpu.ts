// Our own CPU operations (ffi/cpu): fused, vectorized and multithreaded, where MLX makes several scalar passes. All
// values are float32. A libmlxc of another build has none of these operations.
import { mlxc } from "../../ffi/lib.ts";
import { ints, type MlxArray, optionalHandle } from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { op, opList } from "./op.ts";
import type { Quantization, QuantizedMatrix } from "./ops.ts";

/** Allocates an uninitialized array, aligned to cache lines. */
export function allocate(shape: readonly number[], dtype: Dtype): MlxArray {
  return op("mlx_serve_room", ints(shape), shape.length, codeOf(dtype));
}

/** Looks up embeddings: indices (T) -> (T, in). Without scales the matrix is float32. */
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

/** How heads are prepared. `sharesKv`: an earlier layer has written keys and values, and qkv has only queries. */
export type HeadOptions = {
  normed: boolean;
  valuesNormed: boolean;
  sharesKv: boolean;
  rotaryDims: number;
  /** Sequence length above which longrope's factors for long sequences apply; 0 if the model has none. */
  longBeyond: number;
  sinks: boolean;
};

/** How scores are computed. `window`: 0 for none. `chunked`: the window starts at a multiple of its size. */
export type ScoreOptions = {
  rotaryDims: number;
  window: number;
  chunked: boolean;
  capped: boolean;
  sinks: boolean;
};

/** Attends from each sequence's newest token: qkv (B, ...) -> (B, heads * D). Writes keys and values to the pools. */
export function decodeBlocks(
  qkv: MlxArray,
  { keys, values }: BlockPools,
  tables: MlxArray,
  layer: MlxArray,
  options: HeadOptions & ScoreOptions,
): MlxArray {
  const { normed, valuesNormed, sharesKv, rotaryDims, longBeyond } = options;
  const { window, chunked, capped, sinks } = options;
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
    longBeyond,
    window,
    chunked,
    capped,
    sinks,
  );
}

/** Applies norms and RoPE to qkv (T, ...), writes keys and values to the pools, returns queries (T, heads * D). */
export function prepareBlocks(
  qkv: MlxArray,
  { keys, values }: BlockPools,
  places: MlxArray,
  layer: MlxArray,
  { normed, valuesNormed, sharesKv, rotaryDims, longBeyond, sinks }: HeadOptions,
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
    longBeyond,
    sinks,
  );
}

/** Attends causally from queries (T, heads * D) to their sequences' blocks -> (T, heads * D). */
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
 * Writes latents (T, D) to their slots in the pool; without `places`, each row is its sequence's newest token. Then
 * attends from queries (T, heads * D) -> (T, heads * latent).
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

/** Copies blocks within a pool by (from, to) pairs, when the result is evaluated. */
export function copyBlocks(pool: MlxArray, pairs: MlxArray): MlxArray {
  return op("mlx_serve_copy_blocks", pool.handle, pairs.handle);
}

/** Returns the number of matrix rows per panel; 0 if this processor does not multiply by panels. */
export function panelRows(): number {
  return mlxc.mlx_serve_panel_rows();
}

/**
 * Packs weights, scales or biases of a quantized matrix into panels: (..., out, n) -> (..., out / 16, n, 16), in
 * place: `rows` must not be read afterwards. Returns undefined unless `out` is a multiple of panelRows().
 */
export function panels(rows: MlxArray): MlxArray | undefined {
  const isWhole = panelRows() > 0 && rows.shape.at(-2)! % panelRows() === 0;
  return isWhole ? op("mlx_serve_panels", rows.handle) : undefined;
}

/** Whether `packedProduct` supports this quantization. */
export function fitsPackedProduct({ mode, bits, groupSize }: Quantization): boolean {
  if (mode === "mxfp4") return true;
  return mode === "affine" && (bits === 4 || bits === 8) && [32, 64, 128].includes(groupSize ?? 64);
}

/** Returns bits and group size, with the mode's defaults. */
function packing({ mode, bits = 4, groupSize = mode === "mxfp4" ? 32 : 64 }: Quantization) {
  return [bits, groupSize] as const;
}

/** Operations fused into a product. */
export type ProductOptions = {
  /** RMSNorm that is applied to the input rows. */
  norm?: { weight: MlxArray; eps: number } | undefined;
  /** Whether the result is silu(first half) * second half. */
  isGated?: boolean;
  /** Array that is added to the result. */
  residual?: MlxArray | undefined;
};

/** Multiplies x (..., in) by a quantized matrix (out, in) -> (..., out), or (..., out / 2) if gated. */
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

/** Operations fused into a product with experts: the experts' bias (E, out) is added, then the gate applied. */
export type ExpertOptions = { bias?: MlxArray | undefined; isGated?: boolean };

/**
 * Multiplies row i of x (N, in) by the matrices of its R / N experts, listed in `experts` (R) from i * R / N on ->
 * (R, out), or (R, out / 2) if gated. Without scales the matrices (E, out, in) are float32.
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

/** Computes silu(gates) * ups, or with "geglu" the tanh approximation of GELU instead of silu. */
export function gate(kind: "swiglu" | "geglu", gates: MlxArray, ups: MlxArray): MlxArray {
  return op("mlx_serve_gate", gates.handle, ups.handle, kind === "geglu");
}

export function rmsNorm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray {
  return op("mlx_serve_rms_norm", x.handle, optionalHandle(weight), eps);
}

/** Finds each row's maximum: its first index, and its value; NaN if any value is NaN. */
export function best(x: MlxArray): { indices: MlxArray; highest: MlxArray } {
  const [indices, highest] = opList("mlx_serve_best", x.handle) as [MlxArray, MlxArray];
  return { indices, highest };
}

/** Computes log(sum(exp(x))) over the last axis, which is kept with size 1. */
export function logSumExp(x: MlxArray): MlxArray {
  return op("mlx_serve_log_sum_exp", x.handle);
}

/** Computes the softmax over the last axis. */
export function softmax(x: MlxArray): MlxArray {
  return op("mlx_serve_softmax", x.handle);
}

/** Applies a token mask, words (R, N / 32), to x (R, N): -infinity where the bit is not set. */
export function mask(x: MlxArray, words: MlxArray): MlxArray {
  return op("mlx_serve_mask", x.handle, words.handle);
}

/**
 * Convolves x (T, channels) causally -> (T, channels); x may be columns of wider rows. Updates in place the last
 * inputs of each sequence: pool (slots, taps - 1, channels).
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

/** Runs a linear recurrence: x (T, columns) -> (T, heads * values). Updates pool (slots, heads, values, keys). */
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
