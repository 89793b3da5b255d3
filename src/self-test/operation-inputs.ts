// Inputs and reference for checks of operations: two matrices, plain arithmetic over their rows, and the comparison.
import type { Device } from "../device/device.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { compared, type DeviceCheck, noise, numbersOf } from "./check.ts";
import { rowsOf } from "./plain-products.ts";

/** A result, the expected numbers, and the tolerance. */
export type Made = readonly [found: MlxArray, expected: readonly number[], most?: number];

const MOST = 1e-5;
/** Factor of the tolerance on GPUs, whose powers, logarithms and similar functions are less exact. */
const GPU_SLACK = 10;
export const [ROWS, COLUMNS] = [37, 70];
export const values = [...noise("values", ROWS * COLUMNS).map((x) => 3 * x)];
export const others = [...noise("others", ROWS * COLUMNS).map((x) => 2 * x)];
export const positives = values.map((x) => Math.fround(Math.abs(x) + 0.1));
export const matrix = (numbers: readonly number[] = values) => array(numbers, [ROWS, COLUMNS]);
export const byRow = (numbers: readonly number[], f: (row: number[]) => number[]) =>
  rowsOf(numbers, COLUMNS).flatMap(f);
export const total = (numbers: readonly number[]) => numbers.reduce((sum, x) => sum + x, 0);
export const logSumExp = (row: readonly number[]) => Math.log(total(row.map(Math.exp)));
export const softmax = (row: readonly number[]) => row.map((x) => Math.exp(x - logSumExp(row)));
export const transposed = (numbers: readonly number[], width: number) =>
  Array.from(numbers, (_, i) => {
    const rows = numbers.length / width;
    return numbers[(i % rows) * width + Math.floor(i / rows)]!;
  });

export function checkOf(
  group: "operation" | "device",
  name: string,
  make: (device: Device) => readonly Made[],
): DeviceCheck {
  return {
    name: `${group}: ${name}`,
    run: (device) =>
      make(device).map(([found, expected, most = MOST], i) =>
        compared(
          i === 0 ? name : `${name}, ${i + 1}`,
          numbersOf(found),
          expected,
          device.backend === "cpu" ? most : GPU_SLACK * most,
        ),
      ),
  };
}
