// Convolutions and scans, by the CPU's operations and by the kernels in the emulator, beside plain arithmetic. Slots
// are filled with large numbers beforehand, so that one that is read and should not be is noticed.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { cpuRecurrence } from "../../src/kernels/cpu-recurrence.ts";
import {
  type Convolution,
  packMoves,
  type Recurrence,
  type RowMove,
  type Scan,
} from "../../src/kernels/recurrence.ts";
import { RecurrenceKernels } from "../../src/kernels/recurrence-kernels.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import { astype } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";
import { plainRecurrence } from "../support/plain-recurrence.ts";
import { makeRandom } from "../support/random.ts";

useMlx();
/** Both compute in the CPU's memory. */
const onCpu = backend() === "cpu";

const NONE = -1;
const SLOTS = 7;

/** Chunks and single tokens, from nothing, in place, and from a slot that stays. */
const moves: RowMove[] = [
  { first: 0, count: 1, from: 2, to: 2 },
  { first: 1, count: 1, from: NONE, to: 4 },
  { first: 2, count: 2, from: 0, to: 1 },
  { first: 4, count: 37, from: 3, to: 3 },
  { first: 41, count: 3, from: 0, to: 5 },
];
const TOKENS = 44;

/** `others`: types beside float32 that the first case is run with, or all cases. */
type Way = { name: string; make: () => Recurrence; others: readonly Dtype[]; isQuick: boolean };
const ways: Way[] = [
  { name: "the CPU's operations", make: () => cpuRecurrence, others: ["bfloat16"], isQuick: true },
  {
    name: "the emulated kernels",
    make: () => new RecurrenceKernels("cuda", emulatedKernel),
    others: ["float16", "bfloat16"],
    isQuick: false,
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

/** By how much the outputs differ, and the slots. */
function difference(
  pool: readonly number[],
  shape: number[],
  compute: (recurrence: Recurrence, pool: MlxArray) => MlxArray,
  recurrence: Recurrence,
): number {
  const made = [recurrence, plainRecurrence].map((way) => {
    const own = array(Float32Array.from(pool), shape);
    evaluate(own);
    const output = compute(way, own);
    evaluate(output);
    return [...astype(output, "float32").numbers(), ...new Float32Array(own.memory())];
  });
  const [found, expected] = made as [number[], number[]];
  expect(found).toHaveLength(expected.length);
  return Math.max(...found.map((each, i) => Math.abs(each - expected[i]!)));
}

const tolerance = (dtype: Dtype) =>
  dtype === "float32" ? 2e-5 : dtype === "float16" ? 4e-3 : 3e-2;

for (const { name, make, others, isQuick } of ways) {
  const typesOf = (index: number): Dtype[] =>
    isQuick || index === 0 ? ["float32", ...others] : ["float32"];
  describe.skipIf(!onCpu)(`a convolution by ${name}`, () => {
    const cases: [number, number, { activation?: "silu"; biased?: boolean }][] = [
      [4, 40, { activation: "silu" }],
      [4, 300, { activation: "silu", biased: true }],
      [3, 17, {}],
      [2, 8, { biased: true }],
    ];
    for (const [index, [taps, channels, options]] of cases.entries()) {
      for (const dtype of typesOf(index)) {
        test(`of ${channels} channels over ${taps} inputs, ${dtype} ${JSON.stringify(options)}`, () => {
          using _ = new Scope();
          const { numbers, rounded } = setUp(taps * channels);
          const x = rounded([TOKENS, channels], dtype);
          const convolution: Convolution = {
            weight: array(numbers(taps * channels), [taps, channels]),
            bias: options.biased ? array(numbers(channels)) : undefined,
            activation: options.activation,
          };
          const shape = [SLOTS, taps - 1, channels];
          const pool = [...numbers(SLOTS * (taps - 1) * channels, 50, 100)];
          const recurrence = make();
          const packed = array(packMoves(moves));
          const error = difference(
            pool,
            shape,
            (way, own) => way.convolve(x, own, packed, convolution),
            recurrence,
          );
          expect(error).toBeLessThan(100 * tolerance(dtype));
          recurrence.free();
        });
      }
    }
  });

  describe.skipIf(!onCpu)(`a scan by ${name}`, () => {
    type Case = { heads: number; keyHeads: number; keyDim: number; valueDim: number } & Partial<{
      deltaRule: boolean;
      normed: boolean;
      byFeature: boolean;
    }>;
    const cases: Case[] = [
      { heads: 4, keyHeads: 2, keyDim: 128, valueDim: 128, deltaRule: true, normed: true },
      { heads: 2, keyHeads: 2, keyDim: 64, valueDim: 40, deltaRule: true, normed: true },
      {
        heads: 2,
        keyHeads: 1,
        keyDim: 32,
        valueDim: 16,
        deltaRule: true,
        normed: true,
        byFeature: true,
      },
      { heads: 6, keyHeads: 2, keyDim: 128, valueDim: 64 },
      { heads: 3, keyHeads: 3, keyDim: 16, valueDim: 8 },
      { heads: 2, keyHeads: 1, keyDim: 96, valueDim: 24, deltaRule: true },
      { heads: 2, keyHeads: 1, keyDim: 256, valueDim: 16, normed: true },
    ];
    for (const [index, { heads, keyHeads, keyDim, valueDim, ...options }] of cases.entries()) {
      for (const dtype of typesOf(index)) {
        const sizes = { heads, keyHeads, keyDim, valueDim };
        test(`${JSON.stringify(sizes)} ${JSON.stringify(options)}, ${dtype}`, () => {
          using _ = new Scope();
          const { numbers, rounded } = setUp(heads * keyDim);
          const { deltaRule = false, normed = false, byFeature = false } = options;
          // Values first, as Mamba 2 has them, and something that is not read.
          const columns = {
            values: 0,
            keys: heads * valueDim,
            queries: heads * valueDim + keyHeads * keyDim,
          };
          const width = columns.queries + keyHeads * keyDim + 3;
          const scan: Scan = {
            keyHeads,
            columns,
            deltaRule,
            norm: normed
              ? { eps: 1e-6, queryScale: 1 / keyDim, keyScale: keyDim ** -0.5 }
              : undefined,
          };
          const decayWidth = byFeature ? heads * keyDim : heads;
          const inputs = {
            x: rounded([TOKENS, width], dtype),
            decays: array(numbers(TOKENS * decayWidth, 0.3, 1), [TOKENS, decayWidth]),
            // The delta rule diverges where beta times the key's square is above 2.
            betas: array(numbers(TOKENS * heads, 0, normed ? 1 : 0.03), [TOKENS, heads]),
          };
          const shape = [SLOTS, heads, valueDim, keyDim];
          const pool = [...numbers(SLOTS * heads * valueDim * keyDim, -2, 2)];
          const recurrence = make();
          const packed = array(packMoves(moves));
          const error = difference(
            pool,
            shape,
            (way, own) => way.scan(inputs, own, packed, scan),
            recurrence,
          );
          expect(error).toBeLessThan(20 * tolerance(dtype));
          recurrence.free();
        });
      }
    }
  });
}

test.skipIf(!onCpu)("the CPU's operations refuse what does not fit", () => {
  using _ = new Scope();
  const zeros = (...shape: number[]) =>
    array(new Float32Array(shape.reduce((a, b) => a * b)), shape);
  const packed = array(packMoves([{ first: 0, count: 2, from: NONE, to: 0 }]));
  const convolve = (x: MlxArray, pool: MlxArray) =>
    cpuRecurrence.convolve(x, pool, packed, { weight: zeros(4, 8) });
  expect(() => convolve(zeros(2, 8), zeros(1, 3, 9))).toThrow("pool");
  expect(() => convolve(zeros(2, 9), zeros(1, 3, 8))).toThrow("fit the weight");
  const scan = (inputs: { x: MlxArray; decays: MlxArray; betas: MlxArray }, keyHeads = 1) =>
    cpuRecurrence.scan(inputs, zeros(1, 2, 4, 8), packed, {
      keyHeads,
      columns: { queries: 0, keys: 8, values: 16 },
      deltaRule: true,
    });
  const good = { x: zeros(2, 24), decays: zeros(2, 2), betas: zeros(2, 2) };
  scan(good);
  expect(() => scan({ ...good, x: zeros(2, 23) })).toThrow("not in the rows");
  expect(() => scan({ ...good, decays: zeros(2, 3) })).toThrow("decay");
  expect(() => scan({ ...good, betas: zeros(3, 2) })).toThrow("beta");
  expect(() => scan(good, 3)).toThrow("multiple");
});
