// Checks a device's mixtures of experts against plain arithmetic: routing, products with experts, and the weighted sum
// of their outputs.
import type { Device, FloatType, Linear } from "../device/device.ts";
import type { Routing } from "../kernels/token/routing.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { matmul, type Quantization, swapAxes } from "../mlx/ops.ts";
import {
  compared,
  comparedByPart,
  type DeviceCheck,
  type Finding,
  keeping,
  noise,
  numbersOf,
} from "./check.ts";
import { gated, product, routed, rowsOf } from "./plain-products.ts";
import { computedTypes, makeMatrix, modeName, mostOf, rounded } from "./product-checks.ts";

export function expertChecks(device: Device): DeviceCheck[] {
  const computed = computedTypes(device);
  return [
    ...computed.flatMap((dtype) => [
      { name: `experts: ${dtype}`, run: (by: Device) => checkExperts(by, dtype, fewExperts) },
      {
        name: `experts, many rows: ${dtype}`,
        run: (by: Device) => checkExperts(by, dtype, wideExperts),
      },
      ...[4, 8]
        .map((bits) => ({ mode: "affine" as const, bits, groupSize: 64 }))
        .filter((mode) => device.keepsQuantized(dtype, mode))
        .map((mode) => ({
          name: `experts, quantized: ${modeName(mode)}, ${dtype}`,
          run: (by: Device) => checkExperts(by, dtype, fewExperts, mode),
        })),
    ]),
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

/** Shape [experts, outputs, inputs] and, per case, [tokens, experts per token]. One expert has no token. */
const fewExperts = {
  shape: [6, 128, 256],
  rows: [
    [1, 3],
    [7, 2],
    [120, 3],
  ],
} as const;

/** Experts of a shape for which some GPUs have wider tiles. */
const wideExperts = { shape: [3, 256, 128], rows: [[128, 2]] } as const;

function checkExperts(
  device: Device,
  dtype: FloatType,
  { shape, rows }: typeof fewExperts | typeof wideExperts,
  quantization?: Required<Quantization>,
): Finding[] {
  const [experts, outputs, inputs] = shape;
  const { matrix, numbers } = makeMatrix(device, "experts", shape, dtype, quantization);
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
  "softmax, not normalized, scaled": { isNormalized: false, scale: 2.5 },
  "sigmoids with a correction": { scores: "sigmoid", scale: 1.5, isCorrected: true },
  "groups by their best two": {
    scores: "sigmoid",
    groups: { count: 8, kept: 3, best: 2 },
    each: 6,
  },
  "groups that exclude the others": {
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
