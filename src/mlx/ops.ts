// The MLX operations that mlx-serve uses, as functions. A number operand becomes a scalar of the other
// operand's type, as in Python. Axes may be negative. Results belong to the open scope.
import { MlxError } from "../../ffi/error.ts";
import { cText, optionalInt } from "../../ffi/memory.ts";
import {
  axisOf,
  ints,
  type MlxArray,
  type Operand,
  operand,
  optionalHandle,
  withVector,
} from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { op, opList } from "./op.ts";

// ---- Making arrays

export function zeros(shape: readonly number[], dtype: Dtype = "float32"): MlxArray {
  return op("mlx_zeros", ints(shape), shape.length, codeOf(dtype));
}

export function arange(start: number, stop: number, step = 1, dtype: Dtype = "int32"): MlxArray {
  // MLX 0.32.2 crashes on a GPU when the range is empty.
  if ((stop - start) / step <= 0) return zeros([0], dtype);
  return op("mlx_arange", start, stop, step, codeOf(dtype));
}

// ---- One array, element by element

type UnarySymbol =
  | "mlx_erf"
  | "mlx_erfinv"
  | "mlx_exp"
  | "mlx_expm1"
  | "mlx_log"
  | "mlx_negative"
  | "mlx_sigmoid"
  | "mlx_tanh";

const unary = (symbol: UnarySymbol) => (x: MlxArray) => op(symbol, x.handle);

export const erf = unary("mlx_erf");
export const erfinv = unary("mlx_erfinv");
export const exp = unary("mlx_exp");
export const expm1 = unary("mlx_expm1");
export const log = unary("mlx_log");
export const negative = unary("mlx_negative");
export const sigmoid = unary("mlx_sigmoid");
export const tanh = unary("mlx_tanh");

/** Rounds to the nearest integer, ties to even. */
export function round(x: MlxArray): MlxArray {
  const decimals = 0;
  return op("mlx_round", x.handle, decimals);
}

// ---- Two arrays, element by element

type BinarySymbol =
  | "mlx_add"
  | "mlx_divide"
  | "mlx_floor_divide"
  | "mlx_greater"
  | "mlx_greater_equal"
  | "mlx_less"
  | "mlx_less_equal"
  | "mlx_logaddexp"
  | "mlx_logical_and"
  | "mlx_maximum"
  | "mlx_minimum"
  | "mlx_multiply"
  | "mlx_power"
  | "mlx_subtract";

const binary = (symbol: BinarySymbol) => (a: MlxArray, b: Operand) =>
  op(symbol, a.handle, operand(b, a).handle);

export const add = binary("mlx_add");
export const divide = binary("mlx_divide");
export const floorDivide = binary("mlx_floor_divide");
export const greater = binary("mlx_greater");
export const greaterEqual = binary("mlx_greater_equal");
export const less = binary("mlx_less");
export const lessEqual = binary("mlx_less_equal");
export const logAddExp = binary("mlx_logaddexp");
export const logicalAnd = binary("mlx_logical_and");
export const maximum = binary("mlx_maximum");
export const minimum = binary("mlx_minimum");
export const multiply = binary("mlx_multiply");
export const power = binary("mlx_power");
export const subtract = binary("mlx_subtract");

/** Takes elements of `x` where the condition holds, of `y` elsewhere. */
export function where(condition: MlxArray, x: MlxArray, y: Operand): MlxArray {
  return op("mlx_where", condition.handle, x.handle, operand(y, x).handle);
}

export function clip(x: MlxArray, min: number, max: number): MlxArray {
  return op("mlx_clip", x.handle, operand(min, x).handle, operand(max, x).handle);
}

// ---- Reductions, scans and order

type Axes = number | readonly number[];

type ReductionSymbol = "mlx_logsumexp_axes" | "mlx_max_axes" | "mlx_sum_axes";

/** Reduces over one axis, several axes, or all axes if `axes` is absent. */
const reduction =
  (symbol: ReductionSymbol) =>
  (x: MlxArray, axes?: Axes, keepDims = false) => {
    const over = axes === undefined ? x.shape.map((_, axis) => axis) : [axes].flat();
    return op(symbol, x.handle, ints(over), over.length, keepDims);
  };

export const logSumExp = reduction("mlx_logsumexp_axes");
export const max = reduction("mlx_max_axes");
export const sum = reduction("mlx_sum_axes");

/** Computes the softmax over an axis; accumulates 16-bit types in 32 bits. */
export function softmax(x: MlxArray, axis = -1): MlxArray {
  const precise = true;
  return op("mlx_softmax_axes", x.handle, ints([axis]), 1, precise);
}

export function argmax(x: MlxArray, axis = -1): MlxArray {
  const keepDims = false;
  return op("mlx_argmax_axis", x.handle, axis, keepDims);
}

/** Computes inclusive cumulative sums: each element is part of its own sum. */
export function cumsum(x: MlxArray, axis = -1): MlxArray {
  const [reverse, inclusive] = [false, true];
  return op("mlx_cumsum_axis", x.handle, axis, reverse, inclusive, optionalInt(undefined));
}

export function argsort(x: MlxArray, axis = -1): MlxArray {
  return op("mlx_argsort_axis", x.handle, axis);
}

/** Returns indices that put the kth element in its sorted place, and smaller elements before it. */
export function argpartition(x: MlxArray, kth: number, axis = -1): MlxArray {
  return op("mlx_argpartition_axis", x.handle, kth, axis);
}

// ---- Type and shape

export function astype(x: MlxArray, dtype: Dtype): MlxArray {
  return op("mlx_astype", x.handle, codeOf(dtype));
}

export function reshape(x: MlxArray, shape: readonly number[]): MlxArray {
  return op("mlx_reshape", x.handle, ints(shape), shape.length);
}

/** Returns the same elements in row order; copies only if necessary. */
export function contiguous(x: MlxArray): MlxArray {
  return op("mlx_contiguous", x.handle, false);
}

export function flatten(x: MlxArray): MlxArray {
  return op("mlx_flatten", x.handle, 0, -1);
}

export function swapAxes(x: MlxArray, a: number, b: number): MlxArray {
  return op("mlx_swapaxes", x.handle, a, b);
}

export function expandDims(x: MlxArray, axes: Axes): MlxArray {
  const list = [axes].flat();
  return op("mlx_expand_dims_axes", x.handle, ints(list), list.length);
}

export function squeeze(x: MlxArray, axes: Axes): MlxArray {
  const list = [axes].flat();
  return op("mlx_squeeze_axes", x.handle, ints(list), list.length);
}

export function concatenate(arrays: readonly MlxArray[], axis = 0): MlxArray {
  return withVector(arrays, (vector) => op("mlx_concatenate_axis", vector, axis));
}

/** Splits into `parts` equal parts, or before each index in `parts`. */
export function split(x: MlxArray, parts: number | readonly number[], axis = -1): MlxArray[] {
  return typeof parts === "number"
    ? opList("mlx_split", x.handle, parts, axis)
    : opList("mlx_split_sections", x.handle, ints(parts), parts.length, axis);
}

/** Returns `x[start:stop]` along one axis: negative positions count from the end. */
export function slice(x: MlxArray, axis: number, start: number, stop?: number): MlxArray {
  const { ndim, shape } = x;
  const at = axisOf("slice", x, axis);
  const starts = ints(shape.map((_, i) => (i === at ? start : 0)));
  const stops = ints(shape.map((dim, i) => (i === at ? (stop ?? dim) : dim)));
  const steps = ints(shape.map(() => 1));
  return op("mlx_slice", x.handle, starts, ndim, stops, ndim, steps, ndim);
}

// ---- Indexing

/** Returns the slices of `x` at these indices along the axis. */
export function take(x: MlxArray, indices: MlxArray, axis = 0): MlxArray {
  return op("mlx_take_axis", x.handle, indices.handle, axis);
}

export function takeAlongAxis(x: MlxArray, indices: MlxArray, axis = -1): MlxArray {
  return op("mlx_take_along_axis", x.handle, indices.handle, axis);
}

export function putAlongAxis(x: MlxArray, indices: MlxArray, values: Operand, axis = -1): MlxArray {
  const put = operand(values, x);
  return op("mlx_put_along_axis", x.handle, indices.handle, put.handle, axis);
}

/** Adds `values` to `x` at these indices along the axis; values of repeated indices accumulate. */
export function scatterAddAxis(
  x: MlxArray,
  indices: MlxArray,
  values: Operand,
  axis = -1,
): MlxArray {
  const added = operand(values, x);
  return op("mlx_scatter_add_axis", x.handle, indices.handle, added.handle, axis);
}

// ---- Products

export function matmul(a: MlxArray, b: MlxArray): MlxArray {
  return op("mlx_matmul", a.handle, b.handle);
}

/** Computes `a @ b + c`. */
export function addmm(c: MlxArray, a: MlxArray, b: MlxArray): MlxArray {
  const [alpha, beta] = [1, 1];
  return op("mlx_addmm", c.handle, a.handle, b.handle, alpha, beta);
}

/** `rhs`: which of b's matrices each matrix of a is multiplied by. `sorted`: whether these indices ascend. */
type GatherIndices = { rhs: MlxArray; sorted?: boolean };

/** Computes `a @ b[rhs]`: products with the experts that a router chose. */
export function gatherMm(
  a: MlxArray,
  b: MlxArray,
  { rhs, sorted = false }: GatherIndices,
): MlxArray {
  return op("mlx_gather_mm", a.handle, b.handle, null, optionalHandle(rhs), sorted);
}

// ---- Quantization

export type QuantizationMode = "affine" | "mxfp4" | "mxfp8" | "nvfp4";

/** The group size and the bits default to those of the mode. */
export type Quantization = { mode?: QuantizationMode; groupSize?: number; bits?: number };

export type QuantizedMatrix = {
  weight: MlxArray;
  scales: MlxArray;
  /** Quantization biases, which only affine quantization has. */
  biases?: MlxArray | undefined;
};

const modes: Record<QuantizationMode, Uint8Array> = {
  affine: cText("affine"),
  mxfp4: cText("mxfp4"),
  mxfp8: cText("mxfp8"),
  nvfp4: cText("nvfp4"),
};

/** Returns mlx-c's arguments, and checks them: mlx-c divides by group size and bits unchecked. */
function format(op: string, { mode = "affine", groupSize, bits }: Quantization) {
  if (groupSize === 0 || bits === 0) throw new MlxError(op, "group size and bits must not be 0");
  return [optionalInt(groupSize), optionalInt(bits), modes[mode]] as const;
}

/** Quantizes a matrix, for the self-test and tests only: models are quantized already. */
export function quantize(x: MlxArray, quantization: Quantization = {}): QuantizedMatrix {
  const [weight, scales, biases] = opList(
    "mlx_quantize",
    x.handle,
    ...format("quantize", quantization),
    null,
  );
  return { weight: weight!, scales: scales!, biases };
}

export function dequantize(
  matrix: QuantizedMatrix,
  quantization: Quantization = {},
  dtype?: Dtype,
): MlxArray {
  return op(
    "mlx_dequantize",
    matrix.weight.handle,
    matrix.scales.handle,
    optionalHandle(matrix.biases),
    ...format("dequantize", quantization),
    null,
    optionalInt(dtype && codeOf(dtype)),
  );
}

/** Computes `x @ matrix.T`. */
export function quantizedMatmul(
  x: MlxArray,
  matrix: QuantizedMatrix,
  quantization: Quantization = {},
): MlxArray {
  const transpose = true;
  return op(
    "mlx_quantized_matmul",
    x.handle,
    matrix.weight.handle,
    matrix.scales.handle,
    optionalHandle(matrix.biases),
    transpose,
    ...format("quantized_matmul", quantization),
  );
}

/** Computes `x @ matrix[rhs].T` with quantized matrices. */
export function gatherQmm(
  x: MlxArray,
  matrix: QuantizedMatrix,
  { rhs, sorted = false }: GatherIndices,
  quantization: Quantization = {},
): MlxArray {
  const transpose = true;
  return op(
    "mlx_gather_qmm",
    x.handle,
    matrix.weight.handle,
    matrix.scales.handle,
    optionalHandle(matrix.biases),
    null,
    optionalHandle(rhs),
    transpose,
    ...format("gather_qmm", quantization),
    sorted,
  );
}
