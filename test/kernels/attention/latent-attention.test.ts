// Latent attention beside plain arithmetic: by a CPU's operation, or with `MLX_SERVE_BACKEND=cuda bun test test/kernels`
// by the GPU's kernels. On a CPU some of the CUDA kernels and of the Metal kernels are run too, emulated.
import { describe, expect, test } from "bun:test";
import { backend } from "../../../ffi/native.ts";
import { CpuLatentAttention } from "../../../src/kernels/attention/cpu-attention.ts";
import {
  type LatentAttention,
  LatentKernels,
  type LatentRows,
  type LatentWork,
} from "../../../src/kernels/attention/latent-attention.ts";
import {
  packPlaces,
  packTables,
  packTiles,
} from "../../../src/kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../../src/kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../../../src/mlx/array.ts";
import { attendLatent } from "../../../src/mlx/cpu.ts";
import type { Dtype } from "../../../src/mlx/dtype.ts";
import { rmsNorm } from "../../../src/mlx/fast.ts";
import { astype, zeros } from "../../../src/mlx/ops.ts";
import { Scope } from "../../../src/mlx/scope.ts";
import { PlainLatentAttention } from "../../../src/self-test/plain-latent-attention.ts";
import { emulatedKernel } from "../../support/emulated-kernel.ts";
import { useMlx } from "../../support/mlx.ts";
import { makeRandom } from "../../support/random.ts";

useMlx();
const kind = backend();

type Case = {
  heads: number;
  latent: number;
  rotary: number;
  dtype: "float32" | "float16" | "bfloat16";
  rotated?: boolean;
  splits?: number;
};

const cases: Case[] = [
  ...(["float32", "float16", "bfloat16"] as const).flatMap((dtype) => [
    { heads: 16, latent: 512, rotary: 64, dtype },
    { heads: 20, latent: 64, rotary: 16, dtype, splits: 4 },
  ]),
  ...[1, 3, 9, 33].map((heads) => ({ heads, latent: 40, rotary: 8, dtype: "float32" as const })),
  { heads: 40, latent: 32, rotary: 32, dtype: "float32", splits: 8 },
  { heads: 4, latent: 32, rotary: 16, dtype: "float32", rotated: false },
  ...[16, 32, 128].map((heads) => {
    return { heads, latent: 512, rotary: 64, dtype: "bfloat16" as const, splits: 4 };
  }),
];

const emulated: Case[] = [
  { heads: 16, latent: 512, rotary: 64, dtype: "bfloat16" },
  { heads: 5, latent: 40, rotary: 8, dtype: "float32", splits: 4 },
  { heads: 20, latent: 64, rotary: 16, dtype: "bfloat16", splits: 2 },
  { heads: 2, latent: 32, rotary: 16, dtype: "float32", rotated: false },
  { heads: 20, latent: 48, rotary: 8, dtype: "bfloat16", splits: 2 },
  // By tensor cores.
  { heads: 16, latent: 512, rotary: 64, dtype: "bfloat16", splits: 4 },
  { heads: 5, latent: 64, rotary: 32, dtype: "float16", splits: 16 },
  { heads: 16, latent: 128, rotary: 64, dtype: "float16", rotated: false },
  { heads: 40, latent: 64, rotary: 16, dtype: "bfloat16" },
  { heads: 130, latent: 64, rotary: 64, dtype: "bfloat16", splits: 2 },
];

/** Metal's kernels are the same for all types and numbers of heads: 40 stand for more. */
const emulatedOnMetal: Case[] = [
  ...emulated.map((each) => ({ ...each, heads: Math.min(each.heads, 40) })),
  { heads: 1, latent: 40, rotary: 8, dtype: "float16" },
  { heads: 33, latent: 512, rotary: 64, dtype: "float32" },
];

const tolerance = { float32: kind === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };

const WIDTH = 9;
const POOL_BLOCKS = 40;
const lengths = [1, 33, 100, 257];
const chunks = [
  { start: 0, count: 7 },
  { start: 45, count: 9 },
  { start: 131, count: 1 },
  { start: 30, count: 3 },
];

describe(`latent attention on ${kind}`, () => {
  for (const each of cases) {
    const { dtype } = each;
    const make = () =>
      kind === "cpu" ? new CpuLatentAttention(each, dtype) : new LatentKernels(kind, each, dtype);
    test(`of one token each: ${JSON.stringify(each)}`, () => checkDecode(each, make()), 60_000);
    test(`of chunks: ${JSON.stringify(each)}`, () => checkChunks(each, make()), 60_000);
  }
});

describe.skipIf(kind !== "cpu").each([
  ["CUDA", "cuda", emulated],
  ["Metal", "metal", emulatedOnMetal],
] as const)("latent attention by %s kernels, emulated", (_, language, some) => {
  for (const each of some) {
    const make = () => new LatentKernels(language, each, each.dtype, emulatedKernel);
    test(`of one token each: ${JSON.stringify(each)}`, () => checkDecode(each, make()), 120_000);
    test(`of chunks: ${JSON.stringify(each)}`, () => checkChunks(each, make()), 120_000);
  }
});

function checkDecode(each: Case, attention: LatentAttention): void {
  const rows = lengths.map((length) => ({ start: length - 1, count: 1 }));
  check(each, attention, rows, (by, { rows, pool, tables, work }) =>
    by.decode(rows, pool, tables, work, each.splits),
  );
}

function checkChunks(each: Case, attention: LatentAttention): void {
  check(each, attention, chunks, (by, { rows, pool, tables, places, work }) => {
    const tiles = by.tile && array(packTiles(chunks, by.tile));
    return by.attend(rows, pool, tables, places, work, tiles || undefined);
  });
}

type Inputs = {
  rows: LatentRows;
  pool: MlxArray;
  tables: MlxArray;
  places: MlxArray;
  work: LatentWork;
};

/** Computes the same by both, and compares what comes out and what is in the pool. */
function check(
  { heads, latent, rotary, dtype, rotated = true }: Case,
  attention: LatentAttention,
  rows: readonly { start: number; count: number }[],
  compute: (by: LatentAttention, inputs: Inputs) => MlxArray,
): void {
  using _ = new Scope();
  const dims = latent + rotary;
  const random = makeRandom(heads + dims);
  const numbers = (count: number) =>
    Float32Array.from({ length: count }, () => random.below(2001) / 1000 - 1);
  /** Rounded to dtype, in float32. */
  const rounded = (values: Float32Array, shape: number[], to: Dtype = dtype) =>
    astype(astype(array(values, shape), to), "float32");
  const sequences = rows.map(({ start, count }, row) => {
    // No table is in ascending order.
    const blocks = Array.from({ length: WIDTH }, (_, i) => ((row * WIDTH + i) * 37) % POOL_BLOCKS);
    return { length: start + count, blocks };
  });
  const slotOf = (row: number, position: number) =>
    sequences[row]!.blocks[Math.floor(position / BLOCK_TOKENS)]! * BLOCK_TOKENS +
    (position % BLOCK_TOKENS);
  const tokens = rows.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => {
      return { position: start + i, slot: slotOf(row, start + i), row };
    }),
  );
  /** A slot without a token holds NaN. */
  const before = new Float32Array(POOL_BLOCKS * BLOCK_TOKENS * dims).fill(Number.NaN);
  for (const [row, { start }] of rows.entries())
    for (let position = 0; position < start; position++)
      before.set(numbers(dims), slotOf(row, position) * dims);
  const poolShape = [POOL_BLOCKS, 1, BLOCK_TOKENS, dims];
  const columns = (count: number) =>
    rounded(numbers(tokens.length * count), [tokens.length, count]);
  const absorbed = columns(heads * latent);
  // As products leave them: features of queries that are not rotary, queries, then latents, then others.
  const plain = 6;
  const [stride, first] = [plain + rotary, heads * (plain + rotary)];
  const projected = columns(first + dims + 2);
  const weight = rounded(numbers(latent), [latent]);
  const wavelengths = Float32Array.from({ length: rotary / 2 }, (_, i) => 100 ** (i / 8));
  const rope = { dims: rotary, wavelengths: array(wavelengths), magnitude: 1.1 };
  const inputs = { tables: array(packTables(sequences, WIDTH)), places: array(packPlaces(tokens)) };
  const run = (by: LatentAttention, type: Dtype, kept: Dtype) => {
    const pool = astype(rounded(before, poolShape), kept);
    evaluate(pool);
    const all = astype(projected, type);
    const rows = {
      absorbed: astype(absorbed, type),
      placed: { rows: all, first: plain, stride },
      latents: { rows: all, first },
    };
    const norm = { weight: astype(weight, type), eps: 0.1 };
    const work = {
      scale: dims ** -0.5,
      rope: rotated ? rope : undefined,
      norm: Object.assign((x: MlxArray) => rmsNorm(x, norm.weight, norm.eps), norm),
    };
    const made = compute(by, { rows, pool, work, ...inputs });
    expect(made.dtype).toBe(type);
    evaluate(made);
    const read = (x: MlxArray) => Float64Array.from(astype(x, "float32").numbers());
    return { made: read(made), pool: read(pool) };
  };
  const expected = run(new PlainLatentAttention({ heads, latent, rotary }), "float32", "float32");
  const found = run(attention, dtype, attention instanceof CpuLatentAttention ? "float32" : dtype);
  attention.free();
  expect(expected.made.some(Number.isNaN)).toBeFalse();
  expect(distance(found.made, expected.made)).toBeLessThan(tolerance[dtype]);
  expect(distance(found.pool, expected.pool)).toBeLessThan(tolerance[dtype]);
}

/** The largest difference; a slot may be empty in both. */
function distance(found: Float64Array, expected: Float64Array): number {
  expect(found.length).toBe(expected.length);
  let worst = 0;
  for (let i = 0; i < expected.length; i++) {
    const isEmpty = Number.isNaN(expected[i]) && Number.isNaN(found[i]);
    if (!isEmpty) worst = Math.max(worst, Math.abs(expected[i]! - found[i]!)); // NaN stays NaN
  }
  return worst;
}

describe.skipIf(kind !== "cpu")("the CPU's operation refuses", () => {
  const good = { queries: [2, 3 * 24], latents: [2, 24], pool: [4, 1, 32, 24], layer: 4 + 48 + 4 };
  const refused: [string, Partial<typeof good> & { latent?: number; places?: number }][] = [
    ["the pool is not (blocks, 1, 32, D)", { pool: [4, 2, 32, 24] }],
    ["the pool is not (blocks, 1, 32, D)", { pool: [4, 1, 32, 16] }],
    ["the queries are no whole number of heads a token", { queries: [2, 70] }],
    ["the queries are no whole number of heads a token", { queries: [3, 72] }],
    ["the rotary features are no even number", { latent: 17 }],
    ["the vectors do not fit", { latent: 25 }],
    ["the layer has too few numbers", { layer: 39 }],
    ["the places are not three numbers a token", { places: 5 }],
  ];
  test.each(refused)("%s: %o", (message, change) => {
    using _ = new Scope();
    const all = { ...good, latent: 16, places: 6, ...change };
    const { queries, latents, pool, layer, latent, places } = all;
    const build = () =>
      attendLatent(
        zeros(queries),
        zeros(latents),
        zeros(pool),
        zeros([1 + 2 * 9], "int32"),
        zeros([places], "int32"),
        zeros([layer]),
        { latent, rotated: true },
      );
    expect(build).toThrow(message);
  });
});
