// Every operation against values computed without MLX: by hand, or by the plain TypeScript in this
// file. An operation without a test here fails the suite.
import { describe, expect, test } from "bun:test";
import { array, type MlxArray, type Operand } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import * as ops from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

type Op = keyof typeof ops;
type Named<F> = { [K in Op]: (typeof ops)[K] extends F ? K : never }[Op];
type Unary = Named<(x: MlxArray) => MlxArray>;
type Binary = Named<(a: MlxArray, b: Operand) => MlxArray>;
type Reduction = "logSumExp" | "max" | "sum";

const byName = { ...ops };
const tested = new Set<string>();

/** A test of this operation, in a scope of its own. */
function check(op: Op, says: string, body: () => void): void {
  tested.add(op);
  test(`${op} ${says}`, () => {
    using _ = new Scope();
    body();
  });
}

type Expected = { shape?: readonly number[]; dtype?: Dtype; within?: number };

/** That the array has these elements in row order, this shape (without one, a list) and type. */
function holds(found: MlxArray, values: readonly number[], expected: Expected = {}): void {
  const { shape = [values.length], dtype = "float32", within = 0 } = expected;
  const numbers = found.numbers().map((value) => value + 0); // -0 is 0 here
  expect({ shape: found.shape, dtype: found.dtype }).toEqual({ shape, dtype });
  if (within === 0) expect(numbers).toEqual(values.map((value) => value + 0));
  expect(numbers.length).toBe(values.length);
  for (const [i, value] of values.entries()) {
    const error = Math.abs(numbers[i]! - value) / Math.max(1, Math.abs(value));
    if (!(error <= within)) expect(`element ${i}: ${numbers[i]}`).toBe(`element ${i}: ${value}`);
  }
}

const int = (values: readonly number[], shape?: readonly number[]) => array(values, shape, "int32");
const bool = (values: readonly number[], shape?: readonly number[]) => array(values, shape, "bool");
const half = (values: readonly number[], shape?: readonly number[]) =>
  array(values, shape, "bfloat16");

/** Numbers from -1 to 1 that look random and are the same every time. */
function noise(count: number, seed = 1): number[] {
  let state = seed;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.fround(state / 2 ** 31 - 1);
  });
}

/** (rows, inner) @ (inner, columns) */
function product(
  a: readonly number[],
  b: readonly number[],
  rows: number,
  inner: number,
): number[] {
  const columns = b.length / inner;
  return Array.from({ length: rows * columns }, (_, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    let total = 0;
    for (let i = 0; i < inner; i++) total += a[row * inner + i]! * b[i * columns + column]!;
    return total;
  });
}

function transposed(x: readonly number[], rows: number): number[] {
  const columns = x.length / rows;
  return x.map((_, at) => x[(at % rows) * columns + Math.floor(at / rows)]!);
}

test("every operation has a test", () => {
  expect(Object.keys(ops).filter((name) => !tested.has(name))).toEqual([]);
});

describe("making arrays", () => {
  check("zeros", "is all 0, of any type and shape", () => {
    holds(ops.zeros([2, 3]), [0, 0, 0, 0, 0, 0], { shape: [2, 3] });
    holds(ops.zeros([2], "bool"), [0, 0], { dtype: "bool" });
    holds(ops.zeros([]), [0], { shape: [] });
    holds(ops.zeros([3, 0]), [], { shape: [3, 0] });
  });

  check("arange", "counts by the step and stops before the end", () => {
    holds(ops.arange(0, 4), [0, 1, 2, 3], { dtype: "int32" });
    holds(ops.arange(3, 9, 2), [3, 5, 7], { dtype: "int32" });
    holds(ops.arange(3, 0, -1), [3, 2, 1], { dtype: "int32" });
    holds(ops.arange(0, 1, 0.25, "float32"), [0, 0.25, 0.5, 0.75]);
    holds(ops.arange(2, 2), [], { dtype: "int32" });
  });
});

describe("one array, element by element", () => {
  const inputs = [-2.5, -1, -0.25, 0.125, 0.5, 1, 2.75];
  const table: [Unary, (x: number) => number, "int32" | "float32"][] = [
    ["exp", Math.exp, "float32"],
    ["negative", (x) => -x, "int32"],
    ["sigmoid", (x) => 1 / (1 + Math.exp(-x)), "float32"],
    ["tanh", Math.tanh, "float32"],
  ];

  for (const [name, reference, ofInteger] of table) {
    check(name, "agrees with the reference", () => {
      const count = inputs.length;
      holds(byName[name](array(inputs)), inputs.map(reference), { within: 1e-6 });
      // A shape and strides of its own make no difference.
      const rows = ops.swapAxes(array([...inputs, ...inputs], [2, count]), 0, 1);
      const pairs = inputs.flatMap((x) => [reference(x), reference(x)]);
      holds(byName[name](rows), pairs, { shape: [count, 2], within: 1e-6 });
    });

    check(name, `keeps 16 bits, and makes int32 ${ofInteger}`, () => {
      // These inputs are exact in bfloat16; its results carry 8 bits.
      const expected = inputs.map(reference);
      holds(byName[name](half(inputs)), expected, { dtype: "bfloat16", within: 2 ** -8 });
      holds(byName[name](int([1, 4])), [1, 4].map(reference), { dtype: ofInteger, within: 1e-6 });
    });
  }
});

describe("functions of part of the numbers", () => {
  check("log", "is the natural logarithm, and NaN below 0", () => {
    const inputs = [0.125, 0.5, 1, 2.75, -1];
    holds(ops.log(array(inputs)), inputs.map(Math.log), { within: 1e-6 });
    holds(ops.log(half([0.5, 4])), [Math.log(0.5), Math.log(4)], {
      dtype: "bfloat16",
      within: 2 ** -7,
    });
  });

  check("erf", "is the error function", () => {
    holds(ops.erf(array([-0.5, 0, 1])), [-0.520_499_88, 0, 0.842_700_79], { within: 1e-6 });
  });

  check("round", "takes the nearest integer, the even one of two", () => {
    holds(ops.round(array([-1.5, 0.5, 1.4, 2.5])), [-2, 0, 1, 2]);
  });

  check("expm1", "is exact near 0", () => {
    holds(ops.expm1(array([-1])), [Math.expm1(-1)], { within: 1e-6 });
    holds(ops.expm1(array([0, 1e-6])), [0, 1e-6 + 5e-13], { within: 1e-12 });
  });

  check("erfinv", "is the inverse of the error function", () => {
    const expected = [-1.163087154, 0, 0.476936276, 1.163087154];
    holds(ops.erfinv(array([-0.9, 0, 0.5, 0.9])), expected, { within: 1e-5 });
  });
});

describe("two arrays, element by element", () => {
  type Reference = (a: number, b: number) => number;
  const is = (truth: boolean) => (truth ? 1 : 0);
  const [a, b] = [
    [-7, 7, -2.5, 0.5, 3, 0],
    [2, -2, 1, 4, 3, 5],
  ];
  const floats: [Binary, Reference][] = [
    ["add", (x, y) => x + y],
    ["divide", (x, y) => x / y],
    ["floorDivide", (x, y) => Math.floor(x / y)],
    ["logAddExp", (x, y) => Math.log(Math.exp(x) + Math.exp(y))],
    ["maximum", Math.max],
    ["minimum", Math.min],
    ["multiply", (x, y) => x * y],
    // The sign is the divisor's, as in Python.
    ["subtract", (x, y) => x - y],
  ];
  const truths: [Binary, Reference][] = [
    ["greater", (x, y) => is(x > y)],
    ["greaterEqual", (x, y) => is(x >= y)],
    ["less", (x, y) => is(x < y)],
    ["lessEqual", (x, y) => is(x <= y)],
    ["logicalAnd", (x, y) => is(x !== 0 && y !== 0)],
  ];

  const pairs = (reference: Reference) => a!.map((x, i) => reference(x, b![i]!));
  /** Each of `a` with 3, the number beside it. */
  const with3 = (reference: Reference) => a!.map((x) => reference(x, 3));

  for (const [name, reference] of floats) {
    check(name, "agrees with the reference", () => {
      const within = 1e-6;
      holds(byName[name](array(a!), array(b!)), pairs(reference), { within });
      holds(byName[name](array(a!), 3), with3(reference), { within });
      const expected = { dtype: "bfloat16", within: 2 ** -7 } as const;
      holds(byName[name](half(a!), 3), with3(reference), expected);
    });
  }

  for (const [name, reference] of truths) {
    check(name, "agrees with the reference, as bool", () => {
      holds(byName[name](array(a!), array(b!)), pairs(reference), { dtype: "bool" });
      holds(byName[name](array(a!), 3), with3(reference), { dtype: "bool" });
      holds(
        byName[name](array(a!), 0),
        a!.map((x) => reference(x, 0)),
        { dtype: "bool" },
      );
    });
  }

  // C's integers: the same bits as JavaScript's 32-bit operators.
  const integers: [Binary, Reference][] = [
    ["add", (x, y) => (x + y) | 0],
    ["multiply", Math.imul],
    ["subtract", (x, y) => (x - y) | 0],
  ];

  for (const [name, reference] of integers) {
    check(name, "of int32 is int32", () => {
      const [x, y] = [
        [5, -8, 2147483647, -2147483648, 0],
        [1, 3, 2, 7, 4],
      ];
      const expected = x!.map((value, i) => reference(value, y![i]!));
      holds(byName[name](int(x!), int(y!)), expected, { dtype: "int32" });
      const with2 = x!.map((value) => reference(value, 2));
      holds(byName[name](int(x!), 2), with2, { dtype: "int32" });
    });
  }

  check("power", "agrees with Math.pow", () => {
    const [bases, powers] = [
      [0.5, 2, 3, -2, 9],
      [2, -1, 0.5, 3, 0],
    ];
    const expected = bases!.map((base, i) => base ** powers![i]!);
    holds(ops.power(array(bases!), array(powers!)), expected, { within: 1e-6 });
    holds(ops.power(array([1, 2, 3]), 2), [1, 4, 9], { within: 1e-6 });
    holds(ops.power(int([2, 3, -2]), int([10, 2, 3])), [1024, 9, -8], { dtype: "int32" });
  });

  check("divide", "of integers is a fraction", () => {
    holds(ops.divide(int([1, -3]), int([2, 2])), [0.5, -1.5]);
    holds(ops.divide(array([1, -1, 0]), 0), [Infinity, -Infinity, NaN]);
  });

  check("floorDivide", "of integers is an integer", () => {
    holds(ops.floorDivide(int([7, 8, 1]), 2), [3, 4, 0], { dtype: "int32" });
  });

  check("maximum", "gives NaN where one is", () => {
    holds(ops.maximum(array([NaN, 1]), array([1, NaN])), [NaN, NaN]);
    holds(ops.minimum(array([NaN, 1]), array([1, NaN])), [NaN, NaN]);
  });

  check("add", "broadcasts", () => {
    const x = array([1, 2, 3, 4, 5, 6], [2, 3]);
    const shape = [2, 3];
    holds(ops.add(x, array([10, 20, 30])), [11, 22, 33, 14, 25, 36], { shape });
    holds(ops.add(x, array([10, 20], [2, 1])), [11, 12, 13, 24, 25, 26], { shape });
    const [column, row] = [array([1, 2], [2, 1]), array([10, 20, 30], [1, 3])];
    holds(ops.subtract(column, row), [-9, -19, -29, -8, -18, -28], { shape });
  });

  check("add", "takes a number as Python does", () => {
    const types: [Dtype, number, Dtype][] = [
      ["bfloat16", 1, "bfloat16"],
      ["bfloat16", 0.5, "bfloat16"],
      ["float16", 0.5, "float16"],
      ["uint8", 1, "uint8"],
      ["int64", 1, "int64"],
      ["int32", 1, "int32"],
      ["int32", 0.5, "float32"],
      ["bool", 1, "int32"],
      ["bool", 0.5, "float32"],
    ];
    for (const [dtype, value, result] of types)
      holds(ops.add(array([1], [1], dtype), value), [1 + value], { dtype: result });
  });

  check("add", "promotes two types to one that holds both", () => {
    const types: [Dtype, Dtype, Dtype][] = [
      ["int32", "float32", "float32"],
      ["bfloat16", "float32", "float32"],
      ["bfloat16", "float16", "float32"],
      ["bfloat16", "int32", "bfloat16"],
      ["uint8", "int8", "int16"],
      ["bool", "uint8", "uint8"],
    ];
    for (const [left, right, dtype] of types)
      holds(ops.add(array([1], [1], left), array([2], [1], right)), [3], { dtype });
  });

  check("where", "takes the first where the condition holds", () => {
    const condition = bool([1, 0, 1]);
    const x = array([1, 2, 3]);
    holds(ops.where(condition, x, array([-1, -2, -3])), [1, -2, 3]);
    holds(ops.where(condition, x, 9), [1, 9, 3]);
    const [column, row] = [bool([1, 0], [2, 1]), array([7], [1])];
    holds(ops.where(column, x, row), [1, 2, 3, 7, 7, 7], { shape: [2, 3] });
    const expected = [1, -Infinity, 3];
    holds(ops.where(condition, half([1, 2, 3]), -Infinity), expected, { dtype: "bfloat16" });
  });

  check("clip", "bounds from both sides", () => {
    const x = array([-2, -0.5, 0.5, 2]);
    holds(ops.clip(x, -1, 1), [-1, -0.5, 0.5, 1]);
    holds(ops.clip(int([1, 5]), 2, 3), [2, 3], { dtype: "int32" });
  });
});

describe("reductions, scans and order", () => {
  // (2, 3): the total, over axis 0, over axis 1.
  const matrix = [1, 5, 2, 4, 3, 6];
  const lse = (...values: number[]) => Math.log(values.reduce((n, x) => n + Math.exp(x), 0));
  type Reduced = [Reduction, MlxValues, number, number[], number[], Dtype];
  type MlxValues = [readonly number[], Dtype];
  const table: Reduced[] = [
    ["max", [matrix, "float32"], 6, [4, 5, 6], [5, 6], "float32"],
    ["max", [matrix, "int32"], 6, [4, 5, 6], [5, 6], "int32"],
    ["sum", [matrix, "float32"], 21, [5, 8, 8], [8, 13], "float32"],
    ["sum", [matrix, "bfloat16"], 21, [5, 8, 8], [8, 13], "bfloat16"],
    ["sum", [matrix, "int32"], 21, [5, 8, 8], [8, 13], "int32"],
    ["sum", [[1, 0, 1, 1, 1, 1], "bool"], 5, [2, 1, 2], [2, 3], "int32"],
    [
      "logSumExp",
      [matrix, "float32"],
      lse(...matrix),
      [lse(1, 4), lse(5, 3), lse(2, 6)],
      [lse(1, 5, 2), lse(4, 3, 6)],
      "float32",
    ],
  ];

  for (const [name, [values, from], total, rows, columns, dtype] of table) {
    check(name, `of ${from} goes over one axis, several or all`, () => {
      const x = array(values, [2, 3], from);
      const within = 1e-6;
      holds(byName[name](x), [total], { shape: [], dtype, within });
      holds(byName[name](x, undefined, true), [total], { shape: [1, 1], dtype, within });
      holds(byName[name](x, [0, 1]), [total], { shape: [], dtype, within });
      holds(byName[name](x, [-1, 0], true), [total], { shape: [1, 1], dtype, within });
      for (const axis of [0, -2, [0]]) holds(byName[name](x, axis), rows, { dtype, within });
      for (const axis of [1, -1, [-1]]) holds(byName[name](x, axis), columns, { dtype, within });
      holds(byName[name](x, 0, true), rows, { shape: [1, 3], dtype, within });
      holds(byName[name](x, -1, true), columns, { shape: [2, 1], dtype, within });
      // The same through strides.
      holds(byName[name](ops.swapAxes(x, 0, 1), 0), columns, { dtype, within });
    });
  }

  check("sum", "goes over the outer axes and leaves the middle", () => {
    // Element (i, j, k) is 6i + 2j + k.
    const x = array(
      Array.from({ length: 12 }, (_, i) => i),
      [2, 3, 2],
    );
    holds(ops.sum(x, [0, 2]), [14, 22, 30]);
    holds(ops.sum(x, [0, -1], true), [14, 22, 30], { shape: [1, 3, 1] });
    holds(ops.max(x, [0, 1]), [10, 11]);
    holds(ops.sum(array([])), [0], { shape: [] });
  });

  check("logSumExp", "does not overflow", () => {
    holds(ops.logSumExp(array([1000, 1000])), [1000 + Math.LN2], { shape: [], within: 1e-6 });
    holds(ops.logSumExp(array([-Infinity, 3])), [3], { shape: [], within: 1e-6 });
  });

  /** Each row of `width` numbers. */
  const softmax = (values: readonly number[], width = values.length) =>
    values.map((x, i) => {
      const row = values.slice(i - (i % width), i - (i % width) + width);
      const most = Math.max(...row);
      return Math.exp(x - most) / row.reduce((n, y) => n + Math.exp(y - most), 0);
    });

  check("softmax", "sums to 1 along the axis", () => {
    const x = array(matrix, [2, 3]);
    const rows = softmax(matrix, 3);
    for (const found of [ops.softmax(x), ops.softmax(x, 1)])
      holds(found, rows, { shape: [2, 3], within: 1e-6 });
    const columns = transposed(softmax(transposed(matrix, 2), 2), 3);
    holds(ops.softmax(x, 0), columns, { shape: [2, 3], within: 1e-6 });
    holds(ops.softmax(array([1000, 1001])), softmax([0, 1]), { within: 1e-6 });
    holds(ops.softmax(array([-Infinity, 0, 0])), [0, 0.5, 0.5], { within: 1e-6 });
  });

  check("softmax", "adds up 16-bit numbers in 32 bits", () => {
    // In bfloat16 a sum of ones stops growing at 256.
    const flat = ops.softmax(ops.zeros([4096], "bfloat16"));
    holds(flat, Array(4096).fill(2 ** -12), { dtype: "bfloat16" });
    const logits = noise(512).map((x) => Math.fround(x * 8));
    const rounded = half(logits).numbers();
    const found = ops.softmax(half(logits));
    expect(found.dtype).toBe("bfloat16");
    const expected = softmax(rounded);
    for (const [i, p] of found.numbers().entries())
      expect(Math.abs(p - expected[i]!) / expected[i]!).toBeLessThan(2 ** -8 + 1e-5);
  });

  check("argmax", "is the index of the largest, the first of equals", () => {
    const x = array(matrix, [2, 3]);
    const dtype = "uint32";
    holds(ops.argmax(x), [1, 2], { dtype });
    holds(ops.argmax(x, 0), [1, 0, 1], { dtype });
    holds(ops.argmax(array([1, 3, 3, 2])), [1], { shape: [], dtype });
  });

  check("cumsum", "runs along the axis", () => {
    const x = array(matrix, [2, 3]);
    const shape = [2, 3];
    holds(ops.cumsum(x), [1, 6, 8, 4, 7, 13], { shape });
    holds(ops.cumsum(x, 0), [1, 5, 2, 5, 8, 8], { shape });
    holds(ops.cumsum(x, -2), [1, 5, 2, 5, 8, 8], { shape });
    holds(ops.cumsum(int([1, 2, 3])), [1, 3, 6], { dtype: "int32" });
  });

  check("argsort", "gives the indices that sort", () => {
    const x = array(matrix, [2, 3]);
    holds(ops.argsort(x), [0, 2, 1, 1, 0, 2], { shape: [2, 3], dtype: "uint32" });
    holds(ops.argsort(x, 0), [0, 1, 0, 1, 0, 1], { shape: [2, 3], dtype: "uint32" });
  });

  check("argpartition", "puts the kth in its place and the smaller before it", () => {
    const values = noise(50);
    const order = ops.argpartition(array(values), 20);
    expect(order.dtype).toBe("uint32");
    const indices = order.numbers();
    expect(indices.toSorted((p, q) => p - q)).toEqual(values.map((_, i) => i));
    const found = indices.map((i) => values[i]!);
    const pivot = values.toSorted((p, q) => p - q)[20]!;
    expect(found[20]).toBe(pivot);
    expect(Math.max(...found.slice(0, 20))).toBeLessThan(pivot);
    expect(Math.min(...found.slice(21))).toBeGreaterThan(pivot);
    const columns = ops.argpartition(array(matrix, [2, 3]), 0, 0);
    holds(columns, [0, 1, 0, 1, 0, 1], { shape: [2, 3], dtype: "uint32" });
    expect(ops.argpartition(array([3, 1, 2]), -1).numbers()[2]).toBe(0);
    const [, first, , , second] = ops.argpartition(array(matrix, [2, 3]), 1).numbers();
    expect([first, second]).toEqual([2, 0]);
  });
});

describe("type and shape", () => {
  // 0 to 5 as (2, 3), and 0 to 23 as (2, 3, 4), where element (i, j, k) is 12i + 4j + k.
  const six = () => array([0, 1, 2, 3, 4, 5], [2, 3]);
  const cube = () =>
    array(
      Array.from({ length: 24 }, (_, i) => i),
      [2, 3, 4],
    );
  const cubeIn = (order: readonly number[]) => {
    const [dims, steps] = [
      [2, 3, 4],
      [12, 4, 1],
    ];
    const found: number[] = [];
    const [p, q, r] = order.map((axis) => ({ dim: dims![axis]!, step: steps![axis]! }));
    for (let i = 0; i < p!.dim; i++)
      for (let j = 0; j < q!.dim; j++)
        for (let k = 0; k < r!.dim; k++) found.push(i * p!.step + j * q!.step + k * r!.step);
    return found;
  };

  check("astype", "converts the values", () => {
    holds(ops.astype(array([1.9, -1.9, 0]), "int32"), [1, -1, 0], { dtype: "int32" });
    holds(ops.astype(array([0, 0.5, -2]), "bool"), [0, 1, 1], { dtype: "bool" });
    holds(ops.astype(bool([0, 1]), "float32"), [0, 1]);
    const tie = 1 + 3 * 2 ** -8;
    holds(ops.astype(array([tie, 1 + 2 ** -8]), "bfloat16"), [1 + 2 ** -6, 1], {
      dtype: "bfloat16",
    });
    const third = Math.fround(1 / 3);
    holds(ops.astype(array([third]), "float16"), [Math.f16round(third)], { dtype: "float16" });
    holds(ops.astype(int([-1]), "uint32"), [4294967295], { dtype: "uint32" });
  });

  check("reshape", "keeps the row order", () => {
    holds(ops.reshape(six(), [3, 2]), [0, 1, 2, 3, 4, 5], { shape: [3, 2] });
    holds(ops.reshape(six(), [-1, 1]), [0, 1, 2, 3, 4, 5], { shape: [6, 1] });
    holds(ops.reshape(ops.swapAxes(six(), 0, 1), [6]), [0, 3, 1, 4, 2, 5]);
    holds(ops.reshape(array([4]), []), [4], { shape: [] });
  });

  check("contiguous", "keeps the elements, in row order", () => {
    const turned = ops.contiguous(ops.swapAxes(six(), 0, 1));
    holds(turned, [0, 3, 1, 4, 2, 5], { shape: [3, 2] });
    expect([...new Float32Array(turned.memory())]).toEqual([0, 3, 1, 4, 2, 5]);
  });

  check("flatten", "makes one axis of all", () => {
    const all = cubeIn([0, 1, 2]);
    holds(ops.flatten(cube()), all);
    holds(ops.flatten(array(3)), [3]);
  });

  check("swapAxes", "exchanges two axes", () => {
    holds(ops.swapAxes(cube(), 0, 1), cubeIn([1, 0, 2]), { shape: [3, 2, 4] });
    holds(ops.swapAxes(cube(), -1, 0), cubeIn([2, 1, 0]), { shape: [4, 3, 2] });
  });

  check("expandDims", "adds axes of 1", () => {
    const all = [0, 1, 2, 3, 4, 5];
    holds(ops.expandDims(six(), 0), all, { shape: [1, 2, 3] });
    holds(ops.expandDims(six(), -1), all, { shape: [2, 3, 1] });
    holds(ops.expandDims(six(), [0, 2]), all, { shape: [1, 2, 1, 3] });
  });

  check("squeeze", "takes axes of 1 away", () => {
    const x = () => array([7, 8], [1, 2, 1]);
    holds(ops.squeeze(x(), 0), [7, 8], { shape: [2, 1] });
    holds(ops.squeeze(x(), -1), [7, 8], { shape: [1, 2] });
    holds(ops.squeeze(x(), [0, 2]), [7, 8]);
  });

  check("concatenate", "joins along an axis", () => {
    const [x, y] = [array([1, 2], [1, 2]), array([3, 4], [1, 2])];
    holds(ops.concatenate([x, y]), [1, 2, 3, 4], { shape: [2, 2] });
    holds(ops.concatenate([x, y, x], 1), [1, 2, 3, 4, 1, 2], { shape: [1, 6] });
    holds(ops.concatenate([x, y], -1), [1, 2, 3, 4], { shape: [1, 4] });
    holds(ops.concatenate([int([1]), half([2])]), [1, 2], { dtype: "bfloat16" });
  });

  check("split", "makes equal parts, or cuts before the indices", () => {
    const parts = (list: MlxArray[]) => list.map((x) => `${x.shape}: ${x.numbers()}`);
    expect(parts(ops.split(six(), 3))).toEqual(["2,1: 0,3", "2,1: 1,4", "2,1: 2,5"]);
    expect(parts(ops.split(six(), 2, 0))).toEqual(["1,3: 0,1,2", "1,3: 3,4,5"]);
    expect(parts(ops.split(six(), [1], -1))).toEqual(["2,1: 0,3", "2,2: 1,2,4,5"]);
    expect(parts(ops.split(array([0, 1, 2, 3, 4]), [2, 3]))).toEqual(["2: 0,1", "1: 2", "2: 3,4"]);
  });

  check("slice", "counts from either end", () => {
    const x = array([0, 1, 2, 3, 4, 5, 6]);
    const js = [0, 1, 2, 3, 4, 5, 6];
    for (const start of [0, 2, -3, 7]) {
      holds(ops.slice(x, 0, start), js.slice(start));
      for (const stop of [0, 4, -1, 7, 99])
        holds(ops.slice(x, 0, start, stop), js.slice(start, stop));
    }
    holds(ops.slice(six(), 0, 1), [3, 4, 5], { shape: [1, 3] });
    holds(ops.slice(six(), -1, 1), [1, 2, 4, 5], { shape: [2, 2] });
    holds(ops.slice(six(), -2, 0, 1), [0, 1, 2], { shape: [1, 3] });
    holds(ops.slice(cube(), 1, -1), [8, 9, 10, 11, 20, 21, 22, 23], { shape: [2, 1, 4] });
  });
});

describe("indexing", () => {
  const table = () => array([0, 1, 10, 11, 20, 21], [3, 2]);

  check("take", "gathers slices along the axis", () => {
    holds(ops.take(table(), int([2, 0])), [20, 21, 0, 1], { shape: [2, 2] });
    holds(ops.take(table(), int([1]), 1), [1, 11, 21], { shape: [3, 1] });
    holds(ops.take(table(), int([1, 1], [2, 1]), -1), [1, 1, 11, 11, 21, 21], { shape: [3, 2, 1] });
    holds(ops.take(table(), array(1, [], "uint32")), [10, 11]);
    holds(ops.take(table(), int([-1])), [20, 21], { shape: [1, 2] });
  });

  check("takeAlongAxis", "gathers within each row or column", () => {
    holds(ops.takeAlongAxis(table(), int([1, 0, 1], [3, 1])), [1, 10, 21], { shape: [3, 1] });
    const columns = ops.takeAlongAxis(table(), int([2, 0], [1, 2]), 0);
    holds(columns, [20, 1], { shape: [1, 2] });
    const twice = ops.takeAlongAxis(table(), int([0, 0, 1, 1, 1, 0], [3, 2]), 1);
    holds(twice, [0, 0, 11, 11, 21, 20], { shape: [3, 2] });
  });

  check("putAlongAxis", "writes within each row or column", () => {
    const at = () => int([1, 0, 1], [3, 1]);
    const shape = [3, 2];
    holds(ops.putAlongAxis(table(), at(), -1), [0, -1, -1, 11, 20, -1], { shape });
    const values = array([7, 8, 9], [3, 1]);
    holds(ops.putAlongAxis(table(), at(), values, 1), [0, 7, 8, 11, 20, 9], { shape });
    const columns = ops.putAlongAxis(table(), int([2, 0], [1, 2]), array([7, 8], [1, 2]), 0);
    holds(columns, [0, 8, 10, 11, 7, 21], { shape });
  });

  check("scatterAddAxis", "adds up where indices repeat", () => {
    const counts = ops.scatterAddAxis(int([0, 0, 0]), int([2, 0, 2, 2]), int([1, 1, 1, 1]));
    holds(counts, [1, 0, 3], { dtype: "int32" });
    holds(ops.scatterAddAxis(array([1, 1]), int([0]), 5), [6, 1]);
    const square = array([1, 2, 3, 4], [2, 2]);
    const perRow = ops.scatterAddAxis(square, int([1, 0], [2, 1]), 5);
    holds(perRow, [1, 7, 8, 4], { shape: [2, 2] });
    const x = ops.scatterAddAxis(table(), int([1, 1], [1, 2]), array([100, 200], [1, 2]), 0);
    holds(x, [0, 1, 110, 211, 20, 21], { shape: [3, 2] });
  });
});

describe("products", () => {
  const [a, b] = [noise(24, 1), noise(24, 2)];

  check("matmul", "multiplies matrices, batches and vectors", () => {
    const [x, y] = [array([1, 2, 3, 4, 5, 6], [2, 3]), array([7, 8, 9, 10, 11, 12], [3, 2])];
    holds(ops.matmul(x, y), [58, 64, 139, 154], { shape: [2, 2] });
    holds(ops.matmul(array([1, 0, -1]), y), [-4, -4]);
    holds(ops.matmul(x, array([1, 0, -1])), [-2, -2]);
    const right = b.slice(0, 12);
    const batch = ops.matmul(array(a, [2, 3, 4]), array(right, [4, 3]));
    holds(batch, product(a, right, 6, 4), { shape: [2, 3, 3], within: 1e-6 });
    // A transposed operand is a view.
    const byView = ops.matmul(array(a, [6, 4]), ops.swapAxes(array(b, [6, 4]), 0, 1));
    holds(byView, product(a, transposed(b, 6), 6, 4), { shape: [6, 6], within: 1e-6 });
    const halves = ops.matmul(half([1, 2], [1, 2]), half([3, 4], [2, 1]));
    holds(halves, [11], { shape: [1, 1], dtype: "bfloat16" });
  });

  check("addmm", "adds a product to a matrix", () => {
    const [x, y] = [array([1, 2, 3, 4], [2, 2]), array([5, 6, 7, 8], [2, 2])];
    const c = array([1, 1, 2, 2], [2, 2]);
    holds(ops.addmm(c, x, y), [20, 23, 45, 52], { shape: [2, 2] });
    holds(ops.addmm(array([100, 200]), x, y), [119, 222, 143, 250], { shape: [2, 2] });
  });

  check("gatherMm", "multiplies the matrices that the indices name", () => {
    const [rows, experts] = [array(a, [4, 2, 3]), array(b, [2, 3, 4])];
    const left = (i: number) => a.slice(i * 6, i * 6 + 6);
    const right = (i: number) => b.slice(i * 12, i * 12 + 12);
    const pairs = (list: [number, number][]) =>
      list.flatMap(([l, r]) => product(left(l), right(r), 2, 3));
    const perRow = pairs([
      [0, 0],
      [1, 0],
      [2, 1],
      [3, 1],
    ]);
    for (const sorted of [false, true]) {
      const found = ops.gatherMm(rows, experts, { rhs: int([0, 0, 1, 1]), sorted });
      holds(found, perRow, { shape: [4, 2, 4], within: 1e-6 });
    }
  });
});

describe("quantization", () => {
  /** A float of a few bits, from its definition: sign, exponent, fraction, and subnormals. */
  function minifloat(code: number, exponentBits: number, fractionBits: number): number {
    const sign = code >>> (exponentBits + fractionBits) ? -1 : 1;
    const exponent = (code >>> fractionBits) & (2 ** exponentBits - 1);
    const fraction = (code & (2 ** fractionBits - 1)) / 2 ** fractionBits;
    const bias = 2 ** (exponentBits - 1) - 1;
    if (exponent === 0) return sign * fraction * 2 ** (1 - bias);
    return sign * (1 + fraction) * 2 ** (exponent - bias);
  }
  const e2m1 = (code: number) => minifloat(code, 2, 1);
  const e4m3 = (code: number) => ((code & 0x7f) === 0x7f ? NaN : minifloat(code, 4, 3));
  const e8m0 = (code: number) => 2 ** (code - 127);

  type Format = Required<ops.Quantization>;
  const affine: Format[] = [2, 3, 4, 5, 6, 8].flatMap((bits) =>
    [32, 64, 128].map((groupSize) => ({ mode: "affine" as const, groupSize, bits })),
  );
  const floats: Format[] = [
    { mode: "mxfp4", groupSize: 32, bits: 4 },
    { mode: "mxfp8", groupSize: 32, bits: 8 },
    { mode: "nvfp4", groupSize: 16, bits: 4 },
  ];
  const formats = [...affine, ...floats];
  const named = ({ mode, groupSize, bits }: Format) =>
    `${mode}, ${bits} bits, groups of ${groupSize}`;

  /** The codes in a row of words: the low bits first, and across words where need be. */
  function unpack(words: Uint32Array, bits: number): number[] {
    return Array.from({ length: (words.length * 32) / bits }, (_, i) => {
      const [word, shift] = [Math.floor((i * bits) / 32), (i * bits) % 32];
      const low = words[word]! >>> shift;
      const high = shift + bits > 32 ? (words[word + 1]! << (32 - shift)) >>> 0 : 0;
      return (low | high) & (2 ** bits - 1);
    });
  }

  const codesOf = ({ weight }: ops.QuantizedMatrix, bits: number) =>
    unpack(weight.data() as Uint32Array, bits);

  /** The scale of each group, and in affine quantization what is added. */
  function groupsOf(matrix: ops.QuantizedMatrix, { mode }: Format): [number[], number[]] {
    const scales = matrix.scales.numbers();
    if (matrix.biases) return [scales, matrix.biases.numbers()];
    return [scales.map(mode === "nvfp4" ? e4m3 : e8m0), scales.map(() => 0)];
  }

  const elementOf = ({ mode }: Format): ((code: number) => number) =>
    mode === "affine" ? (code) => code : mode === "mxfp8" ? e4m3 : e2m1;

  function decode(matrix: ops.QuantizedMatrix, format: Format): number[] {
    const [scales, biases] = groupsOf(matrix, format);
    const element = elementOf(format);
    return codesOf(matrix, format.bits).map((code, i) => {
      const group = Math.floor(i / format.groupSize);
      return element(code) * scales[group]! + biases[group]!;
    });
  }

  const [rows, columns] = [8, 128];
  // Each group larger than the one before, so that a scale of the wrong group shows.
  const sizeAt = (i: number) => (1 + Math.floor(i / 16)) / 8;
  const weights = noise(rows * columns, 7).map((x, i) => Math.fround(x * sizeAt(i)));

  for (const format of formats) {
    const { mode, groupSize, bits } = format;

    check("quantize", `packs ${named(format)}`, () => {
      const matrix = ops.quantize(array(weights, [rows, columns]), format);
      const groups = [rows, columns / groupSize];
      expect(matrix.weight.shape).toEqual([rows, (columns * bits) / 32]);
      expect(matrix.weight.dtype).toBe("uint32");
      expect(matrix.scales.shape).toEqual(groups);
      expect(matrix.scales.dtype).toBe(mode === "affine" ? "float32" : "uint8");
      expect(matrix.biases?.shape).toEqual(mode === "affine" ? groups : undefined);
      const decoded = decode(matrix, format);
      const [scales] = groupsOf(matrix, format);
      const values = Array.from({ length: 2 ** bits }, (_, code) => elementOf(format)(code));
      for (const [i, value] of weights.entries()) {
        const scale = Math.abs(scales[Math.floor(i / groupSize)]!);
        const error = Math.abs(decoded[i]! - value);
        if (mode === "affine") {
          // One step, not half: MLX moves the scale so that zero has a code, and cuts the far end.
          expect(error).toBeLessThanOrEqual(scale * 1.0001);
        } else {
          const best = Math.min(
            ...values.filter((x) => !Number.isNaN(x)).map((x) => Math.abs(x * scale - value)),
          );
          expect(error).toBeLessThanOrEqual(best * 1.0001 + scale * 1e-6);
        }
      }
      // A scale that is of no use makes every code "nearest": the largest must be near the end.
      if (mode !== "affine") {
        const top = mode === "mxfp8" ? 448 : 6;
        for (const [group, scale] of scales.entries()) {
          const members = weights.slice(group * groupSize, (group + 1) * groupSize);
          const most = Math.max(...members.map(Math.abs));
          expect(most / (top * scale)).toBeGreaterThan(0.49);
          expect(most / (top * scale)).toBeLessThan(2);
        }
      }
    });

    check("dequantize", `reads ${named(format)}`, () => {
      const matrix = ops.quantize(array(weights, [rows, columns]), format);
      const shape = [rows, columns];
      const within = mode === "affine" ? 2e-6 : 0;
      holds(ops.dequantize(matrix, format, "float32"), decode(matrix, format), { shape, within });
    });

    check("quantizedMatmul", `multiplies by ${named(format)}`, () => {
      const matrix = ops.quantize(array(weights, [rows, columns]), format);
      const decoded = decode(matrix, format);
      const x = noise(3 * columns, 3);
      const found = ops.quantizedMatmul(array(x, [3, columns]), matrix, format);
      const expected = product(x, transposed(decoded, rows), 3, columns);
      holds(found, expected, { shape: [3, rows], within: 1e-5 });
    });
  }

  for (const bits of [2, 3, 4, 5, 6, 8]) {
    check("quantize", `loses nothing on the grid of ${bits} bits`, () => {
      const half = 2 ** (bits - 1);
      const codes = Array.from({ length: 256 }, (_, i) =>
        // The least and the largest code in each group.
        i % 128 === 1 ? 2 ** bits - 1 : ((i % 128) * 5) % 2 ** bits,
      );
      const values = codes.map((code) => (code - half) / 4);
      const format = { mode: "affine", groupSize: 128, bits } as const;
      const matrix = ops.quantize(array(values, [1, 256]), format);
      expect(codesOf(matrix, bits)).toEqual(codes);
      holds(matrix.scales, [0.25, 0.25], { shape: [1, 2] });
      holds(matrix.biases!, [-half / 4, -half / 4], { shape: [1, 2] });
      holds(ops.dequantize(matrix, format), values, { shape: [1, 256] });
    });
  }

  check("quantize", "takes the mode's own group size and bits when none are given", () => {
    const x = array(weights, [rows, columns]);
    const defaults: Format[] = [{ mode: "affine", groupSize: 64, bits: 4 }, ...floats];
    for (const format of defaults) {
      const { weight, scales } = ops.quantize(x, { mode: format.mode });
      const explicit = ops.quantize(x, format);
      expect(weight.data()).toEqual(explicit.weight.data());
      expect(scales.data()).toEqual(explicit.scales.data());
    }
    expect(ops.quantize(x).weight.shape).toEqual([rows, 16]);
  });

  check("dequantize", "gives the type of the scales, or the one asked for", () => {
    const matrix = ops.quantize(half(weights, [rows, columns]));
    expect(matrix.scales.dtype).toBe("bfloat16");
    expect(ops.dequantize(matrix).dtype).toBe("bfloat16");
    expect(ops.dequantize(matrix, {}, "float16").dtype).toBe("float16");
    for (const { mode } of floats) {
      const packed = ops.quantize(array(weights, [rows, columns]), { mode });
      expect(ops.dequantize(packed, { mode }).dtype).toBe("bfloat16");
    }
  });

  check("quantizedMatmul", "keeps 16 bits", () => {
    const matrix = ops.quantize(half(weights, [rows, columns]));
    const ones = ops.quantizedMatmul(half(Array(columns).fill(1), [1, columns]), matrix);
    expect([ones.dtype, ones.shape]).toEqual(["bfloat16", [1, rows]]);
  });

  const experts = 3;
  const perExpert = noise(experts * rows * columns, 9);
  for (const format of [
    formats[0]!,
    { mode: "affine", groupSize: 64, bits: 4 } as const,
    ...floats,
  ]) {
    check("gatherQmm", `multiplies the experts that are named, of ${named(format)}`, () => {
      const matrix = ops.quantize(array(perExpert, [experts, rows, columns]), format);
      const decoded = decode(matrix, format);
      const expert = (i: number) => decoded.slice(i * rows * columns, (i + 1) * rows * columns);
      const x = noise(4 * columns, 5);
      const row = (i: number) => x.slice(i * columns, (i + 1) * columns);
      const tokens = array(x, [4, 1, columns]);
      const answer = (token: number, e: number) =>
        product(row(token), transposed(expert(e), rows), 1, columns);
      const [shape, within] = [[4, 1, rows], 1e-5];
      for (const [list, sorted] of [
        [[2, 0, 1, 2], false],
        [[0, 0, 1, 2], true],
      ] as const) {
        const found = ops.gatherQmm(tokens, matrix, { rhs: int(list), sorted }, format);
        holds(
          found,
          list.flatMap((e, token) => answer(token, e)),
          { shape, within },
        );
      }
    });
  }
});
