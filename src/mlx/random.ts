// Random numbers from explicit keys: the same key gives the same numbers, so that a seeded request
// draws the same alone and in a crowd.
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import { array, ints, type MlxArray, make, optionalHandle } from "./array.ts";
import { codeOf, type Dtype } from "./dtype.ts";
import { op } from "./op.ts";

export function key(seed: number | bigint): MlxArray {
  return make("mlx_random_key", mlxc.mlx_random_key(out.view, BigInt(seed)));
}

/** Independent keys, one a row. */
export function splitKey(from: MlxArray, count: number): MlxArray {
  return op("mlx_random_split_num", from.handle, count);
}

/** Unsigned integers of `width` bytes. */
export function bits(from: MlxArray, shape: readonly number[], width: 1 | 2 | 4 = 4): MlxArray {
  return op("mlx_random_bits", ints(shape), shape.length, width, optionalHandle(from));
}

/** From `low` up to but without `high`. */
export function uniform(
  from: MlxArray,
  shape: readonly number[],
  { low = 0, high = 1, dtype = "float32" as Dtype } = {},
): MlxArray {
  const [least, most] = [array(low, [], dtype), array(high, [], dtype)];
  return op(
    "mlx_random_uniform",
    least.handle,
    most.handle,
    ints(shape),
    shape.length,
    codeOf(dtype),
    optionalHandle(from),
  );
}

export function normal(
  from: MlxArray,
  shape: readonly number[],
  { mean = 0, deviation = 1, dtype = "float32" as Dtype } = {},
): MlxArray {
  return op(
    "mlx_random_normal",
    ints(shape),
    shape.length,
    codeOf(dtype),
    mean,
    deviation,
    optionalHandle(from),
  );
}

export function gumbel(
  from: MlxArray,
  shape: readonly number[],
  dtype: Dtype = "float32",
): MlxArray {
  return op("mlx_random_gumbel", ints(shape), shape.length, codeOf(dtype), optionalHandle(from));
}

/** An index for each row, drawn by the unnormalized log-probabilities along the axis. */
export function categorical(from: MlxArray, logits: MlxArray, axis = -1): MlxArray {
  return op("mlx_random_categorical", logits.handle, axis, optionalHandle(from));
}
