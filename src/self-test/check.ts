// A check of the self-test: what a device computes, beside plain arithmetic.
import type { Device } from "../device/device.ts";
import type { MlxArray } from "../mlx/array.ts";
import { astype } from "../mlx/ops.ts";
import { uniform } from "./tiny-weights.ts";

/** By how much numbers differ from what they should be, and by how much they may. */
export type Finding = { what: string; worst: number; most: number };

export type DeviceCheck = {
  name: string;
  /** In a scope of its own. Throws where what was computed has another shape. */
  run(device: Device): readonly Finding[];
};

/** Numbers in [-1, 1) that are the same every time. */
export function noise(key: string, count: number): Float32Array {
  return uniform(`self-test/${key}`, count);
}

/** The largest difference; NaN where a number is NaN that should not be. */
export function compared(
  what: string,
  found: readonly number[],
  expected: readonly number[],
  most: number,
): Finding {
  if (found.length !== expected.length) {
    throw new Error(`${what}: ${found.length} numbers instead of ${expected.length}`);
  }
  let worst = 0;
  for (const [i, value] of expected.entries()) {
    const isSame = Object.is(found[i], value) || found[i] === value;
    if (!isSame) worst = Math.max(worst, Math.abs(found[i]! - value)); // NaN stays NaN
  }
  return { what, worst, most };
}

/** As `compared`, as a part of the largest number that is expected. */
export function comparedByPart(
  what: string,
  found: readonly number[],
  expected: readonly number[],
  most: number,
): Finding {
  const largest = expected.reduce((highest, value) => Math.max(highest, Math.abs(value)), 0);
  const { worst } = compared(what, found, expected, most);
  return { what, worst: largest === 0 ? worst : worst / largest, most };
}

export function isClose({ worst, most }: Finding): boolean {
  return worst <= most;
}

/** Of any type, in row order. */
export function numbersOf(x: MlxArray): number[] {
  return astype(x, "float32").numbers();
}
