// Convolutions and scans, by a GPU's kernels or by the CPU's operations and by the kernels in the emulator, beside plain
// arithmetic. Slots are filled with large numbers beforehand, so that one that is read and should not be is noticed.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { cpuRecurrence } from "../../../src/kernels/recurrence/cpu-recurrence.ts";
import {
  type Convolution,
  type GivenGates,
  packMoves,
  type RawGates,
  type Recurrence,
  type RowMove,
  type Scan,
} from "../../../src/kernels/recurrence/recurrence.ts";
import { RecurrenceKernels } from "../../../src/kernels/recurrence/recurrence-kernels.ts";
import { array, evaluate, type MlxArray } from "../../../src/mlx/array.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { type Language, makeKernel } from "../../../src/mlx/kernel.ts";
import { astype, multiply, swapAxes, zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { plainRecurrence } from "../../../src/self-test/plain-recurrence.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";
import { recordingKernel } from "../../support/recording-kernel.ts";

useMlx();
const kind = backend();

const NONE = -1;
/** So few that each has several heads. */
const LARGE_GROUPS = 3;
const SLOTS = 7;

/**
 * Chunks and single tokens, from nothing, in place, and from a slot that stays. One begins with the last of eight
 * tokens, which a thread may have.
 */
const moves: RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 1, from: NONE, to: 4 },
  { first: 2, count: 2, from: 0, to: 1 },
  { first: 4, count: 3, from: NONE, to: 6 },
  { first: 7, count: 34, from: 3, to: 3 },
  { first: 41, count: 3, from: 0, to: 5 },
];
const TOKENS = 44;

/** Prompts behind a single token: from a slot that stays, from nothing, in place. Blocks of 16 and 32 end in them. */
const prompts: RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 15, from: 0, to: 1 },
  { first: 16, count: 64, from: NONE, to: 4 },
  { first: 80, count: 65, from: 0, to: 5 },
  { first: 145, count: 150, from: 3, to: 3 },
];

/** One token each: from nothing, in place, and from a slot that stays. */
const tokensOfMany: RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 1, from: NONE, to: 4 },
  { first: 2, count: 1, from: 0, to: 1 },
  { first: 3, count: 1, from: 3, to: 3 },
  { first: 4, count: 1, from: NONE, to: 5 },
  { first: 5, count: 1, from: 0, to: 6 },
];

/** `others`: types beside float32 that the first case is run with, or all cases. */
type Way = { name: string; make: () => Recurrence; others: readonly Dtype[]; isQuick: boolean };
const halves = ["float16", "bfloat16"] as const;
const ways: Way[] =
  kind === "cpu"
    ? [
        {
          name: "the CPU's operations",
          make: () => cpuRecurrence,
          others: ["bfloat16"],
          isQuick: true,
        },
        ...(["cuda", "metal"] as const).map((language) => ({
          name: `the emulated ${language} kernels`,
          make: () =>
            new RecurrenceKernels(language, emulatedKernel, language === "cuda" ? LARGE_GROUPS : 0),
          others: halves,
          isQuick: false,
        })),
      ]
    : [
        {
          name: "the GPU's kernels",
          make: () => new RecurrenceKernels(kind, makeKernel, kind === "cuda" ? LARGE_GROUPS : 0),
          others: halves,
          isQuick: true,
        },
      ];

function setUp(seed: number) {
  const random = makeRandom(seed);
  const numbers = (count: number, low = -1, high = 1) =>
    Float32Array.from(
      { length: count },
      () => low + ((high - low) * random.below(10_001)) / 10_000,
    );
  return {
    numbers,
    rounded: (shape: number[], dtype: Dtype) =>
      astype(array(numbers(shape.reduce((a, b) => a * b)), shape), dtype),
  };
}

type Work = (recurrence: Recurrence, pool: MlxArray) => MlxArray;

/** Outputs and slots by plain arithmetic, with which all implementations of a case are compared. */
const plainResults = new Map<string, number[]>();

/** The largest difference of the outputs and slots of `recurrence` from those by plain arithmetic. */
function difference(
  name: string,
  pool: readonly number[],
  shape: number[],
  compute: Work,
  recurrence: Recurrence,
): number {
  const by = (way: Recurrence): number[] => {
    const own = array(Float32Array.from(pool), shape);
    evaluate(own);
    const output = compute(way, own);
    evaluate(output);
    return [...astype(output, "float32").numbers(), ...new Float32Array(own.memory())];
  };
  const found = by(recurrence);
  const expected = plainResults.getOrInsertComputed(name, () => by(plainRecurrence));
  expect(found).toHaveLength(expected.length);
  return Math.max(...found.map((each, i) => Math.abs(each - expected[i]!)));
}

const tolerance = (dtype: Dtype) =>
  dtype === "float32" ? 2e-5 : dtype === "float16" ? 4e-3 : 3e-2;

for (const { name, make, others, isQuick } of ways) {
  const typesOf = (index: number): Dtype[] =>
    isQuick || index === 0 ? ["float32", ...others] : ["float32"];
  describe(`a convolution by ${name}`, () => {
    /** `spare`: columns of a row that are not its channels, before and behind them. */
    type Options = { activation?: "silu"; biased?: boolean; spare?: [number, number] };
    const cases: [number, number, Options][] = [
      [4, 40, { activation: "silu" }],
      [4, 40, { activation: "silu", spare: [5, 13] }],
      [2, 8, { spare: [0, 3] }],
      [4, 300, { activation: "silu", biased: true }],
      [3, 17, {}],
      [2, 8, { biased: true }],
    ];
    for (const [index, [taps, channels, options]] of cases.entries()) {
      for (const dtype of typesOf(index)) {
        const title = `of ${channels} channels over ${taps} inputs, ${dtype} ${JSON.stringify(options)}`;
        test(title, () => {
          using _ = new Scope();
          const { numbers, rounded } = setUp(taps * channels);
          const { spare } = options;
          const width = (spare?.[0] ?? 0) + channels + (spare?.[1] ?? 0);
          const x = rounded([TOKENS, width], dtype);
          const convolution: Convolution = {
            weight: array(numbers(taps * channels), [taps, channels]),
            bias: options.biased ? array(numbers(channels)) : undefined,
            activation: options.activation,
            column: spare?.[0],
          };
          const shape = [SLOTS, taps - 1, channels];
          const pool = [...numbers(SLOTS * (taps - 1) * channels, 50, 100)];
          const recurrence = make();
          const packed = array(packMoves(moves));
          const convolve: Work = (way, own) => way.convolve(x, own, packed, convolution);
          const error = difference(title, pool, shape, convolve, recurrence);
          expect(error).toBeLessThan(100 * tolerance(dtype));
          recurrence.free();
        }, 120_000);
      }
    }
  });

  describe(`a scan by ${name}`, () => {
    type Sizes = [heads: number, keyHeads: number, keyDim: number, valueDim: number];
    type Options = Partial<{
      deltaRule: boolean;
      normed: boolean;
      skip: boolean;
      erases: boolean;
      /** How decays and betas are given; for each head unless it says. */
      gates: "byFeature" | "raw" | "rawByFeature" | "limited" | "normed";
      /** By chunks, or by large groups, where rows have 16 bits. */
      packed: "prompts" | "tokens";
    }>;
    const cases: [Sizes, Options][] = [
      [[2, 1, 128, 128], { deltaRule: true, normed: true, gates: "normed" }],
      [[4, 2, 128, 128], { deltaRule: true, normed: true }],
      [[2, 2, 64, 40], { deltaRule: true, normed: true }],
      [[2, 1, 32, 16], { deltaRule: true, normed: true, gates: "byFeature" }],
      [[6, 2, 128, 64], {}],
      [[3, 3, 16, 8], {}],
      [[2, 1, 96, 24], { deltaRule: true }],
      [[2, 1, 256, 16], { normed: true }],
      [[3, 1, 16, 8], { skip: true }],
      [[4, 2, 32, 16], { deltaRule: true, normed: true, gates: "raw" }],
      [[4, 2, 64, 24], { skip: true, gates: "limited" }],
      [[2, 2, 16, 20], { skip: true, gates: "normed" }],
      // As Mamba has them: a head for each channel.
      [[6, 1, 16, 1], { skip: true, gates: "rawByFeature" }],
      // As RWKV 7 has them.
      [[2, 2, 64, 64], { erases: true, gates: "byFeature" }],
      [[2, 1, 48, 8], { erases: true, gates: "byFeature" }],
      // Too large for a group that has all of a head.
      [[2, 1, 16, 136], { normed: true, gates: "normed" }],
      [[2, 1, 128, 128], { normed: true, gates: "normed", deltaRule: true, packed: "prompts" }],
      [[2, 2, 32, 48], { normed: true, deltaRule: true, packed: "prompts" }],
      [[3, 1, 48, 80], { normed: true, gates: "raw", deltaRule: true, packed: "prompts" }],
      [[2, 1, 64, 16], { normed: true, gates: "limited", deltaRule: true, packed: "prompts" }],
      [[2, 1, 16, 32], { deltaRule: true, packed: "prompts" }],
      [[2, 1, 128, 128], { normed: true, deltaRule: true, gates: "normed", packed: "tokens" }],
      [[3, 3, 32, 16], { deltaRule: true, gates: "normed", packed: "tokens" }],
      [[4, 2, 64, 80], { normed: true, deltaRule: true, gates: "normed", packed: "tokens" }],
    ];
    for (const [index, [[heads, keyHeads, keyDim, valueDim], options]] of cases.entries()) {
      for (const dtype of options.packed ? others : typesOf(index)) {
        const sizes = { heads, keyHeads, keyDim, valueDim };
        const title = `${JSON.stringify(sizes)} ${JSON.stringify(options)}, ${dtype}`;
        test(title, () => {
          using _ = new Scope();
          const { numbers, rounded } = setUp(heads * keyDim);
          const { deltaRule = false, normed = false, skip = false, gates, packed } = options;
          const isPrompts = packed === "prompts";
          const rows = packed === undefined ? moves : isPrompts ? prompts : tokensOfMany;
          const tokens = rows.reduce((sum, { count }) => sum + count, 0);
          const spare = packed ? 8 : 3;
          // Values first, as Mamba 2 has them, and something that is not read.
          const keys = heads * valueDim;
          const columns = { values: 0, keys, queries: keys + keyHeads * keyDim };
          const end = columns.queries + keyHeads * keyDim;
          const erasing = options.erases ? { find: end, put: end + keyHeads * keyDim } : undefined;
          const width = end + (erasing ? 2 * keyHeads * keyDim : 0) + spare;
          const scan: Scan = {
            keyHeads,
            columns,
            deltaRule,
            erasing,
            norm: normed
              ? {
                  eps: 1e-6,
                  queryScale: isPrompts ? keyDim ** -0.5 : 1 / keyDim,
                  keyScale: keyDim ** -0.5,
                }
              : undefined,
            skip: skip ? array(numbers(heads)) : undefined,
          };
          const givenGates = (): GivenGates => {
            const decayWidth = gates === "byFeature" ? heads * keyDim : heads;
            const decays = numbers(tokens * decayWidth, isPrompts ? 0.97 : 0.3, 1);
            // A state that is forgotten at once, or all but.
            if (isPrompts)
              for (const at of [40, 88, 89, 290])
                decays.fill(1e-45 * (at % 2), heads * at, heads * at + 1);
            return {
              decays: array(decays, [tokens, decayWidth]),
              // The delta rule diverges where beta times the key's square is above 2.
              betas: array(numbers(tokens * heads, 0, normed ? 1 : 0.03), [tokens, heads]),
            };
          };
          const rawGates = (): RawGates => {
            const values = heads * valueDim;
            // Of the first head, e to the step is too large for a float; of the second, it is next to nothing.
            const bias = [120, -12, ...numbers(heads)].slice(0, heads);
            const rate = [-0.005, -1, ...numbers(heads, -1, -0.3)].slice(0, heads);
            const byFeature = gates === "rawByFeature";
            const limited = { factor: 0.7, limits: [0.001, 0.5] as const };
            const weight = rounded([valueDim], dtype);
            const column = packed ? 8 : 2;
            const rawWidth = column + values + 2 * heads + 5;
            return {
              raw: rounded([tokens, packed ? Math.ceil(rawWidth / 8) * 8 : rawWidth], dtype),
              columns: {
                steps: column + values + heads,
                betas: gates === "limited" || byFeature ? undefined : column + values,
                rate: array(
                  byFeature ? numbers(heads * keyDim, -1, -0.01) : Float32Array.from(rate),
                ),
                bias: array(Float32Array.from(bias)),
                ...(gates === "limited" ? limited : {}),
                betaFactor: gates === "raw" ? 1.5 : undefined,
                output: gates === "normed" ? { column, norm: { weight, eps: 1e-3 } } : undefined,
              },
            };
          };
          const isGiven = gates === undefined || gates === "byFeature";
          const inputs = {
            // A state that more is taken from than there is grows without end.
            x: multiply(rounded([tokens, width], dtype), options.erases ? 0.125 : 1),
            gates: isGiven ? givenGates() : rawGates(),
          };
          const shape = [SLOTS, heads, valueDim, keyDim];
          const pool = [...numbers(SLOTS * heads * valueDim * keyDim, -2, 2)];
          const recurrence = make();
          const packedMoves = array(packMoves(rows));
          const work: Work = (way, own) => way.scan(inputs, own, packedMoves, scan);
          const error = difference(title, pool, shape, work, recurrence);
          const isClose = gates === "normed" || isPrompts;
          expect(error).toBeLessThan((isClose ? 2 : 20) * tolerance(dtype));
          recurrence.free();
        }, 120_000);
      }
    }
  });
}

const recordedIn = (names: string[]) =>
  recordingKernel(({ name }) => names.push(name.replace(/_\d+$/, "")));

test("prompts are scanned by chunks where a kernel fits, single tokens never", () => {
  using _ = new Scope();
  const scanned = (language: Language, dtype: Dtype, rows: readonly RowMove[], spare = 0) => {
    const names: string[] = [];
    const kernels = new RecurrenceKernels(language, recordedIn(names), LARGE_GROUPS);
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    const [decays, betas] = [zeros([tokens, 2]), zeros([tokens, 2])];
    const inputs = { x: zeros([tokens, 64 + spare], dtype), gates: { decays, betas } };
    kernels.scan(inputs, zeros([SLOTS, 2, 16, 16]), array(packMoves(rows)), {
      keyHeads: 1,
      columns: { queries: 0, keys: 16, values: 32 },
      deltaRule: true,
    });
    kernels.free();
    return names;
  };
  const [chunks, scan] = [["mlx_serve_scan_chunks"], ["mlx_serve_scan"]];
  expect(scanned("cuda", "bfloat16", moves)).toEqual(chunks);
  expect(scanned("cuda", "float16", moves.slice(0, 3))).toEqual(chunks);
  expect(scanned("cuda", "bfloat16", moves.slice(0, 2))).toEqual(scan);
  expect(scanned("cuda", "bfloat16", moves, 3)).toEqual(scan);
  expect(scanned("cuda", "float32", moves)).toEqual(scan);
  expect(scanned("metal", "bfloat16", moves)).toEqual(scan);
});

test("tokens are scanned by large groups where each of these has several heads, and a kernel fits", () => {
  using _ = new Scope();
  const scanned = ({
    language = "cuda" as Language,
    rows = tokensOfMany as readonly RowMove[],
    dtype = "bfloat16" as Dtype,
    keyDim = 32,
    spare = 0,
    groups = LARGE_GROUPS,
    isGated = true,
  } = {}) => {
    const names: string[] = [];
    const kernels = new RecurrenceKernels(language, recordedIn(names), groups);
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    const output = isGated
      ? { column: 0, norm: { weight: zeros([16], dtype), eps: 1e-6 } }
      : undefined;
    const columns = { steps: 32, betas: 34, rate: zeros([2]), bias: zeros([2]), output };
    const inputs = {
      x: zeros([tokens, 2 * keyDim + 32 + spare], dtype),
      gates: { raw: zeros([tokens, 40], dtype), columns },
    };
    kernels.scan(inputs, zeros([SLOTS, 2, 16, keyDim]), array(packMoves(rows)), {
      keyHeads: 1,
      columns: { queries: 0, keys: keyDim, values: 2 * keyDim },
      deltaRule: true,
    });
    kernels.free();
    return names.join();
  };
  expect(scanned()).toBe("mlx_serve_scan_tokens");
  expect(scanned({ dtype: "float16" })).toBe("mlx_serve_scan_tokens");
  // Four heads for each group.
  expect(scanned({ rows: tokensOfMany.slice(0, 5) })).toBe("mlx_serve_scan_heads");
  expect(scanned({ rows: tokensOfMany.slice(0, 5), groups: 2 })).toBe("mlx_serve_scan_tokens");
  expect(scanned({ groups: 0 })).toBe("mlx_serve_scan_heads");
  expect(scanned({ dtype: "float32" })).toBe("mlx_serve_scan_heads");
  expect(scanned({ keyDim: 48 })).toBe("mlx_serve_scan_heads");
  expect(scanned({ spare: 3 })).toBe("mlx_serve_scan_heads");
  expect(scanned({ isGated: false })).toBe("mlx_serve_scan");
  expect(scanned({ rows: moves })).toBe("mlx_serve_scan_chunks");
  expect(scanned({ language: "metal", groups: 0 })).toBe("mlx_serve_scan_heads");
});

test("steps with other tokens and sequences compile no other kernels, but to decode", () => {
  let templates: unknown[] = [];
  const recorded = recordingKernel((_, { template }) => templates.push(template));
  const templatesOf = (rows: readonly RowMove[]) => {
    templates = [];
    using _ = new Scope();
    const kernels = new RecurrenceKernels("cuda", recorded);
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    const packed = array(packMoves(rows));
    const raw = zeros([tokens, 40]);
    kernels.convolve(raw, zeros([SLOTS, 3, 32]), packed, { weight: zeros([4, 32]) });
    const output = { column: 0, norm: { weight: zeros([16]), eps: 1e-6 } };
    const columns = { steps: 0, betas: 2, rate: zeros([2]), bias: zeros([2]), output };
    const inputs = { x: zeros([tokens, 64]), gates: { raw, columns } };
    kernels.scan(inputs, zeros([SLOTS, 2, 16, 16]), packed, {
      keyHeads: 1,
      columns: { queries: 0, keys: 16, values: 32 },
      deltaRule: true,
    });
    kernels.free();
    return templates;
  };
  const prompts = templatesOf(moves);
  expect(prompts).toHaveLength(2);
  expect(templatesOf(moves.slice(0, 3))).toEqual(prompts);
  const decoding = templatesOf(moves.slice(0, 1));
  expect(decoding).toHaveLength(2);
  expect(templatesOf(moves.slice(0, 2))).toEqual(decoding);
});

test.skipIf(kind !== "cpu")("the CPU's operations refuse what does not fit", () => {
  using _ = new Scope();
  const packed = array(packMoves([{ first: 0, count: 2, from: NONE, to: 0 }]));
  const convolve = (x: MlxArray, pool: MlxArray) =>
    cpuRecurrence.convolve(x, pool, packed, { weight: zeros([4, 8]) });
  expect(() => convolve(zeros([2, 8]), zeros([1, 3, 9]))).toThrow("pool");
  expect(() => convolve(zeros([2, 9]), zeros([1, 3, 8]))).toThrow("fit the weight");
  const transposed = swapAxes(zeros([8, 2]), 0, 1);
  expect(() => evaluate(convolve(transposed, zeros([1, 3, 8])))).toThrow("side by side");
  const scan = ({ x, ...gates }: { x: MlxArray } & GivenGates, keyHeads = 1) =>
    cpuRecurrence.scan({ x, gates }, zeros([1, 2, 4, 8]), packed, {
      keyHeads,
      columns: { queries: 0, keys: 8, values: 16 },
      deltaRule: true,
    });
  const good = { x: zeros([2, 24]), decays: zeros([2, 2]), betas: zeros([2, 2]) };
  scan(good);
  expect(() => scan({ ...good, x: zeros([2, 23]) })).toThrow("not in the rows");
  expect(() => scan({ ...good, decays: zeros([2, 3]) })).toThrow("decay");
  expect(() => scan({ ...good, betas: zeros([3, 2]) })).toThrow("beta");
  expect(() => scan(good, 3)).toThrow("multiple");
});
