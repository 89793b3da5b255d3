// The kernels against plain arithmetic: a CPU's operations, or with `MLX_SERVE_BACKEND=cuda bun test test/kernels`
// the GPU's kernels. On a CPU some of the CUDA kernels and all of the Metal kernels are run too, emulated.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
  packTiles,
} from "../../src/kernels/paged-attention.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array } from "../../src/mlx/array.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import { astype } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { attended } from "../../src/self-test/plain-attention.ts";
import { type AttentionCase, checkAttention, tolerance } from "../support/checked-attention.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

useMlx();
const kind = backend();

const cases: AttentionCase[] = [
  ...[64, 80, 96, 128, 192, 256, 512].flatMap((headDim) =>
    (["float32", "float16", "bfloat16"] as const).map((dtype) => ({
      headDim,
      kvHeads: 2,
      headsPerKv: 2,
      dtype,
      rotaryDims: headDim,
    })),
  ),
  ...[1, 3, 4, 7, 8].map((headsPerKv) => ({
    headDim: 64,
    kvHeads: 3,
    headsPerKv,
    dtype: "float32" as const,
  })),
  { headDim: 128, kvHeads: 8, headsPerKv: 2, dtype: "bfloat16", normed: true, rotaryDims: 128 },
  { headDim: 64, kvHeads: 2, headsPerKv: 2, dtype: "float32", normed: true, rotaryDims: 32 },
  { headDim: 64, kvHeads: 2, headsPerKv: 4, dtype: "float32", scores: { window: 40 } },
  { headDim: 64, kvHeads: 2, headsPerKv: 4, dtype: "float32", scores: { softcap: 2 } },
  ...[20, 32, 128].map((window) => {
    const scores = { window, chunked: true };
    return { headDim: 64, kvHeads: 2, headsPerKv: 4, dtype: "float32" as const, scores };
  }),
  { headDim: 64, kvHeads: 2, headsPerKv: 2, dtype: "float32", normed: true, valuesNormed: true },
  {
    headDim: 512,
    kvHeads: 1,
    headsPerKv: 8,
    dtype: "bfloat16",
    normed: true,
    valuesNormed: true,
    rotaryDims: 512,
    splits: 4,
  },
  { headDim: 64, kvHeads: 2, headsPerKv: 4, dtype: "float32", scores: { sinks: true } },
  {
    headDim: 64,
    kvHeads: 2,
    headsPerKv: 8,
    dtype: "float32",
    splits: 4,
    scores: { sinks: true, window: 70 },
  },
  { headDim: 128, kvHeads: 2, headsPerKv: 2, dtype: "float32", splits: 8 },
  // On tensor cores, where there are some.
  ...[1, 7, 16].map((headsPerKv) => {
    return { headDim: 64, kvHeads: 2, headsPerKv, dtype: "bfloat16" as const, rotaryDims: 32 };
  }),
  ...[1, 20, 100].map((window) => {
    return {
      headDim: 128,
      kvHeads: 2,
      headsPerKv: 4,
      dtype: "float16" as const,
      scores: { window },
    };
  }),
  { headDim: 64, kvHeads: 2, headsPerKv: 4, dtype: "float16", scores: { softcap: 2, sinks: true } },
  {
    headDim: 256,
    kvHeads: 2,
    headsPerKv: 4,
    dtype: "float16",
    normed: true,
    splits: 4,
    scores: { sinks: true, window: 70 },
  },
  { headDim: 128, kvHeads: 8, headsPerKv: 2, dtype: "bfloat16", rotaryDims: 128, splits: 8 },
  {
    headDim: 128,
    kvHeads: 2,
    headsPerKv: 5,
    dtype: "bfloat16",
    rotaryDims: 128,
    splits: 4,
    scores: { window: 100, chunked: true },
  },
  { headDim: 16, kvHeads: 2, headsPerKv: 2, dtype: "float32", rotaryDims: 16 },
];

/** Shapes that the GPU kernels do not support. */
const cpuCases: AttentionCase[] = [
  { headDim: 8, kvHeads: 2, headsPerKv: 2, dtype: "float32", rotaryDims: 8 },
  { headDim: 40, kvHeads: 1, headsPerKv: 5, dtype: "float32", rotaryDims: 20 },
  { headDim: 100, kvHeads: 1, headsPerKv: 3, dtype: "float32", normed: true },
  { headDim: 128, kvHeads: 1, headsPerKv: 40, dtype: "float32", scores: { window: 1 } },
  {
    headDim: 64,
    kvHeads: 2,
    headsPerKv: 2,
    dtype: "float32",
    scores: { softcap: 50, window: 33 },
  },
];

describe(`kernels on ${kind}`, () => {
  for (const each of kind === "cpu" ? [...cases, ...cpuCases] : cases) {
    test(JSON.stringify(each), () => checkAttention(each, kind));
  }
});

describe.skipIf(kind !== "cpu")("CUDA kernels, emulated", () => {
  const some: AttentionCase[] = [
    { headDim: 64, kvHeads: 1, headsPerKv: 2, dtype: "float32", normed: true, rotaryDims: 32 },
    { headDim: 128, kvHeads: 1, headsPerKv: 2, dtype: "bfloat16", normed: true, rotaryDims: 128 },
    {
      headDim: 64,
      kvHeads: 1,
      headsPerKv: 7,
      dtype: "float16",
      scores: { window: 20, softcap: 2 },
    },
    {
      headDim: 64,
      kvHeads: 1,
      headsPerKv: 4,
      dtype: "bfloat16",
      splits: 4,
      scores: { sinks: true },
    },
    {
      headDim: 64,
      kvHeads: 1,
      headsPerKv: 2,
      dtype: "bfloat16",
      normed: true,
      valuesNormed: true,
      scores: { window: 50, chunked: true },
    },
    { headDim: 512, kvHeads: 1, headsPerKv: 2, dtype: "bfloat16", normed: true, rotaryDims: 512 },
  ];
  for (const each of some) {
    test(JSON.stringify(each), () => checkAttention(each, { emulated: "cuda" }), 120_000);
  }

  const chunks: ChunkCase[] = [
    { headDim: 64, kvHeads: 1, headsPerKv: 2, dtype: "bfloat16" },
    {
      headDim: 80,
      kvHeads: 1,
      headsPerKv: 3,
      dtype: "float16",
      scores: { window: 50, softcap: 2, sinks: true },
    },
    {
      headDim: 64,
      kvHeads: 1,
      headsPerKv: 2,
      dtype: "bfloat16",
      scores: { window: 50, chunked: true },
    },
  ];
  for (const each of chunks) {
    test(`chunks: ${JSON.stringify(each)}`, () => checkChunks(each, emulatedKernel), 120_000);
  }
});

describe.skipIf(kind !== "cpu")("Metal kernels, emulated", () => {
  for (const each of cases) {
    // More of them take longer and go no other way. What is shared is the same for all types and scores.
    const isPlain = each.dtype === "float32" && each.rotaryDims === each.headDim;
    const sharing = isPlain || each.normed || each.splits !== undefined;
    const few = { ...each, kvHeads: Math.min(each.kvHeads, 2), sharing };
    test(JSON.stringify(few), () => checkAttention(few, { emulated: "metal" }), 120_000);
  }
});

type ChunkCase = Omit<AttentionCase, "normed" | "valuesNormed" | "rotaryDims" | "splits">;

const chunkCases: ChunkCase[] = [
  ...[64, 80, 96, 128, 256].flatMap((headDim) =>
    (["float16", "bfloat16"] as const).map((dtype) => ({
      headDim,
      kvHeads: 2,
      headsPerKv: 2,
      dtype,
    })),
  ),
  ...[1, 7, 8].map((headsPerKv) => {
    return { headDim: 64, kvHeads: 1, headsPerKv, dtype: "bfloat16" as const };
  }),
  ...[1, 20, 100].map((window) => {
    return {
      headDim: 64,
      kvHeads: 2,
      headsPerKv: 3,
      dtype: "float16" as const,
      scores: { window },
    };
  }),
  ...[20, 64, 100].map((window) => {
    const scores = { window, chunked: true };
    return { headDim: 128, kvHeads: 2, headsPerKv: 5, dtype: "bfloat16" as const, scores };
  }),
  { headDim: 64, kvHeads: 2, headsPerKv: 2, dtype: "float16", scores: { softcap: 2 } },
  { headDim: 64, kvHeads: 2, headsPerKv: 2, dtype: "float16", scores: { sinks: true } },
  ...[96, 128, 256].map((headDim) => {
    const scores = { window: 50, softcap: 2, sinks: true };
    return { headDim, kvHeads: 1, headsPerKv: 4, dtype: "bfloat16" as const, scores };
  }),
];

// On tensor cores, which only the CUDA kernels use.
describe.skipIf(kind !== "cuda")("chunks by tensor cores", () => {
  for (const each of chunkCases) {
    test(JSON.stringify(each), () => checkChunks(each));
  }
});

test("tiles with the longest context come first, padded with empty ones", () => {
  const chunks = [
    { start: 0, count: 5 },
    { start: 100, count: 2 },
    { start: 3, count: 8 },
  ];
  const tiles = [5, 2, 11, 4, 7, 4, 4, 1, 0, 4, 0, 0, 0, 0, 0, 0];
  expect([...packTiles(chunks, 4)]).toEqual(tiles);
});

/** Chunks of several sequences, one from its start; none ends at the end of a block or a tile. */
function checkChunks(
  { headDim, kvHeads, headsPerKv, dtype, scores }: ChunkCase,
  make?: MakeKernel,
): void {
  const chunks = [
    { start: 45, count: 83 },
    { start: 0, count: 139 },
    { start: 131, count: 1 },
    { start: 96, count: 33 },
  ];
  const heads = kvHeads * headsPerKv;
  const random = makeRandom(headDim + headsPerKv);
  const numbers = (count: number) =>
    Float32Array.from({ length: count }, () => random.below(4001) / 1000 - 2);
  using _ = new Scope();
  const rounded = (values: Float32Array, shape: number[]) => {
    const made = astype(array(values, shape), dtype);
    return { made, values: Float32Array.from(astype(made, "float32").numbers()) };
  };
  const width = 8;
  const rows = chunks.map(({ start, count }, row) => {
    const blocks = Array.from({ length: width }, (_, i) => ((row * width + i) * 5) % 32);
    return { length: start + count, blocks };
  });
  const slotOf = (row: number, position: number) =>
    rows[row]!.blocks[Math.floor(position / BLOCK_TOKENS)]! * BLOCK_TOKENS +
    (position % BLOCK_TOKENS);
  /** Where a head of a token begins. */
  const at = (row: number, position: number, kv: number) => {
    const slot = slotOf(row, position);
    const block = Math.floor(slot / BLOCK_TOKENS);
    return ((block * kvHeads + kv) * BLOCK_TOKENS + (slot % BLOCK_TOKENS)) * headDim;
  };
  /** A slot without a token holds NaN. */
  const pool = () => {
    const values = new Float32Array(32 * kvHeads * BLOCK_TOKENS * headDim).fill(Number.NaN);
    for (const [row, { length }] of rows.entries())
      for (let position = 0; position < length; position++)
        for (let kv = 0; kv < kvHeads; kv++) values.set(numbers(headDim), at(row, position, kv));
    return rounded(values, [32, kvHeads, BLOCK_TOKENS, headDim]);
  };
  const [keys, values] = [pool(), pool()];
  const tokens = chunks.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => {
      return { position: start + i, slot: slotOf(row, start + i), row };
    }),
  );
  const queries = rounded(numbers(tokens.length * heads * headDim), [
    tokens.length,
    heads * headDim,
  ]);
  const sinks = scores?.sinks ? rounded(numbers(heads), [heads]) : undefined;
  const work: LayerWork = { ...scores, scale: headDim ** -0.5, sinks: sinks?.made };
  const kernels = new PagedAttention("cuda", { heads, kvHeads, headDim }, dtype, make);
  const found = kernels.chunks!.attend(
    queries.made,
    { keys: keys.made, values: values.made },
    array(packTables(rows, width)),
    array(packPlaces(tokens)),
    array(packTiles(chunks, kernels.chunks!.tileTokens)),
    work,
  );
  const result = astype(found, "float32").numbers();
  kernels.free();

  const seen = (of: Float32Array, kv: number) =>
    rows.map(({ length }, row) =>
      Array.from({ length }, (_, position) => [
        ...of.subarray(at(row, position, kv), at(row, position, kv) + headDim),
      ]),
    );
  let worst = 0;
  for (let head = 0; head < heads; head++) {
    const kv = Math.floor(head / headsPerKv);
    const [seenKeys, seenValues] = [seen(keys.values, kv), seen(values.values, kv)];
    for (const [token, { position, row }] of tokens.entries()) {
      const from = (token * heads + head) * headDim;
      const expected = attended(
        [...queries.values.subarray(from, from + headDim)],
        seenKeys[row]!.slice(0, position + 1),
        seenValues[row]!.slice(0, position + 1),
        sinks?.values[head],
        work,
      );
      for (const [d, value] of expected.entries()) {
        const difference = Math.abs(value - result[from + d]!);
        worst = Math.max(worst, difference); // NaN stays NaN
      }
    }
  }
  expect(worst).toBeLessThan(tolerance[dtype]);
}
