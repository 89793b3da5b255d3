// One shape of attention through all its steps, beside plain arithmetic: tokens that decode, chunks of prompts, layers
// that share keys and values, copies of blocks.
import { expect } from "bun:test";
import { backend } from "../../ffi/native.ts";
import { CpuAttention } from "../../src/kernels/attention/cpu-attention.ts";
import {
  type BlockAttention,
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
  type WarpgroupChunks,
} from "../../src/kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { Language, MakeKernel } from "../../src/mlx/kernel.ts";
import { astype, slice } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import {
  attended,
  type PlainWork,
  plainRope,
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
  /** Sequences of more tokens are rotated differently. */
  longBeyond?: number;
  /** Of values too; with `normed`. */
  valuesNormed?: boolean;
  splits?: number;
  /** Whether layers that share keys and values are checked too; if it is not said, they are. */
  sharing?: boolean;
  scores?: Partial<{ window: number; chunked: boolean; softcap: number; sinks: boolean }>;
};

export const tolerance = { float32: kind === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };

/** What computes: a CPU's operations, a GPU's kernels, or a GPU's kernels emulated on a CPU. */
export type By = typeof kind | { emulated: Language; make?: MakeKernel; hopper?: WarpgroupChunks };

export function checkAttention(each: AttentionCase, by: By): void {
  const { headDim, kvHeads, headsPerKv, dtype } = each;
  const shape = { heads: kvHeads * headsPerKv, kvHeads, headDim };
  const kernels: BlockAttention =
    by === "cpu"
      ? new CpuAttention(headDim, dtype)
      : typeof by === "object"
        ? new PagedAttention(by.emulated, shape, dtype, by.make ?? emulatedKernel, by.hopper)
        : new PagedAttention(by, shape, dtype);
  try {
    compare(each, by, kernels);
  } finally {
    kernels.free();
  }
}

function compare(each: AttentionCase, by: By, kernels: BlockAttention): void {
  const { headDim, kvHeads, headsPerKv, dtype, normed, valuesNormed, rotaryDims } = each;
  const { splits = 1, longBeyond } = each;
  const heads = kvHeads * headsPerKv;
  const random = makeRandom(headDim + headsPerKv);
  const numbers = (count: number) => {
    const made = new Float32Array(count);
    for (let i = 0; i < count; i++) made[i] = random.below(2001) / 1000 - 1;
    return made;
  };
  // An emulator takes its time. In any case tokens that follow begin in one block and end in the next.
  const [lengths, more, width] =
    typeof by === "object" ? [[1, 29, 126, 64], 7, 5] : [[1, 33, 100, 257], 40, 10];
  const blocks = lengths.length * width + 1;
  // No table is in ascending order.
  const tables = Array.from({ length: lengths.length * width }, (_, i) => (i * 37) % (blocks - 1));
  using _ = new Scope();
  const upload = (values: Float32Array, shape: number[]) => astype(array(values, shape), dtype);
  /** As the device has them, rounded to dtype. */
  const read = (x: MlxArray) => Float64Array.from(astype(x, "float32").numbers());
  /** Where a head of a token begins in a pool. */
  const at = (row: number, position: number, kv: number) => {
    const block = tables[row * width + Math.floor(position / BLOCK_TOKENS)]!;
    return ((block * kvHeads + kv) * BLOCK_TOKENS + (position % BLOCK_TOKENS)) * headDim;
  };
  /** On a CPU the tokens are the last axis of a block of keys. */
  const isTransposed = (of: "keys" | "values") => of === "keys" && by === "cpu";
  const readPool = (of: "keys" | "values") =>
    isTransposed(of) ? transposed(read(pools[of]), headDim, BLOCK_TOKENS) : read(pools[of]);
  const poolShape = [blocks, kvHeads, BLOCK_TOKENS, headDim];
  const size = poolShape.reduce((a, b) => a * b);
  /** A slot without a token holds NaN. */
  const pool = (of: "keys" | "values") => {
    const filled = numbers(size);
    for (const [row, length] of lengths.entries())
      for (let position = length - 1; position < width * BLOCK_TOKENS; position++)
        for (let kv = 0; kv < kvHeads; kv++) {
          const first = at(row, position, kv);
          filled.fill(Number.NaN, first, first + headDim);
        }
    const laidOut = isTransposed(of) ? transposed(filled, BLOCK_TOKENS, headDim) : filled;
    const made = array(laidOut, poolShape);
    return by === "cpu" ? made : astype(made, dtype);
  };
  const pools = { keys: pool("keys"), values: pool("values") };
  evaluate(pools.keys, pools.values);
  const plain = { keys: readPool("keys"), values: readPool("values") };
  const norms = normed && {
    query: upload(numbers(headDim), [headDim]),
    key: upload(numbers(headDim), [headDim]),
    value: valuesNormed ? upload(numbers(headDim), [headDim]) : undefined,
    eps: 1e-5,
  };
  const ropeOf = (dims: number, base: number, magnitude: number) => {
    const wavelengths = Float32Array.from({ length: dims / 2 }, (_, i) => base ** (i / 20));
    return { wavelengths: array(wavelengths), magnitude };
  };
  const rope = rotaryDims && {
    dims: rotaryDims,
    ...ropeOf(rotaryDims, 100, 1.1),
    long: longBeyond ? { ...ropeOf(rotaryDims, 70, 0.9), beyond: longBeyond } : undefined,
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
          query: [...read(norms.query)],
          key: [...read(norms.key)],
          value: norms.value && [...read(norms.value)],
          eps: norms.eps,
        }
      : undefined,
    rope: rope
      ? { ...rope, ...plainRope(rope), long: rope.long && plainRope(rope.long) }
      : undefined,
  };
  const isLong = (length: number) => length > (longBeyond ?? Number.POSITIVE_INFINITY);
  const plainSinks = sinks && read(sinks);
  const rowsOf = (lengths: readonly number[]) =>
    lengths.map((length, row) => {
      return { length, blocks: tables.slice(row * width, (row + 1) * width) };
    });
  const paged = array(packTables(rowsOf(lengths), width));
  const columns = (heads + 2 * kvHeads) * headDim;

  /** The heads of sequences in the plain pools. */
  const seen = new Map<string, Float64Array[]>();
  const headsOf = (of: "keys" | "values", row: number, kv: number): Float64Array[] => {
    const name = `${of} ${row} ${kv}`;
    const found = seen.get(name);
    if (found) return found;
    const made = Array.from({ length: width * BLOCK_TOKENS }, (_, position) => {
      const first = at(row, position, kv);
      return plain[of].subarray(first, first + headDim);
    });
    seen.set(name, made);
    return made;
  };

  /** Writes a token's key and value into the plain pools; its queries. */
  const place = (
    qkv: Float64Array,
    { row, position, isLong }: { row: number; position: number; isLong: boolean },
  ): number[][] => {
    const head = (index: number) => [...qkv.subarray(index * headDim, (index + 1) * headDim)];
    for (let kv = 0; kv < kvHeads; kv++) {
      const key = prepared(head(heads + kv), plainWork.norms?.key, { position, isLong }, plainWork);
      plain.keys.set(key, at(row, position, kv));
      const value = preparedValue(head(heads + kvHeads + kv), plainWork);
      plain.values.set(value, at(row, position, kv));
    }
    return Array.from({ length: heads }, (_, index) =>
      prepared(head(index), plainWork.norms?.query, { position, isLong }, plainWork),
    );
  };
  const expectedOf = (queries: readonly number[][], row: number, length: number) =>
    queries.flatMap((query, index) => {
      const kv = Math.floor(index / headsPerKv);
      const rows = (of: "keys" | "values") => headsOf(of, row, kv).slice(0, length);
      const sink = plainSinks?.[index];
      return attended(query, rows("keys"), rows("values"), sink, work);
    });
  const close = (found: Float64Array, expected: ArrayLike<number>) => {
    expect(found.length).toBe(expected.length);
    let worst = 0;
    for (let i = 0; i < found.length; i++) {
      if (Object.is(found[i], expected[i])) continue;
      worst = Math.max(worst, Math.abs(found[i]! - expected[i]!)); // NaN stays NaN
    }
    expect(worst).toBeLessThan(tolerance[dtype]);
  };

  // A token each.
  const qkv = upload(numbers(lengths.length * columns), [lengths.length, columns]);
  const rows = read(qkv);
  const found = kernels.decode(qkv, pools, paged, work, splits);
  const result = read(found);
  const expected = lengths.flatMap((length, row) => {
    const token = { row, position: length - 1, isLong: isLong(length) };
    const queries = place(rows.subarray(row * columns, (row + 1) * columns), token);
    return expectedOf(queries, row, length);
  });
  close(result, expected);

  // Then some more tokens of two of them, as a prompt has.
  const tokens = [1, 2].flatMap((row) => {
    const end = lengths[row]! + more;
    return Array.from({ length: more }, (_, i) => {
      return { row, position: lengths[row]! + i, isLong: isLong(end) };
    });
  });
  const chunk = upload(numbers(tokens.length * columns), [tokens.length, columns]);
  const chunkRows = read(chunk);
  const placesOf = (some: typeof tokens) =>
    array(
      packPlaces(
        some.map(({ row, position, isLong }) => {
          const block = tables[row * width + Math.floor(position / BLOCK_TOKENS)]!;
          return { position, slot: block * BLOCK_TOKENS + (position % BLOCK_TOKENS), row, isLong };
        }),
      ),
    );
  const places = placesOf(tokens);
  const queries = kernels.prepare(chunk, pools, places, work);
  const chunkFound = read(kernels.attend(queries, pools, paged, places, work));
  const placed = tokens.map((token, i) =>
    place(chunkRows.subarray(i * columns, (i + 1) * columns), token),
  );
  close(
    chunkFound,
    tokens.flatMap(({ row, position }, i) => expectedOf(placed[i]!, row, position + 1)),
  );
  if (each.sharing !== false) checkSharing();
  close(readPool("keys"), plain.keys);
  close(readPool("values"), plain.values);

  // And a block copied over another.
  evaluate(kernels.copy(pools.keys, array(Int32Array.of(3, 5))));
  const blockSize = kvHeads * BLOCK_TOKENS * headDim;
  plain.keys.copyWithin(5 * blockSize, 3 * blockSize, 4 * blockSize);
  close(readPool("keys"), plain.keys);

  /** A few of the tokens and a token each as a layer that shares what is there: with queries only. */
  function checkSharing() {
    const sharing: LayerWork = { ...work, sharesKv: true };
    const few = tokens.filter((_, i) => i % Math.ceil(more / 2) === 0);
    const asked = upload(numbers(few.length * heads * headDim), [few.length, heads * headDim]);
    const askedRows = read(asked);
    const queriesOf = (i: number, token: { position: number; isLong: boolean }) =>
      Array.from({ length: heads }, (_, head) => {
        const from = (i * heads + head) * headDim;
        const query = [...askedRows.subarray(from, from + headDim)];
        return prepared(query, plainWork.norms?.query, token, plainWork);
      });
    const fewPlaces = placesOf(few);
    const shared = kernels.prepare(asked, pools, fewPlaces, sharing);
    close(
      read(kernels.attend(shared, pools, paged, fewPlaces, sharing)),
      few.flatMap((token, i) => expectedOf(queriesOf(i, token), token.row, token.position + 1)),
    );
    const grown = lengths.map((length, row) => (row === 1 || row === 2 ? length + more : length));
    const newest = slice(asked, 0, 0, lengths.length);
    const pagedGrown = array(packTables(rowsOf(grown), width));
    close(
      read(kernels.decode(newest, pools, pagedGrown, sharing, splits)),
      grown.flatMap((length, row) => {
        const token = { position: length - 1, isLong: isLong(length) };
        return expectedOf(queriesOf(row, token), row, length);
      }),
    );
  }
}

/** Each of the matrices (rows, columns) in it. */
function transposed<T extends Float32Array | Float64Array>(
  from: T,
  rows: number,
  columns: number,
): T {
  const made = from.slice() as T;
  for (let first = 0; first < from.length; first += rows * columns)
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) made[first + c * rows + r] = from[first + r * columns + c]!;
  return made;
}
