// Checks a device's matrix products against plain arithmetic: dense, quantized, and per head.
import type { Device, FloatType } from "../device/device.ts";
import { packedFor } from "../device/linear.ts";
import type { Matrix } from "../kernels/product/matrix.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { astype, contiguous, type Quantization, quantize, swapAxes } from "../mlx/ops.ts";
import {
  comparedByPart,
  type DeviceCheck,
  type Finding,
  keeping,
  noise,
  numbersOf,
} from "./check.ts";
import { normed } from "./plain-attention.ts";
import { dequantized, gated, product, rowsOf } from "./plain-products.ts";

/** Returns the tolerance, relative to the largest number: rows, weights and sums may each be rounded to `dtype`. */
export function mostOf(device: Device, dtype: FloatType): number {
  if (dtype === "float32") return device.backend === "cpu" ? 1e-5 : 1e-4;
  return dtype === "float16" ? 3e-3 : 2e-2;
}

const modes: readonly Required<Quantization>[] = [
  ...[2, 3, 4, 5, 6, 8].map((bits) => ({ mode: "affine" as const, bits, groupSize: 64 })),
  ...[32, 128].map((groupSize) => ({ mode: "affine" as const, bits: 4, groupSize })),
  { mode: "mxfp4", bits: 4, groupSize: 32 },
  { mode: "mxfp8", bits: 8, groupSize: 32 },
  { mode: "nvfp4", bits: 4, groupSize: 16 },
];

export const modeName = ({ mode, bits, groupSize }: Required<Quantization>) =>
  mode === "affine" ? `${bits} bits in groups of ${groupSize}` : mode;

const types: readonly FloatType[] = ["float32", "float16", "bfloat16"];

/** Returns the types that models compute in on this device. */
export function computedTypes(device: Device): FloatType[] {
  return types.filter((dtype) => device.computeType(dtype) === dtype);
}

export function productChecks(device: Device): DeviceCheck[] {
  const computed = computedTypes(device);
  return [
    ...computed.flatMap((dtype) => [
      { name: `product: ${dtype}`, run: (by: Device) => checkLinear(by, dtype) },
      ...modes
        .filter((mode) => device.keepsQuantized(dtype, mode))
        .map((mode) => ({
          name: `product, quantized: ${modeName(mode)}, ${dtype}`,
          run: (by: Device) => checkLinear(by, dtype, mode),
        })),
    ]),
    ...computed.map((dtype) => ({
      name: `product of a prompt: ${dtype}`,
      run: (by: Device) => checkPrompt(by, dtype),
    })),
    ...computed.map((dtype) => ({
      name: `products of heads: ${dtype}`,
      run: (by: Device) => checkHeads(by, dtype),
    })),
  ];
}

export function rounded(key: string, shape: readonly number[], dtype: FloatType): MlxArray {
  const count = shape.reduce((a, b) => a * b);
  return astype(array(noise(key, count), shape), dtype);
}

/** Makes a matrix in the device's format, and returns it with its numbers, which are dequantized here. */
export function makeMatrix(
  device: Device,
  key: string,
  shape: readonly number[],
  dtype: FloatType,
  quantization: Required<Quantization> | undefined,
): { matrix: Matrix; numbers: number[] } {
  const weight = rounded(key, shape, dtype);
  if (!quantization) return { matrix: { kind: "dense", weight }, numbers: numbersOf(weight) };
  const matrix = quantize(weight, quantization);
  const words = matrix.weight.data();
  const bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  const scales = numbersOf(matrix.scales);
  const biases = matrix.biases && numbersOf(matrix.biases);
  const numbers = dequantized(bytes, scales, biases, quantization);
  return { matrix: { kind: "packed", matrix: packedFor(device, matrix), quantization }, numbers };
}

/** Numbers of rows for which devices choose different kernels: a vector, few rows, many rows (two kinds), prompts. */
const rowCounts = [1, 5, 40, 100, 300];

function checkLinear(
  device: Device,
  dtype: FloatType,
  quantization?: Required<Quantization>,
): Finding[] {
  const [inputs, outputs] = [512, 128];
  const { matrix, numbers } = makeMatrix(device, "matrix", [outputs, inputs], dtype, quantization);
  const weight = rounded("norm", [inputs], dtype);
  const eps = 1e-5;
  const bias = rounded("bias", [outputs], dtype);
  const sumWeight = rounded("norm of the sum", [outputs], dtype);
  const [plainNorm, plainBias] = [numbersOf(weight), numbersOf(bias)];
  const norm = Object.assign((x: MlxArray) => device.rmsNorm(x, weight, eps), { weight, eps });
  const most = mostOf(device, dtype);
  return keeping((keep) => {
    const options = { dtype, keepDequantized: false, ...keep };
    const linear = device.linear(matrix, { ...options, bias: undefined });
    const biased = device.linear(matrix, { ...options, bias });
    return rowCounts.flatMap((rows) => {
      const x = rounded(`x ${rows}`, [rows, inputs], dtype);
      const residual = rounded(`residual ${rows}`, [rows, outputs], dtype);
      const [plainX, plainResidual] = [numbersOf(x), numbersOf(residual)];
      const close = (what: string, found: MlxArray, expected: readonly number[]) =>
        comparedByPart(`${rows} rows${what}`, numbersOf(found), expected, most);
      const plain = product(plainX, numbers, inputs);
      const added = plain.map((value, i) => value + plainBias[i % outputs]!);
      const normedX = rowsOf(plainX, inputs).flatMap((row) => normed(row, plainNorm, eps));
      const afterNorm = product(normedX, numbers, inputs);
      const sum = linear(x, { residual });
      const normedSum = device.rmsNorm(sum, sumWeight, eps);
      const plainSum = plain.map((value, i) => value + plainResidual[i]!);
      return [
        close("", linear(x), plain),
        close(" and a bias", biased(x), added),
        close(" and a residual", sum, plainSum),
        close(
          ", a residual and a norm after it",
          normedSum,
          rowsOf(plainSum, outputs).flatMap((row) => normed(row, numbersOf(sumWeight), eps)),
        ),
        close(" and a norm", linear(x, { norm }), afterNorm),
        close(" and a gate", linear(x, { norm, gating: "swiglu" }), gated(afterNorm, outputs)),
      ];
    });
  });
}

/** Checks products of many rows, not a multiple of a tile. Gated products have enough columns to fill a GPU. */
function checkPrompt(device: Device, dtype: FloatType): Finding[] {
  const [rows, inputs] = [1020, 64];
  const x = rounded("x", [rows, inputs], dtype);
  const plainX = numbersOf(x);
  return keeping((keep) => {
    const options = { dtype, keepDequantized: false, bias: undefined, ...keep };
    const productOf = (outputs: number) => {
      const { matrix, numbers } = makeMatrix(device, "matrix", [outputs, inputs], dtype, undefined);
      return { linear: device.linear(matrix, options), plain: product(plainX, numbers, inputs) };
    };
    const close = (what: string, found: MlxArray, expected: readonly number[]) =>
      comparedByPart(`${rows} rows${what}`, numbersOf(found), expected, mostOf(device, dtype));
    const [few, many] = [productOf(128), productOf(4096)];
    const residual = rounded("residual", [rows, 128], dtype);
    const plainResidual = numbersOf(residual);
    const sum = few.plain.map((value, i) => value + plainResidual[i]!);
    return [
      close("", few.linear(x), few.plain),
      close(" and a residual", few.linear(x, { residual }), sum),
      close(" and a gate", many.linear(x, { gating: "swiglu" }), gated(many.plain, 4096)),
    ];
  });
}

function checkHeads(device: Device, dtype: FloatType): Finding[] {
  const [heads, inputs, outputs] = [3, 48, 32];
  const weight = rounded("heads", [heads, outputs, inputs], dtype);
  const matrices = rowsOf(numbersOf(weight), outputs * inputs);
  const [first, stride] = [8, inputs + 24];
  return keeping(({ keepView }) =>
    [false, true].flatMap((isTransposed) => {
      const stored = isTransposed ? contiguous(swapAxes(weight, 1, 2)) : weight;
      const linear = device.headLinear(stored, isTransposed, keepView);
      return [1, 17, 70].map((rows) => {
        const x = rounded(`x ${rows}`, [rows, first + heads * stride], dtype);
        const expected = rowsOf(numbersOf(x), first + heads * stride).flatMap((row) =>
          matrices.flatMap((matrix, head) => {
            const from = first + head * stride;
            return product(row.slice(from, from + inputs), matrix, inputs);
          }),
        );
        const found = numbersOf(linear({ rows: x, first, stride }));
        const what = `${rows} rows${isTransposed ? ", transposed" : ""}`;
        return comparedByPart(what, found, expected, mostOf(device, dtype));
      });
    }),
  );
}
