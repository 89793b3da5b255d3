// Wrong input is refused with an error that names the operation, and the next call works. An
// operation without a row here fails the suite.
import { describe, expect, test } from "bun:test";
import { MlxError } from "../../ffi/error.ts";
import { out } from "../../ffi/slot.ts";
import { array, liveArrays, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import * as fast from "../../src/mlx/fast.ts";
import * as ops from "../../src/mlx/ops.ts";
import * as random from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { useMlx } from "../support/mlx.ts";

useMlx();

/** What is wrong, the operation that says so, the call, and what it says. */
type Refusal = [wrong: string, op: string, call: () => unknown, says: RegExp];

function some(shape: readonly number[], dtype: Dtype = "float32"): MlxArray {
  return array(Array(shape.reduce((n, dim) => n * dim, 1)).fill(1), shape, dtype);
}

function freed(): MlxArray {
  using _ = new Scope();
  return array([1]);
}

const matrix = () => some([2, 3]);
const complex = () => some([2], "complex64");
const indices = () => some([1], "int32");
const isFreed = /expected a non-empty mlx_array/;
const usedAfter = /used after it was freed/;
const shapes = /Shapes .* and .* cannot be broadcast/;
const badAxis = /[Aa]xis -?\d+ .*(dimension|out of bounds)/;
const notIntegral = /Indices must be integral/;
const negative = /Negative dimensions not allowed/;
const badKey = /Expected key type uint32/;

const unary = (op: string, f: (x: MlxArray) => MlxArray): Refusal => [
  "a freed array",
  op,
  () => f(freed()),
  isFreed,
];

const binary = (op: string, f: (a: MlxArray, b: MlxArray) => MlxArray): Refusal[] => [
  ["shapes that do not fit", op, () => f(some([2, 3], "int32"), some([2], "int32")), shapes],
  ["a freed array on the left", op, () => f(freed(), matrix()), isFreed],
  ["a freed array on the right", op, () => f(matrix(), freed()), isFreed],
];

const reduction = (
  op: string,
  f: (x: MlxArray, axes?: number | number[]) => MlxArray,
): Refusal[] => [
  ["an axis too many", op, () => f(matrix(), 2), badAxis],
  ["an axis too few", op, () => f(matrix(), -3), badAxis],
  ["an axis twice", op, () => f(matrix(), [0, -2]), /Duplicate axes/],
  ["a freed array", op, () => f(freed(), 0), isFreed],
];

const onAxis = (op: string, f: (x: MlxArray, axis: number) => MlxArray): Refusal[] => [
  ["an axis too many", op, () => f(matrix(), 2), badAxis],
  ["an axis too few", op, () => f(matrix(), -3), badAxis],
  ["a freed array", op, () => f(freed(), 0), isFreed],
];

/** A quantized (2, 64), and what is like it but for one member. */
const packed = (changes: Partial<ops.QuantizedMatrix> = {}) => ({
  ...ops.quantize(some([2, 64])),
  ...changes,
});

const ofOps: Record<keyof typeof ops, Refusal[]> = {
  zeros: [["a negative size", "zeros", () => ops.zeros([2, -1]), negative]],
  arange: [
    ["a step of 0", "arange", () => ops.arange(0, 3, 0), /step must be nonzero/],
    ["no end", "arange", () => ops.arange(0, Infinity), /Cannot compute length/],
    ["bool", "arange", () => ops.arange(0, 3, 1, "bool"), /bool not supported/],
  ],

  erf: [unary("erf", ops.erf)],
  erfinv: [unary("erfinv", ops.erfinv)],
  exp: [unary("exp", ops.exp)],
  expm1: [unary("expm1", ops.expm1)],
  log: [unary("log", ops.log)],
  negative: [
    unary("negative", ops.negative),
    ["bool", "negative", () => ops.negative(some([2], "bool")), /Not supported for bool/],
  ],
  round: [unary("round", ops.round)],
  sigmoid: [
    unary("sigmoid", ops.sigmoid),
    ["complex numbers", "sigmoid", () => ops.sigmoid(complex()), /Not supported for complex64/],
  ],
  tanh: [unary("tanh", ops.tanh)],

  contiguous: [unary("contiguous", ops.contiguous)],
  add: binary("add", ops.add),
  divide: binary("divide", ops.divide),
  floorDivide: binary("floor_divide", ops.floorDivide),
  greater: binary("greater", ops.greater),
  greaterEqual: binary("greater_equal", ops.greaterEqual),
  less: binary("less", ops.less),
  lessEqual: binary("less_equal", ops.lessEqual),
  logAddExp: binary("logaddexp", ops.logAddExp),
  logicalAnd: binary("logical_and", ops.logicalAnd),
  maximum: binary("maximum", ops.maximum),
  minimum: binary("minimum", ops.minimum),
  multiply: binary("multiply", ops.multiply),
  power: binary("power", ops.power),
  subtract: binary("subtract", ops.subtract),
  where: [
    ["a condition that does not fit", "where", () => ops.where(some([2]), matrix(), 0), shapes],
    ["values that do not fit", "where", () => ops.where(some([3]), matrix(), some([2])), shapes],
    ["a freed condition", "where", () => ops.where(freed(), matrix(), 0), isFreed],
  ],
  clip: [["a freed array", "array", () => ops.clip(freed(), 0, 1), usedAfter]],

  logSumExp: reduction("logsumexp_axes", ops.logSumExp),
  max: [
    ...reduction("max_axes", ops.max),
    ["nothing to choose from", "max_axes", () => ops.max(array([])), /Cannot max reduce/],
  ],
  sum: reduction("sum_axes", ops.sum),
  softmax: onAxis("softmax_axes", ops.softmax),
  argmax: [
    ...onAxis("argmax_axis", ops.argmax),
    ["nothing to choose from", "argmax_axis", () => ops.argmax(array([])), /zero size array/],
  ],
  cumsum: onAxis("cumsum_axis", ops.cumsum),
  argsort: onAxis("argsort_axis", ops.argsort),
  argpartition: [
    ...onAxis("argpartition_axis", (x, axis) => ops.argpartition(x, 0, axis)),
    ["a kth beyond the end", "argpartition_axis", () => ops.argpartition(matrix(), 3), /kth 3/],
  ],

  astype: [unary("astype", (x) => ops.astype(x, "int32"))],
  reshape: [
    ["another size", "reshape", () => ops.reshape(matrix(), [4]), /Cannot reshape .* size 6/],
    ["two sizes to infer", "reshape", () => ops.reshape(matrix(), [-1, -1]), /only infer one/],
    ["a freed array", "reshape", () => ops.reshape(freed(), [1]), isFreed],
  ],
  flatten: [["a freed array", "flatten", () => ops.flatten(freed()), isFreed]],
  swapAxes: onAxis("swapaxes", (x, axis) => ops.swapAxes(x, 0, axis)),
  expandDims: [
    ["an axis too many", "expand_dims_axes", () => ops.expandDims(matrix(), 3), badAxis],
    ["an axis twice", "expand_dims_axes", () => ops.expandDims(matrix(), [0, 0]), /duplicate axes/],
    ["a freed array", "expand_dims_axes", () => ops.expandDims(freed(), 0), isFreed],
  ],
  squeeze: [
    ["an axis that is not 1", "squeeze_axes", () => ops.squeeze(matrix(), 0), /axis 0 with size 2/],
    ...onAxis("squeeze_axes", ops.squeeze),
  ],
  concatenate: [
    [
      "shapes that do not fit",
      "concatenate_axis",
      () => ops.concatenate([matrix(), some([3, 2])]),
      /dimensions must match exactly/,
    ],
    ["nothing", "concatenate_axis", () => ops.concatenate([]), /No arrays provided/],
    [
      "an axis too many",
      "concatenate_axis",
      () => ops.concatenate([matrix(), matrix()], 2),
      badAxis,
    ],
    ["a freed array", "array", () => ops.concatenate([matrix(), freed()]), usedAfter],
  ],
  split: [
    ["parts that are not equal", "split", () => ops.split(matrix(), 2, 1), /equal size/],
    ["an axis too many", "split", () => ops.split(matrix(), 2, 2), badAxis],
    ["an axis too many for cuts", "split_sections", () => ops.split(matrix(), [1], 2), badAxis],
    ["a freed array", "split", () => ops.split(freed(), 1), isFreed],
  ],
  slice: [
    ["an axis too many", "slice", () => ops.slice(matrix(), 2, 0), /no axis 2 in shape \(2,3\)/],
    ["an axis too few", "slice", () => ops.slice(matrix(), -3, 0), /no axis -3/],
    ["a freed array", "array", () => ops.slice(freed(), 0, 0), usedAfter],
  ],

  take: [
    [
      "indices that are not integers",
      "take_axis",
      () => ops.take(matrix(), some([1])),
      notIntegral,
    ],
    ["an axis too many", "take_axis", () => ops.take(matrix(), indices(), 2), badAxis],
    ["nothing to take", "take_axis", () => ops.take(some([0, 3]), indices()), /from an empty axis/],
    ["freed indices", "take_axis", () => ops.take(matrix(), freed()), isFreed],
  ],
  takeAlongAxis: [
    [
      "indices of fewer axes",
      "take_along_axis",
      () => ops.takeAlongAxis(matrix(), indices()),
      /Indices of dimension 1 does not match/,
    ],
    ...onAxis("take_along_axis", (x, axis) => ops.takeAlongAxis(x, some([2, 3], "int32"), axis)),
  ],
  putAlongAxis: [
    [
      "indices of fewer axes",
      "put_along_axis",
      () => ops.putAlongAxis(matrix(), indices(), 1),
      /Indices of dimension 1 does not match/,
    ],
    [
      "values that do not fit",
      "put_along_axis",
      () => ops.putAlongAxis(matrix(), some([2, 3], "int32"), some([5])),
      shapes,
    ],
    ...onAxis("put_along_axis", (x, axis) =>
      ops.putAlongAxis(x, some([2, 3], "int32"), matrix(), axis),
    ),
  ],
  scatterAddAxis: [
    [
      "indices of fewer axes",
      "scatter_add_axis",
      () => ops.scatterAddAxis(matrix(), indices(), 1),
      /Indices of dimension 1 does not match/,
    ],
    ...onAxis("scatter_add_axis", (x, axis) =>
      ops.scatterAddAxis(x, some([2, 3], "int32"), matrix(), axis),
    ),
  ],

  matmul: [
    ["shapes that do not fit", "matmul", () => ops.matmul(matrix(), matrix()), /Last dimension of/],
    ["a scalar", "matmul", () => ops.matmul(array(1), matrix()), /0 dimension input/],
    [
      "integers",
      "matmul",
      () => ops.matmul(some([2, 2], "int32"), some([2, 2], "int32")),
      /Only inexact types/,
    ],
    ["a freed array", "matmul", () => ops.matmul(matrix(), freed()), isFreed],
  ],
  addmm: [
    [
      "factors that do not fit",
      "addmm",
      () => ops.addmm(array(1), matrix(), matrix()),
      /Last dimension of/,
    ],
    [
      "a sum that does not fit",
      "addmm",
      () => ops.addmm(some([5]), matrix(), some([3, 2])),
      shapes,
    ],
    [
      "integers",
      "addmm",
      () => ops.addmm(indices(), some([2, 2], "int32"), some([2, 2], "int32")),
      /Only (inexact|real floating)/,
    ],
  ],
  gatherMm: [
    [
      "shapes that do not fit",
      "gather_mm",
      () => ops.gatherMm(some([2, 2, 3]), some([2, 2, 3]), { rhs: indices() }),
      /Last dimension of/,
    ],
    [
      "indices that are not integers",
      "gather_mm",
      () => ops.gatherMm(some([2, 2, 3]), some([2, 3, 2]), { rhs: some([1]) }),
      notIntegral,
    ],
  ],

  quantize: [
    ["a row of odd length", "quantize", () => ops.quantize(some([2, 33])), /divisible by the/],
    [
      "integers",
      "quantize",
      () => ops.quantize(some([2, 64], "int32")),
      /Only real floating types/,
    ],
    ["one axis", "quantize", () => ops.quantize(some([64])), /at least 2 dimension/],
    ["no bits", "quantize", () => ops.quantize(some([2, 64]), { bits: 0 }), /must not be 0/],
    ["no group", "quantize", () => ops.quantize(some([2, 64]), { groupSize: 0 }), /must not be 0/],
    ["7 bits", "quantize", () => ops.quantize(some([2, 64]), { bits: 7 }), /number of bits 7/],
    [
      "groups of 16",
      "quantize",
      () => ops.quantize(some([2, 64]), { groupSize: 16 }),
      /group size 16/,
    ],
    [
      "mxfp4 in groups of 64",
      "quantize",
      () => ops.quantize(some([2, 64]), { mode: "mxfp4", groupSize: 64 }),
      /mxfp4 quantization requires group size 32/,
    ],
    ["a freed array", "quantize", () => ops.quantize(freed()), isFreed],
  ],
  dequantize: [
    [
      "a matrix that is not packed",
      "dequantize",
      () => ops.dequantize(packed({ weight: some([2, 8]) })),
      /given as a uint32/,
    ],
    [
      "affine scales without biases",
      "dequantize",
      () => ops.dequantize(packed({ biases: undefined })),
      /Biases must be provided/,
    ],
    [
      "other bits than it was packed with",
      "dequantize",
      () => ops.dequantize(packed(), { bits: 8 }),
      /Shape of scales and biases does not match/,
    ],
  ],
  quantizedMatmul: [
    [
      "shapes that do not fit",
      "quantized_matmul",
      () => ops.quantizedMatmul(some([1, 32]), packed()),
      /Last dimension of first input/,
    ],
    [
      "a matrix that is not packed",
      "quantized_matmul",
      () => ops.quantizedMatmul(some([1, 64]), packed({ weight: some([2, 8]) })),
      /uint32/,
    ],
    ["a freed array", "quantized_matmul", () => ops.quantizedMatmul(freed(), packed()), isFreed],
  ],
  gatherQmm: [
    [
      "shapes that do not fit",
      "gather_qmm",
      () => ops.gatherQmm(some([1, 1, 32]), ops.quantize(some([2, 2, 64])), { rhs: indices() }),
      /Last dimension of first input/,
    ],
    [
      "indices that are not integers",
      "gather_qmm",
      () => ops.gatherQmm(some([1, 1, 64]), ops.quantize(some([2, 2, 64])), { rhs: some([1]) }),
      notIntegral,
    ],
  ],
};

const heads = (count: number, length: number, size = 4, dtype: Dtype = "float32") =>
  some([1, count, length, size], dtype);

const attend =
  (q: () => MlxArray, k: () => MlxArray, options: () => Partial<fast.Attention> = () => ({})) =>
  () =>
    fast.attention(q(), k(), k(), { scale: 1, ...options() });

const [two, twoOfInt] = [() => heads(2, 2), () => heads(2, 2, 4, "int32")];
const attention = "fast_scaled_dot_product_attention";

const ofFast: Record<keyof typeof fast, Refusal[]> = {
  rmsNorm: [
    [
      "a weight of another size",
      "fast_rms_norm",
      () => fast.rmsNorm(matrix(), some([2]), 1e-5),
      /same size as the last dimension/,
    ],
    ["a scalar", "fast_rms_norm", () => fast.rmsNorm(array(1), undefined, 1e-5), /at least 1 dim/],
    [
      "integers",
      "fast_rms_norm",
      () => fast.rmsNorm(indices(), undefined, 1e-5),
      /unsupported type int32/,
    ],
    ["a freed array", "fast_rms_norm", () => fast.rmsNorm(freed(), undefined, 1e-5), isFreed],
  ],
  layerNorm: [
    [
      "a bias of another size",
      "fast_layer_norm",
      () => fast.layerNorm(matrix(), undefined, some([2]), 1e-5),
      /same size as the last dimension/,
    ],
    [
      "a freed array",
      "fast_layer_norm",
      () => fast.layerNorm(freed(), undefined, undefined, 1e-5),
      isFreed,
    ],
  ],
  rope: [
    [
      "more features than there are",
      "fast_rope_dynamic",
      () => fast.rope(heads(2, 1), 4, some([3]), array(Int32Array.of(0))),
      /freqs/,
    ],
    [
      "a freed array",
      "fast_rope_dynamic",
      () => fast.rope(freed(), 4, some([2]), indices()),
      isFreed,
    ],
  ],
  attention: [
    ["too few axes", attention, attend(matrix, two), /expected to be rank 4/],
    ["integers", attention, attend(twoOfInt, twoOfInt), /unsupported type int32/],
    [
      "heads that do not divide",
      attention,
      attend(() => heads(3, 1), two),
      /multiple of n_kv_heads/,
    ],
    ["heads of another size", attention, attend(() => heads(2, 1, 8), two), /matching last dim/],
    ["another batch", attention, attend(() => some([2, 2, 1, 4]), two), /mismatching batch/],
    [
      "a mask that does not fit",
      attention,
      attend(two, two, () => ({ mask: some([3, 3]) })),
      shapes,
    ],
    [
      "a mask of a wider type",
      attention,
      attend(
        () => heads(2, 2, 4, "bfloat16"),
        () => heads(2, 2, 4, "bfloat16"),
        () => ({ mask: some([2, 2]) }),
      ),
      /Mask type must promote/,
    ],
    [
      "sinks of other heads",
      attention,
      attend(two, two, () => ({ sinks: some([3]) })),
      /invalid shape for sinks/,
    ],
    ["a freed array", attention, attend(freed, two), isFreed],
  ],
};

// MLX makes a key from any number: no input is wrong.
const ofRandom: Record<Exclude<keyof typeof random, "key">, Refusal[]> = {
  normal: [
    ["a key of floats", "random_normal", () => random.normal(some([2]), [2]), badKey],
    ["a negative size", "random_normal", () => random.normal(random.key(0), [-1]), negative],
  ],
};

const modules = { ops: [ops, ofOps], fast: [fast, ofFast], random: [random, ofRandom] } as const;

function refusal(call: () => unknown): MlxError {
  using _ = new Scope();
  try {
    call();
  } catch (error) {
    if (error instanceof MlxError) return error;
    throw error;
  }
  throw new Error("the call was not refused");
}

for (const [module, [exported, table]] of Object.entries(modules)) {
  describe(module, () => {
    test("has a refusal for every function", () => {
      const names = Object.keys(exported).filter((name) => name !== "key");
      expect(Object.keys(table).toSorted()).toEqual(names.toSorted());
      for (const rows of Object.values<Refusal[]>(table)) expect(rows.length).toBeGreaterThan(0);
    });

    for (const [name, rows] of Object.entries<Refusal[]>(table)) {
      test.each(rows)(`${name} refuses %s`, (_wrong, op, call, says) => {
        const before = liveArrays();
        const error = refusal(call);
        expect(error.op).toBe(op);
        expect(error.message).toStartWith(`${op}: `);
        expect(error.message).toMatch(says);
        // Where mlx-c caught it is no business of the caller's.
        expect(error.message).not.toMatch(/\.(cpp|h)\b|:\d+$/);
        // Nothing is left behind, in the scope or in the slot, and the next call works.
        expect([liveArrays(), ...out.view]).toEqual([before, 0, 0]);
        using _ = new Scope();
        expect(ops.add(array([1, 2]), 1).numbers()).toEqual([2, 3]);
      });
    }
  });
}

test("each error has its own message", () => {
  const first = refusal(() => ops.matmul(matrix(), matrix()));
  const second = refusal(() => ops.reshape(matrix(), [4]));
  expect(first.message).toStartWith("matmul: [matmul] Last dimension");
  expect(second.message).toBe("reshape: [reshape] Cannot reshape array of size 6 into shape (4).");
  expect(second).toMatchObject({ name: "MlxError", op: "reshape" });
});

describe("a freed array in an optional place is refused, not taken as absent:", () => {
  const experts = () => [some([2, 2, 3]), some([2, 3, 2])] as const;
  test.each<[string, () => unknown]>([
    ["the indices of gatherMm", () => ops.gatherMm(...experts(), { rhs: freed() })],
    [
      "the indices of gatherQmm",
      () => ops.gatherQmm(some([2, 1, 64]), ops.quantize(some([2, 2, 64])), { rhs: freed() }),
    ],
    ["the biases of dequantize", () => ops.dequantize(packed({ biases: freed() }))],
    [
      "the biases of quantizedMatmul",
      () => ops.quantizedMatmul(some([1, 64]), packed({ biases: freed() })),
    ],
    ["the weight of rmsNorm", () => fast.rmsNorm(matrix(), freed(), 1e-5)],
    ["the mask of attention", attend(two, two, () => ({ mask: freed() }))],
    ["the sinks of attention", attend(two, two, () => ({ sinks: freed() }))],
    ["the key of normal", () => random.normal(freed(), [2])],
  ])("%s", (_place, call) => {
    expect(refusal(call)).toBeInstanceOf(MlxError);
  });
});
