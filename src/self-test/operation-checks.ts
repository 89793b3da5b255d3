// Checks MLX operations against plain arithmetic. test/self-test ensures that each one mlx-serve uses has a check.
import { array, type MlxArray, type Operand } from "../mlx/array.ts";
import * as fast from "../mlx/fast.ts";
import * as ops from "../mlx/ops.ts";
import { key, normal } from "../mlx/random.ts";
import { compared, type DeviceCheck, type Finding, noise, numbersOf } from "./check.ts";
import {
  byRow,
  COLUMNS,
  checkOf,
  logSumExp,
  type Made,
  matrix,
  others,
  positives,
  ROWS,
  softmax,
  total,
  transposed,
  values,
} from "./operation-inputs.ts";
import { attended, normed, prepared } from "./plain-attention.ts";
import { product, rowsOf, sigmoid } from "./plain-products.ts";

const unary: Record<string, [(x: MlxArray) => MlxArray, (x: number) => number, number[]?]> = {
  exp: [ops.exp, Math.exp],
  expm1: [ops.expm1, Math.expm1],
  log: [ops.log, Math.log, positives],
  negative: [ops.negative, (x) => -x],
  sigmoid: [ops.sigmoid, sigmoid],
  tanh: [ops.tanh, Math.tanh],
};

const binary: Record<
  string,
  [(a: MlxArray, b: Operand) => MlxArray, (a: number, b: number) => number]
> = {
  add: [ops.add, (a, b) => a + b],
  divide: [ops.divide, (a, b) => a / b],
  floorDivide: [ops.floorDivide, (a, b) => Math.floor(a / b)],
  greater: [ops.greater, (a, b) => Number(a > b)],
  greaterEqual: [ops.greaterEqual, (a, b) => Number(a >= b)],
  less: [ops.less, (a, b) => Number(a < b)],
  lessEqual: [ops.lessEqual, (a, b) => Number(a <= b)],
  logAddExp: [ops.logAddExp, (a, b) => Math.log(Math.exp(a) + Math.exp(b))],
  logicalAnd: [ops.logicalAnd, (a, b) => Number(a !== 0 && b !== 0)],
  maximum: [ops.maximum, Math.max],
  minimum: [ops.minimum, Math.min],
  multiply: [ops.multiply, (a, b) => a * b],
  subtract: [ops.subtract, (a, b) => a - b],
};

/** Column indices, one per element. */
const indices = Int32Array.from(values, (_, i) => (i * 31) % COLUMNS);

const rest: Record<string, () => Made[]> = {
  arange: () => [[ops.arange(3, 8), [3, 4, 5, 6, 7]]],
  zeros: () => [[ops.zeros([2, 3]), Array(6).fill(0)]],
  erf: () => [[ops.erf(array([-0.5, 0, 1])), [-0.520_499_88, 0, 0.842_700_79]]],
  erfinv: () => [[ops.erfinv(array([-0.9, 0, 0.5])), [-1.163_087_15, 0, 0.476_936_28]]],
  round: () => [[ops.round(array([-1.5, 0.5, 1.4, 2.5])), [-2, 0, 1, 2]]],
  power: () => [[ops.power(matrix(positives), 3), positives.map((x) => x ** 3), 1e-4]],
  where: () => [
    [
      ops.where(ops.less(matrix(), 0), matrix(others), 7),
      values.map((x, i) => (x < 0 ? others[i]! : 7)),
    ],
  ],
  clip: () => [[ops.clip(matrix(), -1, 2), values.map((x) => Math.min(2, Math.max(-1, x)))]],
  logSumExp: () => [[ops.logSumExp(matrix(), -1), byRow(values, (row) => [logSumExp(row)])]],
  max: () => [[ops.max(matrix(), -1), byRow(values, (row) => [Math.max(...row)])]],
  sum: () => [
    [ops.sum(matrix(), -1), byRow(values, (row) => [total(row)]), 1e-4],
    [ops.sum(matrix(), 0), rowsOf(transposed(values, COLUMNS), ROWS).map(total), 1e-4],
  ],
  softmax: () => [[ops.softmax(matrix()), byRow(values, softmax)]],
  argmax: () => [[ops.argmax(matrix()), byRow(values, (row) => [row.indexOf(Math.max(...row))])]],
  cumsum: () => [
    [
      ops.cumsum(matrix()),
      byRow(values, (row) => row.map((_, i) => total(row.slice(0, i + 1)))),
      1e-4,
    ],
  ],
  argsort: () => [
    [
      ops.argsort(matrix()),
      byRow(values, (row) => [...row.keys()].sort((a, b) => row[a]! - row[b]!)),
    ],
  ],
  argpartition: () => {
    const found = ops.slice(ops.argpartition(matrix(), -5), -1, -5);
    const best = byRow(values, (row) => row.toSorted((a, b) => a - b).slice(-5));
    const taken = ops.takeAlongAxis(matrix(), found);
    const order = ops.argsort(taken);
    return [[ops.takeAlongAxis(taken, order), best]];
  },
  astype: () => [
    [ops.astype(ops.astype(matrix(), "bfloat16"), "float32"), values, 3 * 2 ** -8],
    [ops.astype(array([1.9, -1.9]), "int32"), [1, -1]],
  ],
  reshape: () => [[ops.reshape(matrix(), [COLUMNS, ROWS]), values]],
  contiguous: () => [[ops.contiguous(ops.swapAxes(matrix(), 0, 1)), transposed(values, COLUMNS)]],
  flatten: () => [[ops.flatten(matrix()), values]],
  swapAxes: () => [[ops.swapAxes(matrix(), 0, 1), transposed(values, COLUMNS)]],
  expandDims: () => [[ops.expandDims(matrix(), 1), values]],
  squeeze: () => [[ops.squeeze(ops.expandDims(matrix(), 1), 1), values]],
  concatenate: () => [[ops.concatenate([matrix(), matrix(others)]), [...values, ...others]]],
  split: () => {
    const [left, right] = ops.split(matrix(), 2) as [MlxArray, MlxArray];
    return [
      [left, byRow(values, (row) => row.slice(0, COLUMNS / 2))],
      [right, byRow(values, (row) => row.slice(COLUMNS / 2))],
    ];
  },
  slice: () => [[ops.slice(matrix(), 1, 3, -4), byRow(values, (row) => row.slice(3, -4))]],
  take: () => [
    [
      ops.take(matrix(), array(Int32Array.of(5, 0, 5))),
      [5, 0, 5].flatMap((row) => rowsOf(values, COLUMNS)[row]!),
    ],
  ],
  takeAlongAxis: () => [
    [
      ops.takeAlongAxis(matrix(), array(indices, [ROWS, COLUMNS])),
      values.map((_, i) => values[Math.floor(i / COLUMNS) * COLUMNS + indices[i]!]!),
    ],
  ],
  putAlongAxis: () => [
    [
      ops.putAlongAxis(matrix(), array(new Int32Array(ROWS).fill(4), [ROWS, 1]), 9),
      values.map((x, i) => (i % COLUMNS === 4 ? 9 : x)),
    ],
  ],
  scatterAddAxis: () => [
    [
      ops.scatterAddAxis(
        matrix(),
        array(new Int32Array(ROWS * 2).fill(4), [ROWS, 2]),
        array(Array(ROWS * 2).fill(1.5), [ROWS, 2]),
      ),
      values.map((x, i) => (i % COLUMNS === 4 ? x + 3 : x)),
    ],
  ],
  matmul: () => [
    [
      ops.matmul(matrix(), ops.swapAxes(matrix(others), 0, 1)),
      product(values, others, COLUMNS),
      1e-4,
    ],
  ],
  addmm: () => {
    const bias = others.slice(0, ROWS);
    return [
      [
        ops.addmm(array(bias), matrix(), ops.swapAxes(matrix(others), 0, 1)),
        product(values, others, COLUMNS).map((x, i) => x + bias[i % ROWS]!),
        1e-4,
      ],
    ];
  },
  gatherMm: () => {
    // Multiplies 37 vectors of 70 features, each by one of two matrices (70, 4).
    const weights = [...noise("gathered", 2 * COLUMNS * 4)];
    const rhs = Uint32Array.from({ length: ROWS }, (_, i) => i % 2);
    const found = ops.gatherMm(ops.expandDims(matrix(), 1), array(weights, [2, COLUMNS, 4]), {
      rhs: array(rhs),
    });
    const own = rowsOf(weights, COLUMNS * 4).map((each) => transposed(each, 4));
    return [
      [
        found,
        rowsOf(values, COLUMNS).flatMap((row, i) => product(row, own[i % 2]!, COLUMNS)),
        1e-4,
      ],
    ];
  },
  // Allows for the rounding error of quantizing. Products with quantized matrices have checks of their own.
  quantize: () => [
    [
      ops.dequantize(ops.quantize(array(noise("quantized", 256), [2, 128]), { bits: 8 }), {
        bits: 8,
      }),
      [...noise("quantized", 256)],
      0.005,
    ],
  ],
  quantizedMatmul: () => {
    const x = array(noise("x", 128), [1, 128]);
    const packed = ops.quantize(array(noise("quantized", 64 * 128), [64, 128]), { bits: 4 });
    const dense = numbersOf(ops.dequantize(packed, { bits: 4 }));
    return [[ops.quantizedMatmul(x, packed, { bits: 4 }), product(x.numbers(), dense, 128), 1e-4]];
  },
  gatherQmm: () => {
    const x = array(noise("x", 2 * 128), [2, 1, 128]);
    const packed = ops.quantize(array(noise("quantized", 3 * 64 * 128), [3, 64, 128]), { bits: 4 });
    const dense = rowsOf(numbersOf(ops.dequantize(packed, { bits: 4 })), 64 * 128);
    const [first, second] = rowsOf(x.numbers(), 128) as [number[], number[]];
    const found = ops.gatherQmm(x, packed, { rhs: array(Uint32Array.of(2, 0)) }, { bits: 4 });
    return [[found, [...product(first, dense[2]!, 128), ...product(second, dense[0]!, 128)], 1e-4]];
  },
  rmsNorm: () => {
    const weight = others.slice(0, COLUMNS);
    return [
      [
        fast.rmsNorm(matrix(), array(weight), 1e-5),
        byRow(values, (row) => normed(row, weight, 1e-5)),
      ],
    ];
  },
  layerNorm: () => [
    [
      fast.layerNorm(matrix(), undefined, undefined, 0),
      byRow(values, (row) => {
        const mean = total(row) / COLUMNS;
        const deviation = Math.sqrt(total(row.map((x) => (x - mean) ** 2)) / COLUMNS);
        return row.map((x) => (x - mean) / deviation);
      }),
    ],
  ],
  rope: () => {
    const wavelengths = [1, 2, 5, 10];
    const head = others.slice(0, 12);
    const rope = { dims: 8, wavelengths, magnitude: 1 };
    const found = fast.rope(
      array(head, [1, 1, 1, 12]),
      8,
      array(wavelengths),
      array(Int32Array.of(3)),
    );
    return [[found, prepared(head, undefined, { position: 3 }, { rope })]];
  },
  attention: () => {
    const [length, dims] = [9, 16];
    const part = (name: string) => [...noise(name, length * dims)];
    const [queries, keys, found] = [part("queries"), part("keys"), part("found")];
    const shape = [1, 1, length, dims];
    const [seen, kept] = [rowsOf(keys, dims), rowsOf(found, dims)];
    const expected = rowsOf(queries, dims).flatMap((query, i) =>
      attended(query, seen.slice(0, i + 1), kept.slice(0, i + 1), 0.5, { scale: 0.3 }),
    );
    const options = { scale: 0.3, mask: "causal" as const, sinks: array([0.5]) };
    return [
      [
        fast.attention(array(queries, shape), array(keys, shape), array(found, shape), options),
        expected,
      ],
    ];
  },
};

export function operationChecks(): DeviceCheck[] {
  return [
    ...Object.entries(unary).map(([name, [apply, plain, from = values]]) =>
      checkOf("operation", name, () => [[apply(matrix(from)), from.map(plain), 1e-4]]),
    ),
    ...Object.entries(binary).map(([name, [apply, plain]]) =>
      checkOf("operation", name, () => [
        [
          apply(matrix(), matrix(others)),
          values.map((x, i) => plain(x, others[i]!)),
          relative(plain),
        ],
        [apply(matrix(), 2), values.map((x) => plain(x, 2))],
      ]),
    ),
    ...Object.entries(rest).map(([name, make]) => checkOf("operation", name, make)),
    { name: "operation: random numbers", run: checkNormal },
  ];
}

/** Returns a tolerance relative to the largest result, because quotients of small numbers are large. */
function relative(plain: (a: number, b: number) => number): number {
  const largest = values.reduce((most, x, i) => Math.max(most, Math.abs(plain(x, others[i]!))), 1);
  return 1e-6 * largest;
}

/** Checks the mean and the standard deviation of random numbers. */
function checkNormal(): Finding[] {
  const numbers = normal(key(7), [100_000]).numbers();
  const mean = total(numbers) / numbers.length;
  const deviation = Math.sqrt(total(numbers.map((x) => (x - mean) ** 2)) / numbers.length);
  return [compared("mean and deviation", [mean, deviation], [0, 1], 0.02)];
}
