// Checks a device's convolutions and scans against plain arithmetic. All slots hold large numbers beforehand, so that
// reading a wrong slot is noticed.
import type { Compute, FloatType } from "../device/device.ts";
import {
  type Convolution,
  type GivenGates,
  packMoves,
  type RawGates,
  type Recurrence,
  type RowMove,
  type Scan,
  type ScanInputs,
} from "../kernels/recurrence/recurrence.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import { astype } from "../mlx/ops.ts";
import {
  compared,
  comparedByPart,
  type DeviceCheck,
  type Finding,
  noise,
  numbersOf,
} from "./check.ts";
import { plainRecurrence } from "./plain-recurrence.ts";

type ConvolutionCase = {
  taps: number;
  channels: number;
  dtype: FloatType;
  activation?: "silu";
  isBiased?: boolean;
  /** Number of unused columns before a row's channels. */
  spare?: number;
};

const convolutions: readonly ConvolutionCase[] = [
  { taps: 4, channels: 300, dtype: "float32", activation: "silu", isBiased: true },
  { taps: 4, channels: 40, dtype: "float32", activation: "silu", spare: 5 },
  { taps: 3, channels: 17, dtype: "float32" },
  { taps: 4, channels: 40, dtype: "float16", activation: "silu" },
  { taps: 4, channels: 40, dtype: "bfloat16", activation: "silu" },
];

type ScanCase = {
  /** Name of a model with such layers. */
  like: string;
  heads: number;
  keyHeads: number;
  keyDim: number;
  valueDim: number;
  dtype: FloatType;
  isDelta?: boolean;
  isNormed?: boolean;
  isSkipping?: boolean;
  isErasing?: boolean;
  /** Format of decays and betas; by default one number of each per head. */
  gates?: "byFeature" | "raw" | "rawByFeature" | "limited" | "normed";
  /** Whether the step has prompts, or one token of many sequences: both have their own kernels for 16-bit types. */
  of?: "prompts" | "tokens";
};

const delta = { isDelta: true, isNormed: true } as const;

/** Numbers of value heads and key heads, and their dimensions. */
type Sizes = [heads: number, keyHeads: number, keyDim: number, valueDim: number];

const scanOf = (
  like: string,
  [heads, keyHeads, keyDim, valueDim]: Sizes,
  options: Partial<ScanCase>,
  dtype: FloatType = "float32",
): ScanCase => ({ like, heads, keyHeads, keyDim, valueDim, dtype, ...options });

const scans: readonly ScanCase[] = [
  scanOf("Qwen3-Next", [4, 2, 128, 128], delta),
  scanOf("Qwen3-Next", [2, 1, 128, 128], { ...delta, gates: "normed" }),
  scanOf("Kimi Linear", [2, 1, 32, 16], { ...delta, gates: "byFeature" }),
  scanOf("OLMo hybrid", [4, 2, 32, 16], { ...delta, gates: "raw" }),
  scanOf("Mamba 2", [4, 2, 64, 24], { isSkipping: true, gates: "limited" }),
  scanOf("Mamba", [6, 1, 16, 1], { isSkipping: true, gates: "rawByFeature" }),
  scanOf("RWKV 7", [2, 2, 64, 64], { isErasing: true, gates: "byFeature" }),
  scanOf("Ling linear", [6, 2, 128, 64], {}),
  ...(["float16", "bfloat16"] as const).flatMap((dtype) => [
    scanOf("Qwen3-Next", [2, 1, 128, 128], { ...delta, gates: "normed" }, dtype),
    scanOf("Qwen3-Next", [2, 1, 128, 128], { ...delta, of: "prompts" }, dtype),
    scanOf("Qwen3-Next", [16, 8, 64, 32], { ...delta, gates: "normed", of: "tokens" }, dtype),
    scanOf("Mamba 2", [4, 2, 64, 24], { isSkipping: true, gates: "limited" }, dtype),
  ]),
];

export function recurrenceChecks(): DeviceCheck[] {
  return [
    ...convolutions.map((each) => ({
      name: `convolution: ${each.channels} channels over ${each.taps} inputs, ${each.dtype}`,
      run: (device: Compute) => checkConvolution(each, device),
    })),
    ...scans.map((each) => ({
      name: `scan${each.of ? ` of ${each.of}` : ""}: as in ${each.like}, ${told(each)}`,
      run: (device: Compute) => checkScan(each, device),
    })),
  ];
}

function told({ heads, keyHeads, keyDim, valueDim, gates, dtype }: ScanCase): string {
  const kind = gates ? `, gates ${gates}` : "";
  return `${heads}/${keyHeads} heads of ${keyDim} and ${valueDim}${kind}, ${dtype}`;
}

const NONE = -1;

/** Chunks and single tokens whose row has no state yet, updates its slot, or reads one slot and writes another. */
const moves: readonly RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 1, from: NONE, to: 4 },
  { first: 2, count: 2, from: 0, to: 1 },
  { first: 4, count: 3, from: NONE, to: 6 },
  { first: 7, count: 34, from: 3, to: 3 },
  { first: 41, count: 3, from: 0, to: 5 },
];

/** Rows of prompts after a single token, so that blocks of 16 and 32 tokens end within the prompts. */
const prompts: readonly RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 15, from: 0, to: 1 },
  { first: 16, count: 64, from: NONE, to: 4 },
  { first: 80, count: 65, from: 0, to: 5 },
];

/** Rows of one token each, enough that each SM of a large GPU gets several heads. */
const tokensOfMany = Array.from({ length: 34 }, (_, first): RowMove => {
  const to = first + 1;
  return { first, count: 1, from: [NONE, to, 0][first % 3]!, to };
});

const slotsOf = (rows: readonly RowMove[]) => 1 + Math.max(...rows.map(({ to }) => to));

const tolerances = { float32: 2e-5, float16: 4e-3, bfloat16: 3e-2 };

function between(key: string, count: number, low: number, high: number): Float32Array {
  return noise(key, count).map((x) => low + ((high - low) * (x + 1)) / 2);
}

function rounded(key: string, shape: number[], dtype: FloatType, factor = 1): MlxArray {
  const count = shape.reduce((a, b) => a * b);
  return astype(
    array(
      noise(key, count).map((x) => factor * x),
      shape,
    ),
    dtype,
  );
}

/** Runs device and reference, each on its own copy of the pool, and compares the results. */
function checkBoth(
  device: Compute,
  pool: Float32Array,
  shape: number[],
  compute: (recurrence: Recurrence, pool: MlxArray) => MlxArray,
  most: number,
  compare: typeof compared = compared,
): Finding[] {
  const run = (by: Recurrence) => {
    const own = array(pool, shape);
    evaluate(own);
    return { output: numbersOf(compute(by, own)), states: numbersOf(own) };
  };
  const expected = run(plainRecurrence);
  const recurrence = device.recurrence();
  try {
    const found = run(recurrence);
    return (["output", "states"] as const).map((what) =>
      compare(what, found[what], expected[what], most),
    );
  } finally {
    recurrence.free();
  }
}

function checkConvolution(each: ConvolutionCase, device: Compute): Finding[] {
  const { taps, channels, dtype, activation, isBiased, spare = 0 } = each;
  const x = rounded("x", [44, spare + channels + 3], dtype);
  const convolution: Convolution = {
    weight: array(noise("taps", taps * channels), [taps, channels]),
    bias: isBiased ? array(noise("bias", channels)) : undefined,
    activation,
    column: spare,
  };
  const slots = slotsOf(moves);
  const pool = between("inputs", slots * (taps - 1) * channels, 50, 100);
  const packed = array(packMoves(moves));
  const shape = [slots, taps - 1, channels];
  return checkBoth(
    device,
    pool,
    shape,
    (by, own) => by.convolve(x, own, packed, convolution),
    tolerances[dtype],
    // Errors are relative to the largest number, because stored inputs are large.
    comparedByPart,
  );
}

function checkScan(each: ScanCase, device: Compute): Finding[] {
  const { heads, keyHeads, keyDim, valueDim, dtype, gates } = each;
  const { isDelta = false, isNormed, isSkipping, isErasing } = each;
  const isPrompts = each.of === "prompts";
  const rows = isPrompts ? prompts : each.of === "tokens" ? tokensOfMany : moves;
  const tokens = rows.reduce((sum, { count }) => sum + count, 0);
  // Values come first, as in Mamba 2, and unused columns last.
  const keys = heads * valueDim;
  const columns = { values: 0, keys, queries: keys + keyHeads * keyDim };
  const end = columns.queries + keyHeads * keyDim;
  const erasing = isErasing ? { find: end, put: end + keyHeads * keyDim } : undefined;
  const width = end + (erasing ? 2 * keyHeads * keyDim : 0) + 8;
  const scan: Scan = {
    keyHeads,
    columns,
    deltaRule: isDelta,
    erasing,
    norm: isNormed
      ? { eps: 1e-6, queryScale: isPrompts ? keyDim ** -0.5 : 1 / keyDim, keyScale: keyDim ** -0.5 }
      : undefined,
    skip: isSkipping ? array(noise("skip", heads)) : undefined,
  };
  const isGiven = gates === undefined || gates === "byFeature";
  const inputs: ScanInputs = {
    // Makes inputs smaller for scans that erase: a state that loses more than it holds would diverge.
    x: rounded("x", [tokens, width], dtype, isErasing ? 0.125 : 1),
    gates: isGiven ? givenGates(each, tokens) : rawGates(each, tokens),
  };
  const shape = [slotsOf(rows), heads, valueDim, keyDim];
  const count = shape.reduce((a, b) => a * b);
  const pool = noise("states", count).map((x) => 2 * x);
  const packed = array(packMoves(rows));
  const most = (gates === "normed" || isPrompts ? 2 : 20) * tolerances[dtype];
  return checkBoth(device, pool, shape, (by, own) => by.scan(inputs, own, packed, scan), most);
}

function givenGates({ heads, keyDim, gates, isNormed, of }: ScanCase, tokens: number): GivenGates {
  const isPrompts = of === "prompts";
  const width = gates === "byFeature" ? heads * keyDim : heads;
  const decays = between("decays", tokens * width, isPrompts ? 0.97 : 0.3, 1);
  // Sets one decay to 0, which forgets the state at once.
  if (isPrompts) decays.fill(0, heads * 40, heads * 40 + 1);
  return {
    decays: array(decays, [tokens, width]),
    // The delta rule diverges if beta times the key's squared norm exceeds 2.
    betas: array(between("betas", tokens * heads, 0, isNormed ? 1 : 0.03), [tokens, heads]),
  };
}

function rawGates({ heads, keyDim, valueDim, dtype, gates }: ScanCase, tokens: number): RawGates {
  const values = heads * valueDim;
  // In the first head exp(step) overflows float32; in the second it nearly vanishes.
  const bias = [120, -12, ...noise("bias", heads)].slice(0, heads);
  const rate = [-0.005, -1, ...between("rate", heads, -1, -0.3)].slice(0, heads);
  const byFeature = gates === "rawByFeature";
  const column = 8;
  const width = 8 * Math.ceil((column + values + 2 * heads + 5) / 8);
  const norm = { weight: rounded("norm", [valueDim], dtype), eps: 1e-3 };
  return {
    raw: rounded("raw", [tokens, width], dtype),
    columns: {
      steps: column + values + heads,
      betas: gates === "limited" || byFeature ? undefined : column + values,
      rate: array(
        byFeature ? between("rates", heads * keyDim, -1, -0.01) : Float32Array.from(rate),
      ),
      bias: array(Float32Array.from(bias)),
      ...(gates === "limited" ? { factor: 0.7, limits: [0.001, 0.5] as const } : {}),
      betaFactor: gates === "raw" ? 1.5 : undefined,
      output: gates === "normed" ? { column, norm } : undefined,
    },
  };
}
