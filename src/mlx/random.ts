// Random numbers from explicit keys: the same key gives the same numbers.
import { mlxc } from "../../ffi/lib.ts";
import { out } from "../../ffi/slot.ts";
import { ints, type MlxArray, make, optionalHandle } from "./array.ts";
import { codeOf } from "./dtype.ts";
import { op } from "./op.ts";

export function key(seed: number | bigint): MlxArray {
  return make("mlx_random_key", mlxc.mlx_random_key(out.view, BigInt(seed)));
}

/** Returns float32 values with mean 0 and standard deviation 1. */
export function normal(from: MlxArray, shape: readonly number[]): MlxArray {
  const [code, mean, deviation] = [codeOf("float32"), 0, 1];
  const key = optionalHandle(from);
  return op("mlx_random_normal", ints(shape), shape.length, code, mean, deviation, key);
}
