// Products with matrices, quantized ones, those of experts and of heads, and what routers make of them, by the device at
// hand and by plain arithmetic.
import type { Device, FloatType, Linear } from "../device/device.ts";
import type { Matrix } from "../kernels/product.ts";
import type { Routing } from "../kernels/routing.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { astype, contiguous, matmul, type Quantization, quantize, swapAxes } from "../mlx/ops.ts";
import {
  compared,
  comparedByPart,
  type DeviceCheck,
  type Finding,
  keeping,
  noise,
  numbersOf,
} from "./check.ts";
import { normed } from "./plain-attention.ts";
import { dequantized, gated, product, routed, rowsOf } from "./plain-products.ts";

/** As parts of the largest number: rows, weights and sums may each be rounded to the type. */
function mostOf(device: Device, dtype: FloatType): number {
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

const modeName = ({ mode, bits, groupSize }: Required<Quantization>) =>
  mode === "affine" ? `${bits} bits in groups of ${groupSize}` : mode;

const types: readonly FloatType[] = ["float32", "float16", "bfloat16"];

export function productChecks(device: Device): DeviceCheck[] {
  const isKept = (dtype: FloatType, mode: Required<Quantization>) =>
    device.computeType(dtype) === dtype && device.keepsQuantized(dtype, mode);
  const computed = types.filter((dtype) => device.computeType(dtype) === dtype);
  return [
    ...computed.flatMap((dtype) => [
      { name: `product: ${dtype}`, run: (by: Device) => checkLinear(by, dtype) },
      ...modes
        .filter((mode) => isKept(dtype, mode))
        .map((mode) => ({
          name: `product, quantized: ${modeName(mode)}, ${dtype}`,
          run: (by: Device) => checkLinear(by, dtype, mode),
        })),
    ]),
    ...computed.flatMap((dtype) => [
      { name: `experts: ${dtype}`, run: (by: Device) => checkExperts(by, dtype, fewExperts) },
      {
        name: `experts, many rows: ${dtype}`,
        run: (by: Device) => checkExperts(by, dtype, wideExperts),
      },
      ...[4, 8]
        .map((bits) => ({ mode: "affine" as const, bits, groupSize: 64 }))
        .filter((mode) => isKept(dtype, mode))
        .map((mode) => ({
          name: `experts, quantized: ${modeName(mode)}, ${dtype}`,
          run: (by: Device) => checkExperts(by, dtype, fewExperts, mode),
        })),
    ]),
    ...computed.map((dtype) => ({
      name: `products of heads: ${dtype}`,
      run: (by: Device) => checkHeads(by, dtype),
    })),
    ...Object.entries(routings).map(([name, options]) => ({
      name: `router: ${name}`,
      run: (by: Device) => checkRouting(by, options),
    })),
    ...computed.map((dtype) => ({
      name: `sums of experts: ${dtype}`,
      run: (by: Device) => checkCombine(by, dtype),
    })),
  ];
}

function rounded(key: string, shape: readonly number[], dtype: FloatType): MlxArray {
  const count = shape.reduce((a, b) => a * b);
  return astype(array(noise(key, count), shape), dtype);
}

/** A matrix as the device has it, and its numbers. Those of a quantized one are unpacked here. */
function makeMatrix(
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
  return { matrix: { kind: "packed", matrix, quantization }, numbers };
}

/** Rows for each way to multiply: a vector, few, many. */
const rowCounts = [1, 5, 40, 300];

function checkLinear(
  device: Device,
  dtype: FloatType,
  quantization?: Required<Quantization>,
): Finding[] {
  const [inputs, outputs] = [512, 128];
  const { matrix, numbers } = makeMatrix("matrix", [outputs, inputs], dtype, quantization);
  const weight = rounded("norm", [inputs], dtype);
  const eps = 1e-5;
  const bias = rounded("bias", [outputs], dtype);
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
      return [
        close("", linear(x), plain),
        close(" and a bias", biased(x), added),
        close(
          " and a residual",
          linear(x, { residual }),
          plain.map((value, i) => value + plainResidual[i]!),
        ),
        close(" and a norm", linear(x, { norm }), afterNorm),
        close(" and a gate", linear(x, { norm, gating: "swiglu" }), gated(afterNorm, outputs)),
      ];
    });
  });
}

/** One token, few, many; experts with many rows and one without. */
const fewExperts = {
  shape: [6, 128, 256],
  rows: [
    [1, 3],
    [7, 2],
    [120, 3],
  ],
} as const;

/** For which some GPUs have wider tiles. */
const wideExperts = { shape: [3, 256, 128], rows: [[128, 2]] } as const;

function checkExperts(
  device: Device,
  dtype: FloatType,
  { shape, rows }: typeof fewExperts | typeof wideExperts,
  quantization?: Required<Quantization>,
): Finding[] {
  const [experts, outputs, inputs] = shape;
  const { matrix, numbers } = makeMatrix("experts", shape, dtype, quantization);
  const matrices = rowsOf(numbers, outputs * inputs);
  const most = mostOf(device, dtype);
  return keeping(({ keepView }) => {
    const linear = device.experts(matrix, undefined, keepView);
    return rows.flatMap(([tokens, each]) => {
      const x = rounded(`x ${tokens}`, [tokens, inputs], dtype);
      const chosen = Uint32Array.from(
        { length: tokens * each },
        (_, i) => ((i * i) % 7) % (experts - 1),
      );
      const plainX = rowsOf(numbersOf(x), inputs);
      const expected = [...chosen].flatMap((expert, i) =>
        product(plainX[Math.floor(i / each)]!, matrices[expert]!, inputs),
      );
      const ids = array(chosen);
      const what = `${tokens} tokens of ${each} experts`;
      const close = (name: string, found: MlxArray, numbers: readonly number[]) =>
        comparedByPart(name, numbersOf(found), numbers, most);
      return [
        close(what, linear(x, ids), expected),
        close(`${what} and a gate`, linear(x, ids, { gating: "swiglu" }), gated(expected, outputs)),
      ];
    });
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

type RoutingCase = Partial<Omit<Routing, "correction">> & { isCorrected?: boolean };

const plainRouting = {
  experts: 40,
  each: 4,
  scores: "softmax",
  isNormalized: true,
  scale: 1,
  shared: { count: 0, isGated: false },
} as const;

const routings: Readonly<Record<string, RoutingCase>> = {
  softmax: {},
  "softmax, shares as they are, scaled": { isNormalized: false, scale: 2.5 },
  "sigmoids with a correction": { scores: "sigmoid", scale: 1.5, isCorrected: true },
  "groups by their best two": {
    scores: "sigmoid",
    groups: { count: 8, kept: 3, best: 2 },
    each: 6,
  },
  "groups that leave out the others": {
    scores: "sigmoid",
    groups: { count: 4, kept: 1, best: 2, leavesOut: true },
    each: 8,
    isCorrected: true,
  },
  "one of 513 experts": { experts: 513, each: 1 },
  "a shared expert with a gate": { shared: { count: 1, isGated: true } },
  "two shared experts": { experts: 64, shared: { count: 2, isGated: false } },
  "square roots of softplus, capped": { scores: "sqrtsoftplus", softcap: 3 },
};

function checkRouting(device: Device, { isCorrected, ...options }: RoutingCase): Finding[] {
  const plain = { ...plainRouting, ...options };
  const { experts, shared } = plain;
  const [tokens, inputs] = [9, 48];
  const correction = isCorrected ? array(noise("correction", experts)) : undefined;
  const x = rounded("x", [tokens, inputs], "float32");
  const matrix = rounded("router", [experts + (shared.isGated ? 1 : 0), inputs], "float32");
  const linear: Linear = (rows) => matmul(rows, swapAxes(matrix, 0, 1));
  const raw = product(numbersOf(x), numbersOf(matrix), inputs);
  const known = { ...plain, correction: correction && numbersOf(correction) };
  const expected = rowsOf(raw, raw.length / tokens).map((row) => routed(row, known));
  const listed = (shares: ReadonlyMap<number, number>) =>
    [...shares].sort(([a], [b]) => a - b).flat();
  const routing = { ...plain, correction };
  return [
    {
      what: "by a matrix",
      scores: Object.assign((rows: MlxArray) => linear(rows), { dense: matrix }),
    },
    { what: "by scores", scores: linear },
  ].map(({ what, scores }) => {
    const { chosen, shares } = device.route(x, scores, routing);
    const each = chosen.shape[1]!;
    const [ids, parts] = [rowsOf(chosen.numbers(), each), rowsOf(numbersOf(shares), each)];
    const found = ids.map((own, token) => new Map(own.map((id, i) => [id, parts[token]![i]!])));
    return compared(what, found.flatMap(listed), expected.flatMap(listed), 1e-4);
  });
}

function checkCombine(device: Device, dtype: FloatType): Finding[] {
  const [tokens, each, dims] = [5, 3, 522];
  const made = rounded("made", [tokens, each, dims], dtype);
  const shares = rounded("shares", [tokens, each], "float32");
  const residual = rounded("residual", [tokens, dims], dtype);
  const [plainMade, plainShares] = [numbersOf(made), numbersOf(shares)];
  const sums = Array.from({ length: tokens * dims }, (_, at) => {
    const [token, d] = [Math.floor(at / dims), at % dims];
    let sum = 0;
    for (let i = 0; i < each; i++) {
      sum += plainMade[(token * each + i) * dims + d]! * plainShares[token * each + i]!;
    }
    return sum;
  });
  const before = numbersOf(residual);
  const added = sums.map((value, i) => value + before[i]!);
  const most = mostOf(device, dtype);
  return [
    comparedByPart("alone", numbersOf(device.combine(made, shares)), sums, most),
    comparedByPart(
      "and a residual",
      numbersOf(device.combine(made, shares, residual)),
      added,
      most,
    ),
  ];
}
