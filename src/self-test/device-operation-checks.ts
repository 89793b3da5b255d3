// Checks the operations that devices implement in place of MLX's, against plain arithmetic.
import type { Device, FloatType } from "../device/device.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { add, astype, multiply, slice, zeros } from "../mlx/ops.ts";
import { type DeviceCheck, noise, numbersOf } from "./check.ts";
import {
  byRow,
  COLUMNS,
  checkOf,
  logSumExp,
  type Made,
  matrix,
  others,
  ROWS,
  softmax,
  values,
} from "./operation-inputs.ts";
import { normed } from "./plain-attention.ts";
import { rowsOf, sigmoid } from "./plain-products.ts";

const operations: Record<string, (device: Device) => Made[]> = {
  lookup: (device) => {
    const width = 72;
    const of = (dtype: FloatType, count: number): Made => {
      const tokens = Uint32Array.from({ length: count }, (_, i) => ROWS - 1 - ((i * 31) % ROWS));
      const weight = astype(array(noise("embedding", ROWS * width), [ROWS, width]), dtype);
      const rows = rowsOf(numbersOf(weight), width);
      const found = device.lookup({ kind: "dense", weight }, array(tokens), dtype);
      return [found, [...tokens].flatMap((token) => rows[token]!), 0];
    };
    return [of("float32", 5), of("float16", 1), of("bfloat16", 3), of("bfloat16", 1024)];
  },
  rmsNorm: (device) => {
    const weight = others.slice(0, COLUMNS);
    const of = (dtype: Dtype, most: number): Made => {
      const [x, factors] = [astype(matrix(), dtype), astype(array(weight), dtype)];
      const plain = numbersOf(factors);
      const expected = byRow(numbersOf(x), (row) => normed(row, plain, 1e-5));
      return [device.rmsNorm(x, factors, 1e-5), expected, most];
    };
    return [of("float32", 1e-5), of("float16", 3e-3), of("bfloat16", 3e-2)];
  },
  gates: (device) => {
    const geglu = (x: number) =>
      0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
    return [
      [
        device.gate("swiglu", matrix(), matrix(others)),
        values.map((x, i) => x * sigmoid(x) * others[i]!),
      ],
      [device.gate("geglu", matrix(), matrix(others)), values.map((x, i) => geglu(x) * others[i]!)],
    ];
  },
  softmax: (device) => [[device.softmax(matrix()), byRow(values, softmax)]],
  logSumExp: (device) => [[device.logSumExp(matrix()), byRow(values, (row) => [logSumExp(row)])]],
  best: (device) => {
    const { indices, highest } = device.best(matrix());
    return [
      [indices, byRow(values, (row) => [row.indexOf(Math.max(...row))])],
      [highest, byRow(values, (row) => [Math.max(...row)])],
    ];
  },
  mask: (device) => {
    const words = Math.ceil(COLUMNS / 32);
    const bits = Uint32Array.from({ length: ROWS * words }, (_, i) => 0x9e37_79b1 * (i + 1));
    const isSet = (row: number, i: number) => (bits[row * words + (i >> 5)]! >>> (i & 31)) & 1;
    const expected = values.map((x, i) =>
      isSet(Math.floor(i / COLUMNS), i % COLUMNS) ? x : -Infinity,
    );
    return [[device.mask(matrix(), bits), expected]];
  },
  order: (device) => [
    [device.after(array(Int32Array.of(3, -4, 5)), array([Number.NaN, 1])), [3, -4, 5]],
  ],
  staging: (device) => [
    [device.stage(Int32Array.of(3, -4, 5, 6), [2, 2]), [3, -4, 5, 6]],
    [device.spread(Int32Array.of(3, -4, 5)), [3, -4, 5]],
    [device.fetch(multiply(matrix(), 2)), values.map((x) => 2 * x)],
    // Fetches a view that is not contiguous.
    [device.fetch(slice(matrix(), 1, 0, 2)), byRow(values, (row) => row.slice(0, 2))],
  ],
  tracing: (device) => {
    // Calls the function three times, because a device that records steps has recorded it before the third call.
    const build = ([x]: MlxArray[]) => [add(multiply(x!, 2), 1)];
    const traced = device.trace(build, () => [zeros([ROWS, COLUMNS])]);
    const found = [1, 2, 3].map((factor) => {
      const x = multiply(matrix(), factor);
      evaluate(x);
      return numbersOf(traced.call(x)[0]!);
    });
    traced.free();
    return found.map(
      (numbers, i) => [array(numbers), values.map((x) => 2 * (i + 1) * x + 1), 1e-4] as const,
    );
  },
};

export function deviceOperationChecks(): DeviceCheck[] {
  return Object.entries(operations).map(([name, make]) => checkOf("device", name, make));
}
