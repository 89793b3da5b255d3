// MLX's operations as functions. A number beside an array is taken as Python's MLX takes it: as a
// scalar of the array's type. Axes may be negative. The results belong to the open scope.
import { MlxError, takeHandle } from "../../ffi/error.ts";
import { mlxc } from "../../ffi/lib.ts";
import { cText, optionalInt } from "../../ffi/memory.ts";
import { out } from "../../ffi/slot.ts";
import {
  array,
  axisOf,
  ints,
  type MlxArray,
  type Operand,
  operand,
  optionalHandle,
  unpackVector,
  withVector,
} from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { op, opList } from "./op.ts";

// ---- Making arrays

export function zeros(shape: readonly number[], dtype: Dtype = "float32"): MlxArray {
  const code = codeOf(dtype);
  return op("mlx_zeros", ints(shape), shape.length, code);
}

export function ones(shape: readonly number[], dtype: Dtype = "float32"): MlxArray {
  const code = codeOf(dtype);
  return op("mlx_ones", ints(shape), shape.length, code);
}

export function full(shape: readonly number[], value: number, dtype: Dtype = "float32"): MlxArray {
  const scalar = array(value, [], dtype);
  return op("mlx_full", ints(shape), shape.length, scalar.handle, codeOf(dtype));
}

export function arange(start: number, stop: number, step = 1, dtype: Dtype = "int32"): MlxArray {
  // MLX 0.32.2 ends the process when a GPU is to count nothing.
  if ((stop - start) / step <= 0) return zeros([0], dtype);
  return op("mlx_arange", start, stop, step, codeOf(dtype));
}

// ---- One array, element by element

type UnarySymbol =
  | "mlx_abs"
  | "mlx_cos"
  | "mlx_erf"
  | "mlx_exp"
  | "mlx_floor"
  | "mlx_isfinite"
  | "mlx_isnan"
  | "mlx_log"
  | "mlx_logical_not"
  | "mlx_negative"
  | "mlx_ones_like"
  | "mlx_reciprocal"
  | "mlx_rsqrt"
  | "mlx_sigmoid"
  | "mlx_sin"
  | "mlx_sqrt"
  | "mlx_square"
  | "mlx_tanh"
  | "mlx_zeros_like";

const unary = (symbol: UnarySymbol) => (x: MlxArray) => op(symbol, x.handle);

export const abs = unary("mlx_abs");
export const cos = unary("mlx_cos");
export const erf = unary("mlx_erf");
export const exp = unary("mlx_exp");
export const floor = unary("mlx_floor");
export const isFinite = unary("mlx_isfinite");
export const isNaN = unary("mlx_isnan");
export const log = unary("mlx_log");
export const logicalNot = unary("mlx_logical_not");
export const negative = unary("mlx_negative");
export const onesLike = unary("mlx_ones_like");
export const reciprocal = unary("mlx_reciprocal");
export const rsqrt = unary("mlx_rsqrt");
export const sigmoid = unary("mlx_sigmoid");
export const sin = unary("mlx_sin");
export const sqrt = unary("mlx_sqrt");
export const square = unary("mlx_square");
export const tanh = unary("mlx_tanh");
export const zerosLike = unary("mlx_zeros_like");

/** To the nearest, ties to even. */
export function round(x: MlxArray, decimals = 0): MlxArray {
  return op("mlx_round", x.handle, decimals);
}

// ---- Two arrays, element by element

type BinarySymbol =
  | "mlx_add"
  | "mlx_bitwise_and"
  | "mlx_bitwise_or"
  | "mlx_bitwise_xor"
  | "mlx_divide"
  | "mlx_equal"
  | "mlx_floor_divide"
  | "mlx_greater"
  | "mlx_greater_equal"
  | "mlx_left_shift"
  | "mlx_less"
  | "mlx_less_equal"
  | "mlx_logical_and"
  | "mlx_logical_or"
  | "mlx_maximum"
  | "mlx_minimum"
  | "mlx_multiply"
  | "mlx_not_equal"
  | "mlx_power"
  | "mlx_remainder"
  | "mlx_right_shift"
  | "mlx_subtract";

const binary = (symbol: BinarySymbol) => (a: MlxArray, b: Operand) =>
  op(symbol, a.handle, operand(b, a).handle);

export const add = binary("mlx_add");
export const bitwiseAnd = binary("mlx_bitwise_and");
export const bitwiseOr = binary("mlx_bitwise_or");
export const bitwiseXor = binary("mlx_bitwise_xor");
export const divide = binary("mlx_divide");
export const equal = binary("mlx_equal");
export const floorDivide = binary("mlx_floor_divide");
export const greater = binary("mlx_greater");
export const greaterEqual = binary("mlx_greater_equal");
export const leftShift = binary("mlx_left_shift");
export const less = binary("mlx_less");
export const lessEqual = binary("mlx_less_equal");
export const logicalAnd = binary("mlx_logical_and");
export const logicalOr = binary("mlx_logical_or");
export const maximum = binary("mlx_maximum");
export const minimum = binary("mlx_minimum");
export const multiply = binary("mlx_multiply");
export const notEqual = binary("mlx_not_equal");
export const power = binary("mlx_power");
export const remainder = binary("mlx_remainder");
export const rightShift = binary("mlx_right_shift");
export const subtract = binary("mlx_subtract");

/** `x` where the condition holds, `y` elsewhere; one of the two may be a number. */
export function where(condition: MlxArray, x: MlxArray, y: Operand): MlxArray;
export function where(condition: MlxArray, x: number, y: MlxArray): MlxArray;
export function where(condition: MlxArray, x: Operand, y: Operand): MlxArray {
  const like = typeof x === "number" ? (y as MlxArray) : x;
  const [whenTrue, whenFalse] = [operand(x, like).handle, operand(y, like).handle];
  return op("mlx_where", condition.handle, whenTrue, whenFalse);
}

export function clip(x: MlxArray, min: Operand | undefined, max: Operand | undefined): MlxArray {
  const low = optionalHandle(min === undefined ? min : operand(min, x));
  const high = optionalHandle(max === undefined ? max : operand(max, x));
  return op("mlx_clip", x.handle, low, high);
}

// ---- Reductions, scans and order

type Axes = number | readonly number[];

type ReductionSymbol =
  | "mlx_all_axes"
  | "mlx_any_axes"
  | "mlx_logsumexp_axes"
  | "mlx_max_axes"
  | "mlx_mean_axes"
  | "mlx_min_axes"
  | "mlx_sum_axes";

/** Over one axis, several, or without `axes` all of them. */
const reduction =
  (symbol: ReductionSymbol) =>
  (x: MlxArray, axes?: Axes, keepDims = false) => {
    const over = axes === undefined ? x.shape.map((_, axis) => axis) : [axes].flat();
    return op(symbol, x.handle, ints(over), over.length, keepDims);
  };

export const all = reduction("mlx_all_axes");
export const any = reduction("mlx_any_axes");
export const logSumExp = reduction("mlx_logsumexp_axes");
export const max = reduction("mlx_max_axes");
export const mean = reduction("mlx_mean_axes");
export const min = reduction("mlx_min_axes");
export const sum = reduction("mlx_sum_axes");

/** `precise` accumulates 16-bit types in 32 bits. */
export function softmax(x: MlxArray, axis = -1, precise = true): MlxArray {
  return op("mlx_softmax_axes", x.handle, ints([axis]), 1, precise);
}

export function argmax(x: MlxArray, axis = -1, keepDims = false): MlxArray {
  return op("mlx_argmax_axis", x.handle, axis, keepDims);
}

export function argmin(x: MlxArray, axis = -1, keepDims = false): MlxArray {
  return op("mlx_argmin_axis", x.handle, axis, keepDims);
}

/** `inclusive` counts each element in its own sum. */
export function cumsum(
  x: MlxArray,
  axis = -1,
  { reverse = false, inclusive = true } = {},
): MlxArray {
  return op("mlx_cumsum_axis", x.handle, axis, reverse, inclusive, optionalInt(undefined));
}

export function sort(x: MlxArray, axis = -1): MlxArray {
  return op("mlx_sort_axis", x.handle, axis);
}

export function argsort(x: MlxArray, axis = -1): MlxArray {
  return op("mlx_argsort_axis", x.handle, axis);
}

/** Indices such that the kth stands in its sorted place, what is smaller before it. */
export function argpartition(x: MlxArray, kth: number, axis = -1): MlxArray {
  return op("mlx_argpartition_axis", x.handle, kth, axis);
}

/** The k largest, in no order. */
export function topk(x: MlxArray, k: number, axis = -1): MlxArray {
  return op("mlx_topk_axis", x.handle, k, axis);
}

// ---- Type and shape

export function astype(x: MlxArray, dtype: Dtype): MlxArray {
  return op("mlx_astype", x.handle, codeOf(dtype));
}

/** The same bytes as elements of another type. */
export function view(x: MlxArray, dtype: Dtype): MlxArray {
  return op("mlx_view", x.handle, codeOf(dtype));
}

/** The same elements in row order: a copy only where they were not. */
export function contiguous(x: MlxArray): MlxArray {
  return op("mlx_contiguous", x.handle, false);
}

export function reshape(x: MlxArray, shape: readonly number[]): MlxArray {
  return op("mlx_reshape", x.handle, ints(shape), shape.length);
}

export function flatten(x: MlxArray, startAxis = 0, endAxis = -1): MlxArray {
  return op("mlx_flatten", x.handle, startAxis, endAxis);
}

/** Without `axes`, all of them reversed. */
export function transpose(x: MlxArray, axes?: readonly number[]): MlxArray {
  const order = axes ?? x.shape.map((_, axis) => x.ndim - 1 - axis);
  return op("mlx_transpose_axes", x.handle, ints(order), order.length);
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

export function broadcastTo(x: MlxArray, shape: readonly number[]): MlxArray {
  return op("mlx_broadcast_to", x.handle, ints(shape), shape.length);
}

export function concatenate(arrays: readonly MlxArray[], axis = 0): MlxArray {
  return withVector(arrays, (vector) => op("mlx_concatenate_axis", vector, axis));
}

export function stack(arrays: readonly MlxArray[], axis = 0): MlxArray {
  return withVector(arrays, (vector) => op("mlx_stack_axis", vector, axis));
}

/** Into this many equal parts, or before each of these indices. */
export function split(x: MlxArray, parts: number | readonly number[], axis = -1): MlxArray[] {
  return typeof parts === "number"
    ? opList("mlx_split", x.handle, parts, axis)
    : opList("mlx_split_sections", x.handle, ints(parts), parts.length, axis);
}

/** Each element this many times, one copy beside the other. */
export function repeat(x: MlxArray, times: number, axis: number): MlxArray {
  return op("mlx_repeat_axis", x.handle, times, axis);
}

/** `before` and `after` elements of this value more along one axis. */
export function pad(
  x: MlxArray,
  axis: number,
  [before, after]: readonly [number, number],
  value = 0,
): MlxArray {
  const fill = operand(value, x);
  const at = axisOf("pad", x, axis);
  return op(
    "mlx_pad",
    x.handle,
    ints([at]),
    1,
    ints([before]),
    1,
    ints([after]),
    1,
    fill.handle,
    cText("constant"),
  );
}

/** `x[start:stop:step]` along one axis: negative positions count from the end. */
export function slice(x: MlxArray, axis: number, start: number, stop?: number, step = 1): MlxArray {
  const { ndim, shape } = x;
  const at = axisOf("slice", x, axis);
  if (step === 0) throw new MlxError("slice", "the step must not be 0");
  const starts = ints(shape.map((_, i) => (i === at ? start : 0)));
  const stops = ints(shape.map((dim, i) => (i === at ? (stop ?? dim) : dim)));
  const steps = ints(shape.map((_, i) => (i === at ? step : 1)));
  return op("mlx_slice", x.handle, starts, ndim, stops, ndim, steps, ndim);
}

/** `x` with `update` in place of what stood at `starts`. In place if nobody else holds `x`. */
export function sliceUpdate(x: MlxArray, update: MlxArray, starts: readonly number[]): MlxArray {
  const count = starts.length;
  const stops = ints(starts.map((start, axis) => start + (update.shape[axis] ?? 0)));
  const steps = ints(starts.map(() => 1));
  return op(
    "mlx_slice_update",
    x.handle,
    update.handle,
    ints(starts),
    count,
    stops,
    count,
    steps,
    count,
  );
}

/** The slice of this size at positions that only the device knows. */
export function sliceDynamic(
  x: MlxArray,
  starts: MlxArray,
  axes: readonly number[],
  size: readonly number[],
): MlxArray {
  return op(
    "mlx_slice_dynamic",
    x.handle,
    starts.handle,
    ints(axes),
    axes.length,
    ints(size),
    size.length,
  );
}

export function sliceUpdateDynamic(
  x: MlxArray,
  update: MlxArray,
  starts: MlxArray,
  axes: readonly number[],
): MlxArray {
  return op(
    "mlx_slice_update_dynamic",
    x.handle,
    update.handle,
    starts.handle,
    ints(axes),
    axes.length,
  );
}

/** The same arrays, evaluated only after `dependencies`. */
export function depends(
  arrays: readonly MlxArray[],
  dependencies: readonly MlxArray[],
): MlxArray[] {
  if (arrays.length === 0) return [];
  const handle = withVector(arrays, (inputs) =>
    withVector(dependencies, (after) =>
      takeHandle("mlx_depends", mlxc.mlx_depends(out.view, inputs, after)),
    ),
  );
  return unpackVector(handle);
}

// ---- Indexing

/** The slices of `x` at these indices along the axis. */
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

/** Adds at the indices; indices that repeat add up. */
export function scatterAddAxis(
  x: MlxArray,
  indices: MlxArray,
  values: Operand,
  axis = -1,
): MlxArray {
  const added = operand(values, x);
  return op("mlx_scatter_add_axis", x.handle, indices.handle, added.handle, axis);
}

/** Writes whole slices: `updates` has the shape of `indices`, then of `x` with 1 at the axis. */
export function scatter(x: MlxArray, indices: MlxArray, updates: MlxArray, axis: number): MlxArray {
  const at = axisOf("scatter_single", x, axis);
  return op("mlx_scatter_single", x.handle, indices.handle, updates.handle, at);
}

// ---- Products

export function matmul(a: MlxArray, b: MlxArray): MlxArray {
  return op("mlx_matmul", a.handle, b.handle);
}

/** `alpha * (a @ b) + beta * c` */
export function addmm(c: MlxArray, a: MlxArray, b: MlxArray, alpha = 1, beta = 1): MlxArray {
  return op("mlx_addmm", c.handle, a.handle, b.handle, alpha, beta);
}

type GatherIndices = { lhs?: MlxArray; rhs?: MlxArray; sorted?: boolean };

/** Products of the matrices of `a` and `b` at these indices: experts chosen row by row. */
export function gatherMm(a: MlxArray, b: MlxArray, indices: GatherIndices): MlxArray {
  const { lhs, rhs, sorted = false } = indices;
  return op("mlx_gather_mm", a.handle, b.handle, optionalHandle(lhs), optionalHandle(rhs), sorted);
}

// ---- Quantization

export type QuantizationMode = "affine" | "mxfp4" | "mxfp8" | "nvfp4";

/** Without group size and bits, those of the mode. */
export type Quantization = { mode?: QuantizationMode; groupSize?: number; bits?: number };

export type QuantizedMatrix = {
  weight: MlxArray;
  scales: MlxArray;
  /** Of affine quantization only. */
  biases?: MlxArray | undefined;
};

const modes: Record<QuantizationMode, Uint8Array> = {
  affine: cText("affine"),
  mxfp4: cText("mxfp4"),
  mxfp8: cText("mxfp8"),
  nvfp4: cText("nvfp4"),
};

/** Group size, bits and mode as mlx-c takes them. It divides by the first two without a look. */
function format(op: string, { mode = "affine", groupSize, bits }: Quantization) {
  if (groupSize === 0 || bits === 0) throw new MlxError(op, "group size and bits must not be 0");
  return [optionalInt(groupSize), optionalInt(bits), modes[mode]] as const;
}

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

/** `x @ matrix.T`, or `x @ matrix` with `transpose` false. */
export function quantizedMatmul(
  x: MlxArray,
  matrix: QuantizedMatrix,
  quantization: Quantization = {},
  transpose = true,
): MlxArray {
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

export function gatherQmm(
  x: MlxArray,
  matrix: QuantizedMatrix,
  indices: GatherIndices,
  quantization: Quantization = {},
  transpose = true,
): MlxArray {
  const { lhs, rhs, sorted = false } = indices;
  return op(
    "mlx_gather_qmm",
    x.handle,
    matrix.weight.handle,
    matrix.scales.handle,
    optionalHandle(matrix.biases),
    optionalHandle(lhs),
    optionalHandle(rhs),
    transpose,
    ...format("gather_qmm", quantization),
    sorted,
  );
}

/** Bytes of the e4m3 format as numbers. */
export function fromFp8(x: MlxArray, dtype: Dtype): MlxArray {
  return op("mlx_from_fp8", x.handle, codeOf(dtype));
}
