// The kernels against plain arithmetic: a CPU's operations, or with `MLX_SERVE_BACKEND=cuda bun test test/kernels`
// the GPU's kernels. On a CPU some of the CUDA kernels are run too, emulated.
import { describe, expect, test } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { CpuAttention } from "../../src/kernels/cpu-attention.ts";
import {
  type BlockAttention,
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
  packTiles,
} from "../../src/kernels/paged-attention.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import { astype, slice } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import {
  attended,
  type PlainWork,
  prepared,
  preparedValue,
} from "../../src/self-test/plain-attention.ts";
import { emulatedKernel } from "../support/emulated-kernel.ts";
import { useMlx } from "../support/mlx.ts";
import { makeRandom } from "../support/random.ts";

useMlx();
const kind = backend();

type Case = {
  headDim: number;
  kvHeads: number;
  headsPerKv: number;
  dtype: "float32" | "float16" | "bfloat16";
  normed?: boolean;
  rotaryDims?: number;
  /** Of values too; with `normed`. */
  valuesNormed?: boolean;
  splits?: number;
  scores?: Partial<{ window: number; chunked: boolean; softcap: number; sinks: boolean }>;
};

const cases: Case[] = [
  ...[64, 80, 96, 128, 256, 512].flatMap((headDim) =>
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

// Shapes that the GPU kernels do not support.
if (kind === "cpu") {
  cases.push(
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
  );
}

const tolerance = { float32: kind === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };

/** What computes: a CPU's operations, a GPU's kernels, or the CUDA kernels emulated on a CPU. */
type By = typeof kind | "emulated";

describe(`kernels on ${kind}`, () => {
  for (const each of cases) {
    test(JSON.stringify(each), () => check(each, kind));
  }
});

describe.skipIf(kind !== "cpu")("CUDA kernels, emulated", () => {
  const some: Case[] = [
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
  for (const each of some) test(JSON.stringify(each), () => check(each, "emulated"), 120_000);

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

type ChunkCase = Omit<Case, "normed" | "valuesNormed" | "rotaryDims" | "splits">;

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

function check(each: Case, by: By): void {
  const { headDim, kvHeads, headsPerKv, dtype, normed, valuesNormed, rotaryDims } = each;
  const { splits = 1 } = each;
  const heads = kvHeads * headsPerKv;
  const random = makeRandom(headDim + headsPerKv);
  const number = () => random.below(2001) / 1000 - 1;
  const numbers = (count: number) => Array.from({ length: count }, number);
  const lengths = [1, 33, 100, 257];
  const width = 10;
  const blocks = lengths.length * width + 1;
  // No table is in ascending order.
  const tables = Array.from({ length: lengths.length * width }, (_, i) => (i * 37) % (blocks - 1));
  using _ = new Scope();
  const upload = (values: readonly number[], shape: number[]) =>
    astype(array(Float32Array.from(values), shape), dtype);
  /** As the device has them, rounded to dtype. */
  const read = (x: MlxArray) => [...astype(x, "float32").numbers()];
  /** The index of an element. On a CPU the tokens are the last axis of a block of keys. */
  const at = (of: "keys" | "values", block: number, kv: number, slot: number, d: number) => {
    const within = of === "keys" && by === "cpu" ? d * BLOCK_TOKENS + slot : slot * headDim + d;
    return (block * kvHeads + kv) * BLOCK_TOKENS * headDim + within;
  };
  const poolShape = [blocks, kvHeads, BLOCK_TOKENS, headDim];
  const size = poolShape.reduce((a, b) => a * b);
  /** A slot without a token holds NaN. */
  const pool = (of: "keys" | "values") => {
    const filled = Float32Array.from(numbers(size));
    for (const [row, length] of lengths.entries())
      for (let position = length - 1; position < width * BLOCK_TOKENS; position++)
        for (let kv = 0; kv < kvHeads; kv++)
          for (let d = 0; d < headDim; d++) {
            const block = tables[row * width + Math.floor(position / BLOCK_TOKENS)]!;
            filled[at(of, block, kv, position % BLOCK_TOKENS, d)] = Number.NaN;
          }
    const made = array(filled, poolShape);
    return by === "cpu" ? made : astype(made, dtype);
  };
  const pools = { keys: pool("keys"), values: pool("values") };
  evaluate(pools.keys, pools.values);
  const before = { keys: read(pools.keys), values: read(pools.values) };
  const norms = normed && {
    query: upload(numbers(headDim), [headDim]),
    key: upload(numbers(headDim), [headDim]),
    value: valuesNormed ? upload(numbers(headDim), [headDim]) : undefined,
    eps: 1e-5,
  };
  const rope = rotaryDims && {
    dims: rotaryDims,
    wavelengths: array(Float32Array.from({ length: rotaryDims / 2 }, (_, i) => 100 ** (i / 20))),
    magnitude: 1.1,
  };
  const sinks = each.scores?.sinks ? upload(numbers(heads), [heads]) : undefined;
  const { window, chunked, softcap } = each.scores ?? {};
  const work: LayerWork = {
    norms: norms || undefined,
    rope: rope || undefined,
    scale: headDim ** -0.5,
    window,
    chunked,
    softcap,
    sinks,
  };
  const plainWork: PlainWork = {
    norms: norms
      ? {
          query: read(norms.query),
          key: read(norms.key),
          value: norms.value && read(norms.value),
          eps: norms.eps,
        }
      : undefined,
    rope: rope ? { ...rope, wavelengths: read(rope.wavelengths) } : undefined,
  };
  const plainSinks = sinks && read(sinks);
  const shape = { heads, kvHeads, headDim };
  const kernels: BlockAttention =
    by === "cpu"
      ? new CpuAttention(headDim, dtype)
      : by === "emulated"
        ? new PagedAttention("cuda", shape, dtype, emulatedKernel)
        : new PagedAttention(by, shape, dtype);
  const rowsOf = (lengths: readonly number[]) =>
    lengths.map((length, row) => {
      return { length, blocks: tables.slice(row * width, (row + 1) * width) };
    });
  const paged = array(packTables(rowsOf(lengths), width));
  const columns = (heads + 2 * kvHeads) * headDim;

  /** The heads of sequences as the plain pools have them, until a token is placed. */
  const seen = new Map<string, number[][]>();
  const headsOf = (of: "keys" | "values", row: number, kv: number): number[][] => {
    const name = `${of} ${row} ${kv}`;
    const found = seen.get(name);
    if (found) return found;
    const made = Array.from({ length: width * BLOCK_TOKENS }, (_, t) => {
      const block = tables[row * width + Math.floor(t / BLOCK_TOKENS)]!;
      const number = (d: number) => before[of][at(of, block, kv, t % BLOCK_TOKENS, d)]!;
      return Array.from({ length: headDim }, (_, d) => number(d));
    });
    seen.set(name, made);
    return made;
  };

  /** Writes a token's key and value into the plain pools; its queries. */
  const place = (qkv: readonly number[], row: number, position: number): number[][] => {
    seen.clear();
    const head = (index: number) => qkv.slice(index * headDim, (index + 1) * headDim);
    const block = tables[row * width + Math.floor(position / BLOCK_TOKENS)]!;
    for (let kv = 0; kv < kvHeads; kv++) {
      const key = prepared(head(heads + kv), plainWork.norms?.key, position, plainWork);
      const slot = position % BLOCK_TOKENS;
      key.forEach((value, d) => {
        before.keys[at("keys", block, kv, slot, d)] = value;
      });
      preparedValue(head(heads + kvHeads + kv), plainWork).forEach((value, d) => {
        before.values[at("values", block, kv, slot, d)] = value;
      });
    }
    return Array.from({ length: heads }, (_, index) =>
      prepared(head(index), plainWork.norms?.query, position, plainWork),
    );
  };
  const expectedOf = (queries: readonly number[][], row: number, length: number) =>
    queries.flatMap((query, index) => {
      const kv = Math.floor(index / headsPerKv);
      const rows = (of: "keys" | "values") => headsOf(of, row, kv).slice(0, length);
      const sink = plainSinks?.[index];
      return attended(query, rows("keys"), rows("values"), sink, work);
    });
  const close = (found: readonly number[], expected: readonly number[]) => {
    expect(found.length).toBe(expected.length);
    const worst = found.reduce((most, value, i) => {
      const difference = Object.is(value, expected[i]!) ? 0 : Math.abs(value - expected[i]!);
      return Math.max(most, difference); // NaN stays NaN
    }, 0);
    expect(worst).toBeLessThan(tolerance[dtype]);
  };

  // A token each.
  const qkv = upload(numbers(lengths.length * columns), [lengths.length, columns]);
  const rows = read(qkv);
  const found = kernels.decode(qkv, pools, paged, work, splits);
  const result = read(found);
  const expected = lengths.flatMap((length, row) => {
    const queries = place(rows.slice(row * columns, (row + 1) * columns), row, length - 1);
    return expectedOf(queries, row, length);
  });
  close(result, expected);

  // Then some more tokens of two of them, as a prompt has.
  const tokens = [1, 2].flatMap((row) =>
    Array.from({ length: 40 }, (_, i) => ({ row, position: lengths[row]! + i })),
  );
  const chunk = upload(numbers(tokens.length * columns), [tokens.length, columns]);
  const chunkRows = read(chunk);
  const placesOf = (some: typeof tokens) =>
    array(
      packPlaces(
        some.map(({ row, position }) => {
          const block = tables[row * width + Math.floor(position / BLOCK_TOKENS)]!;
          return { position, slot: block * BLOCK_TOKENS + (position % BLOCK_TOKENS), row };
        }),
      ),
    );
  const places = placesOf(tokens);
  const queries = kernels.prepare(chunk, pools, places, work);
  const chunkFound = read(kernels.attend(queries, pools, paged, places, work));
  const placed = tokens.map(({ row, position }, i) =>
    place(chunkRows.slice(i * columns, (i + 1) * columns), row, position),
  );
  close(
    chunkFound,
    tokens.flatMap(({ row, position }, i) => expectedOf(placed[i]!, row, position + 1)),
  );
  // A few of them and a token each as a layer that shares what is there: with queries only.
  const sharing: LayerWork = { ...work, sharesKv: true };
  const few = tokens.filter((_, i) => i % 13 === 0);
  const asked = upload(numbers(few.length * heads * headDim), [few.length, heads * headDim]);
  const askedRows = read(asked);
  const queriesOf = (i: number, position: number) =>
    Array.from({ length: heads }, (_, head) => {
      const from = (i * heads + head) * headDim;
      const query = askedRows.slice(from, from + headDim);
      return prepared(query, plainWork.norms?.query, position, plainWork);
    });
  const fewPlaces = placesOf(few);
  const shared = kernels.prepare(asked, pools, fewPlaces, sharing);
  close(
    read(kernels.attend(shared, pools, paged, fewPlaces, sharing)),
    few.flatMap(({ row, position }, i) => expectedOf(queriesOf(i, position), row, position + 1)),
  );
  const grown = lengths.map((length, row) => (row === 1 || row === 2 ? length + 40 : length));
  const newest = slice(asked, 0, 0, lengths.length);
  const pagedGrown = array(packTables(rowsOf(grown), width));
  close(
    read(kernels.decode(newest, pools, pagedGrown, sharing, splits)),
    grown.flatMap((length, row) => expectedOf(queriesOf(row, length - 1), row, length)),
  );
  close(read(pools.keys), before.keys);
  close(read(pools.values), before.values);

  // And a block copied over another.
  evaluate(kernels.copy(pools.keys, array(Int32Array.of(3, 5))));
  const copied = read(pools.keys);
  const blockSize = kvHeads * BLOCK_TOKENS * headDim;
  expect(copied.slice(5 * blockSize, 6 * blockSize)).toEqual(
    copied.slice(3 * blockSize, 4 * blockSize),
  );
  kernels.free();
}
