// One shape of attention through all its steps, beside plain arithmetic: tokens that decode, chunks of prompts, layers
// that share keys and values, copies of blocks.
import { expect } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { CpuAttention } from "../../src/kernels/cpu-attention.ts";
import {
  type BlockAttention,
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
} from "../../src/kernels/paged-attention.ts";
import type { Language } from "../../src/kernels/source.ts";
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
import { emulatedKernel } from "./emulated-kernel.ts";
import { makeRandom } from "./random.ts";

const kind = backend();

export type AttentionCase = {
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

export const tolerance = { float32: kind === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };

/** What computes: a CPU's operations, a GPU's kernels, or a GPU's kernels emulated on a CPU. */
export type By = typeof kind | { emulated: Language; make?: MakeKernel };

export function checkAttention(each: AttentionCase, by: By): void {
  const { headDim, kvHeads, headsPerKv, dtype } = each;
  const shape = { heads: kvHeads * headsPerKv, kvHeads, headDim };
  const kernels: BlockAttention =
    by === "cpu"
      ? new CpuAttention(headDim, dtype)
      : typeof by === "object"
        ? new PagedAttention(by.emulated, shape, dtype, by.make ?? emulatedKernel)
        : new PagedAttention(by, shape, dtype);
  try {
    compare(each, by, kernels);
  } finally {
    kernels.free();
  }
}

function compare(each: AttentionCase, by: By, kernels: BlockAttention): void {
  const { headDim, kvHeads, headsPerKv, dtype, normed, valuesNormed, rotaryDims } = each;
  const { splits = 1 } = each;
  const heads = kvHeads * headsPerKv;
  const random = makeRandom(headDim + headsPerKv);
  const number = () => random.below(2001) / 1000 - 1;
  const numbers = (count: number) => Array.from({ length: count }, number);
  // An emulator takes its time. In any case tokens that follow begin in one block and end in the next.
  const [lengths, more, width] =
    typeof by === "object" ? [[1, 29, 90, 131], 12, 5] : [[1, 33, 100, 257], 40, 10];
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
    Array.from({ length: more }, (_, i) => ({ row, position: lengths[row]! + i })),
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
  const few = tokens.filter((_, i) => i % Math.floor(more / 3) === 0);
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
  const grown = lengths.map((length, row) => (row === 1 || row === 2 ? length + more : length));
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
}
