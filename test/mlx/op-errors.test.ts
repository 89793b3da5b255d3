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

/** The fault, the call, its message, and the operation that it names, if it is not the function's own. */
type Refusal = [wrong: string, call: () => unknown, says: RegExp, op?: string];
type Refusals = [op: string, ...rows: Refusal[]];

function some(shape: readonly number[], dtype: Dtype = "float32"): MlxArray {
  return array(Array(shape.reduce((n, dim) => n * dim, 1)).fill(1), shape, dtype);
}

function freed(): MlxArray {
  using _ = new Scope();
  return array([1]);
}

const matrix = () => some([2, 3]);
const complex = () => some([2], "complex64");
const integers = () => some([2, 2], "int32");
const positions = () => some([2, 3], "int32");
const indices = () => some([1], "int32");
const isFreed = /expected a non-empty mlx_array/;
const usedAfter = /used after it was freed/;
const shapes = /Shapes .* and .* cannot be broadcast/;
const badAxis = /[Aa]xis -?\d+ .*(dimension|out of bounds)/;
const notIntegral = /Indices must be integral/;
const negative = /Negative dimensions not allowed/;
const fewerAxes = /Indices of dimension 1 does not match/;
const badLength = /Last dimension of first input/;
const otherSize = /same size as the last dimension/;
const badKey = /Expected key type uint32/;

const unary = (f: (x: MlxArray) => void): Refusal => ["a freed array", () => f(freed()), isFreed];

const binary = (f: (a: MlxArray, b: MlxArray) => MlxArray): Refusal[] => [
  ["shapes that do not fit", () => f(positions(), some([2], "int32")), shapes],
  ["a freed array on the left", () => f(freed(), matrix()), isFreed],
  ["a freed array on the right", () => f(matrix(), freed()), isFreed],
];

const reduction = (f: (x: MlxArray, axes?: number | number[]) => MlxArray): Refusal[] => [
  ["an axis too many", () => f(matrix(), 2), badAxis],
  ["an axis too few", () => f(matrix(), -3), badAxis],
  ["an axis twice", () => f(matrix(), [0, -2]), /Duplicate axes/],
  ["a freed array", () => f(freed(), 0), isFreed],
];

const onAxis = (f: (x: MlxArray, axis: number) => MlxArray): Refusal[] => [
  ["an axis too many", () => f(matrix(), 2), badAxis],
  ["an axis too few", () => f(matrix(), -3), badAxis],
  ["a freed array", () => f(freed(), 0), isFreed],
];

/** A quantized (2, 64), and what is like it but for one member. */
const packed = (changes: Partial<ops.QuantizedMatrix> = {}) => ({
  ...ops.quantize(some([2, 64])),
  ...changes,
});

const experts = () => some([2, 2, 3]);
const packedExperts = () => ops.quantize(some([2, 2, 64]));

const ofOps: Record<keyof typeof ops, Refusals> = {
  zeros: ["zeros", ["a negative size", () => ops.zeros([2, -1]), negative]],
  arange: [
    "arange",
    ["a step of 0", () => ops.arange(0, 3, 0), /step must be nonzero/],
    ["no end", () => ops.arange(0, Infinity), /Cannot compute length/],
    ["bool", () => ops.arange(0, 3, 1, "bool"), /bool not supported/],
  ],

  erf: ["erf", unary(ops.erf)],
  erfinv: ["erfinv", unary(ops.erfinv)],
  exp: ["exp", unary(ops.exp)],
  expm1: ["expm1", unary(ops.expm1)],
  log: ["log", unary(ops.log)],
  negative: [
    "negative",
    unary(ops.negative),
    ["bool", () => ops.negative(some([2], "bool")), /Not supported for bool/],
  ],
  round: ["round", unary(ops.round)],
  sigmoid: [
    "sigmoid",
    unary(ops.sigmoid),
    ["complex numbers", () => ops.sigmoid(complex()), /Not supported for complex64/],
  ],
  tanh: ["tanh", unary(ops.tanh)],

  contiguous: ["contiguous", unary(ops.contiguous)],
  add: ["add", ...binary(ops.add)],
  divide: ["divide", ...binary(ops.divide)],
  floorDivide: ["floor_divide", ...binary(ops.floorDivide)],
  greater: ["greater", ...binary(ops.greater)],
  greaterEqual: ["greater_equal", ...binary(ops.greaterEqual)],
  less: ["less", ...binary(ops.less)],
  lessEqual: ["less_equal", ...binary(ops.lessEqual)],
  logAddExp: ["logaddexp", ...binary(ops.logAddExp)],
  logicalAnd: ["logical_and", ...binary(ops.logicalAnd)],
  maximum: ["maximum", ...binary(ops.maximum)],
  minimum: ["minimum", ...binary(ops.minimum)],
  multiply: ["multiply", ...binary(ops.multiply)],
  power: ["power", ...binary(ops.power)],
  subtract: ["subtract", ...binary(ops.subtract)],
  where: [
    "where",
    ["a condition that does not fit", () => ops.where(some([2]), matrix(), 0), shapes],
    ["values that do not fit", () => ops.where(some([3]), matrix(), some([2])), shapes],
    ["a freed condition", () => ops.where(freed(), matrix(), 0), isFreed],
  ],
  clip: ["array", ["a freed array", () => ops.clip(freed(), 0, 1), usedAfter]],

  logSumExp: ["logsumexp_axes", ...reduction(ops.logSumExp)],
  max: [
    "max_axes",
    ...reduction(ops.max),
    ["nothing to choose from", () => ops.max(array([])), /Cannot max reduce/],
  ],
  sum: ["sum_axes", ...reduction(ops.sum)],
  softmax: ["softmax_axes", ...onAxis(ops.softmax)],
  argmax: [
    "argmax_axis",
    ...onAxis(ops.argmax),
    ["nothing to choose from", () => ops.argmax(array([])), /zero size array/],
  ],
  cumsum: ["cumsum_axis", ...onAxis(ops.cumsum)],
  argsort: ["argsort_axis", ...onAxis(ops.argsort)],
  argpartition: [
    "argpartition_axis",
    ...onAxis((x, axis) => ops.argpartition(x, 0, axis)),
    ["a kth beyond the end", () => ops.argpartition(matrix(), 3), /kth 3/],
  ],

  astype: ["astype", unary((x) => ops.astype(x, "int32"))],
  reshape: [
    "reshape",
    ["another size", () => ops.reshape(matrix(), [4]), /Cannot reshape .* size 6/],
    ["two sizes to infer", () => ops.reshape(matrix(), [-1, -1]), /only infer one/],
    ["a freed array", () => ops.reshape(freed(), [1]), isFreed],
  ],
  flatten: ["flatten", ["a freed array", () => ops.flatten(freed()), isFreed]],
  swapAxes: ["swapaxes", ...onAxis((x, axis) => ops.swapAxes(x, 0, axis))],
  expandDims: [
    "expand_dims_axes",
    ["an axis too many", () => ops.expandDims(matrix(), 3), badAxis],
    ["an axis twice", () => ops.expandDims(matrix(), [0, 0]), /duplicate axes/],
    ["a freed array", () => ops.expandDims(freed(), 0), isFreed],
  ],
  squeeze: [
    "squeeze_axes",
    ["an axis that is not 1", () => ops.squeeze(matrix(), 0), /axis 0 with size 2/],
    ...onAxis(ops.squeeze),
  ],
  concatenate: [
    "concatenate_axis",
    [
      "other shapes",
      () => ops.concatenate([matrix(), some([3, 2])]),
      /dimensions must match exactly/,
    ],
    ["nothing", () => ops.concatenate([]), /No arrays provided/],
    ["an axis too many", () => ops.concatenate([matrix(), matrix()], 2), badAxis],
    ["a freed array", () => ops.concatenate([matrix(), freed()]), usedAfter, "array"],
  ],
  split: [
    "split",
    ["parts that are not equal", () => ops.split(matrix(), 2, 1), /equal size/],
    ["an axis too many", () => ops.split(matrix(), 2, 2), badAxis],
    ["an axis too many for cuts", () => ops.split(matrix(), [1], 2), badAxis, "split_sections"],
    ["a freed array", () => ops.split(freed(), 1), isFreed],
  ],
  slice: [
    "slice",
    ["an axis too many", () => ops.slice(matrix(), 2, 0), /no axis 2 in shape \(2,3\)/],
    ["an axis too few", () => ops.slice(matrix(), -3, 0), /no axis -3/],
    ["a freed array", () => ops.slice(freed(), 0, 0), usedAfter, "array"],
  ],

  take: [
    "take_axis",
    ["fractional indices", () => ops.take(matrix(), some([1])), notIntegral],
    ["an axis too many", () => ops.take(matrix(), indices(), 2), badAxis],
    ["nothing to take", () => ops.take(some([0, 3]), indices()), /from an empty axis/],
    ["freed indices", () => ops.take(matrix(), freed()), isFreed],
  ],
  takeAlongAxis: [
    "take_along_axis",
    ["indices of fewer axes", () => ops.takeAlongAxis(matrix(), indices()), fewerAxes],
    ...onAxis((x, axis) => ops.takeAlongAxis(x, positions(), axis)),
  ],
  putAlongAxis: [
    "put_along_axis",
    ["indices of fewer axes", () => ops.putAlongAxis(matrix(), indices(), 1), fewerAxes],
    ["values that do not fit", () => ops.putAlongAxis(matrix(), positions(), some([5])), shapes],
    ...onAxis((x, axis) => ops.putAlongAxis(x, positions(), matrix(), axis)),
  ],
  scatterAddAxis: [
    "scatter_add_axis",
    ["indices of fewer axes", () => ops.scatterAddAxis(matrix(), indices(), 1), fewerAxes],
    ...onAxis((x, axis) => ops.scatterAddAxis(x, positions(), matrix(), axis)),
  ],

  matmul: [
    "matmul",
    ["shapes that do not fit", () => ops.matmul(matrix(), matrix()), /Last dimension of/],
    ["a scalar", () => ops.matmul(array(1), matrix()), /0 dimension input/],
    ["integers", () => ops.matmul(integers(), integers()), /Only inexact types/],
    ["a freed array", () => ops.matmul(matrix(), freed()), isFreed],
  ],
  addmm: [
    "addmm",
    ["factors that do not fit", () => ops.addmm(array(1), matrix(), matrix()), /Last dimension of/],
    ["a sum that does not fit", () => ops.addmm(some([5]), matrix(), some([3, 2])), shapes],
    ["ints", () => ops.addmm(indices(), integers(), integers()), /Only (inexact|real floating)/],
  ],
  gatherMm: [
    "gather_mm",
    [
      "other shapes",
      () => ops.gatherMm(experts(), experts(), { rhs: indices() }),
      /Last dimension of/,
    ],
    [
      "fractional indices",
      () => ops.gatherMm(experts(), some([2, 3, 2]), { rhs: some([1]) }),
      notIntegral,
    ],
  ],

  quantize: [
    "quantize",
    ["a row of odd length", () => ops.quantize(some([2, 33])), /divisible by the/],
    ["integers", () => ops.quantize(some([2, 64], "int32")), /Only real floating types/],
    ["one axis", () => ops.quantize(some([64])), /at least 2 dimension/],
    ["no bits", () => ops.quantize(some([2, 64]), { bits: 0 }), /must not be 0/],
    ["no group", () => ops.quantize(some([2, 64]), { groupSize: 0 }), /must not be 0/],
    ["7 bits", () => ops.quantize(some([2, 64]), { bits: 7 }), /number of bits 7/],
    ["groups of 16", () => ops.quantize(some([2, 64]), { groupSize: 16 }), /group size 16/],
    [
      "mxfp4 in groups of 64",
      () => ops.quantize(some([2, 64]), { mode: "mxfp4", groupSize: 64 }),
      /mxfp4 quantization requires group size 32/,
    ],
    ["a freed array", () => ops.quantize(freed()), isFreed],
  ],
  dequantize: [
    "dequantize",
    ["plain weights", () => ops.dequantize(packed({ weight: some([2, 8]) })), /given as a uint32/],
    [
      "affine scales without biases",
      () => ops.dequantize(packed({ biases: undefined })),
      /Biases must be provided/,
    ],
    [
      "other bits than it was packed with",
      () => ops.dequantize(packed(), { bits: 8 }),
      /Shape of scales and biases does not match/,
    ],
  ],
  quantizedMatmul: [
    "quantized_matmul",
    ["shapes that do not fit", () => ops.quantizedMatmul(some([1, 32]), packed()), badLength],
    [
      "an unpacked matrix",
      () => ops.quantizedMatmul(some([1, 64]), packed({ weight: some([2, 8]) })),
      /uint32/,
    ],
    ["a freed array", () => ops.quantizedMatmul(freed(), packed()), isFreed],
  ],
  gatherQmm: [
    "gather_qmm",
    [
      "shapes that do not fit",
      () => ops.gatherQmm(some([1, 1, 32]), packedExperts(), { rhs: indices() }),
      badLength,
    ],
    [
      "fractional indices",
      () => ops.gatherQmm(some([1, 1, 64]), packedExperts(), { rhs: some([1]) }),
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

const ofFast: Record<keyof typeof fast, Refusals> = {
  rmsNorm: [
    "fast_rms_norm",
    ["a weight of another size", () => fast.rmsNorm(matrix(), some([2]), 1e-5), otherSize],
    ["a scalar", () => fast.rmsNorm(array(1), undefined, 1e-5), /at least 1 dim/],
    ["integers", () => fast.rmsNorm(indices(), undefined, 1e-5), /unsupported type int32/],
    ["a freed array", () => fast.rmsNorm(freed(), undefined, 1e-5), isFreed],
  ],
  layerNorm: [
    "fast_layer_norm",
    ["a bias of other size", () => fast.layerNorm(matrix(), undefined, some([2]), 1e-5), otherSize],
    ["a freed array", () => fast.layerNorm(freed(), undefined, undefined, 1e-5), isFreed],
  ],
  rope: [
    "fast_rope_dynamic",
    [
      "more features than there are",
      () => fast.rope(heads(2, 1), 4, some([3]), array(Int32Array.of(0))),
      /freqs/,
    ],
    ["a freed array", () => fast.rope(freed(), 4, some([2]), indices()), isFreed],
  ],
  attention: [
    attention,
    ["too few axes", attend(matrix, two), /expected to be rank 4/],
    ["integers", attend(twoOfInt, twoOfInt), /unsupported type int32/],
    ["heads that do not divide", attend(() => heads(3, 1), two), /multiple of n_kv_heads/],
    ["heads of another size", attend(() => heads(2, 1, 8), two), /matching last dim/],
    ["another batch", attend(() => some([2, 2, 1, 4]), two), /mismatching batch/],
    ["a mask that does not fit", attend(two, two, () => ({ mask: some([3, 3]) })), shapes],
    [
      "a mask of a wider type",
      attend(
        () => heads(2, 2, 4, "bfloat16"),
        () => heads(2, 2, 4, "bfloat16"),
        () => ({ mask: some([2, 2]) }),
      ),
      /Mask type must promote/,
    ],
    [
      "sinks of other heads",
      attend(two, two, () => ({ sinks: some([3]) })),
      /invalid shape for sinks/,
    ],
    ["a freed array", attend(freed, two), isFreed],
  ],
};

// MLX makes a key from any number: no input is wrong.
const ofRandom: Record<Exclude<keyof typeof random, "key">, Refusals> = {
  normal: [
    "random_normal",
    ["a key of floats", () => random.normal(some([2]), [2]), badKey],
    ["a negative size", () => random.normal(random.key(0), [-1]), negative],
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
      for (const [, ...rows] of Object.values<Refusals>(table)) expect(rows).not.toBeEmpty();
    });

    for (const [name, [own, ...rows]] of Object.entries<Refusals>(table)) {
      test.each(rows)(`${name} refuses %s`, (_wrong, call, says, op = own) => {
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
  test.each<[string, () => unknown]>([
    ["the indices of gatherMm", () => ops.gatherMm(experts(), some([2, 3, 2]), { rhs: freed() })],
    [
      "the indices of gatherQmm",
      () => ops.gatherQmm(some([2, 1, 64]), packedExperts(), { rhs: freed() }),
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
