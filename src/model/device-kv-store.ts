// The store of keys and values. Pools are made once and written in place by kernels; no operation of MLX
// ever writes to them, so that it has nothing to copy. A step of decoding rows is one launch a layer.
// With tokens of prompts it takes two: first all keys and values are written, then queries attend, by a kernel
// for chunks where there is one. On other GPUs long prompts attend by MLX's own attention, over keys and
// values gathered from their blocks.
import {
  type BlockAttention,
  type LayerWork,
  packPlaces,
  packTables,
  packTiles,
} from "../kernels/paged-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import { room } from "../mlx/cpu.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { attention } from "../mlx/fast.ts";
import {
  add,
  arange,
  astype,
  concatenate,
  expandDims,
  flatten,
  greater,
  less,
  lessEqual,
  logicalAnd,
  reshape,
  slice,
  subtract,
  swapAxes,
  take,
} from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import type { AttentionOptions, Heads, ModelShape, Step } from "./model.ts";

/** Consecutive tokens of one sequence: from `start` on, in the blocks of its table. */
export type KvRow = { start: number; count: number; table: readonly number[] };

export type BlockCopy = { from: number; to: number };

type Pools = { keys: MlxArray; values: MlxArray };

/** A prompt whose tokens see more than this many goes through MLX's attention, without one for chunks. */
const LONG = 512;

/**
 * Tables are as wide as the longest sequence's, rounded up to few sizes. MLX gives arrays of fewer than 8
 * numbers to Metal in another address space.
 */
const LEAST_WIDTH = 8;

/** Groups of threads that keep a GPU busy. */
const BUSY_GROUPS = 256;

/** A part of a sequence that is worth a group of its own. */
const SPLIT_TOKENS = 256;

export class DeviceKvStore {
  readonly blocks: number;
  /** Behind the pool's: where rows write that only fill a batch up. */
  readonly scratch: number;
  readonly #pools: Pools[];
  readonly #shape: ModelShape;
  readonly #attention: BlockAttention;
  readonly #long: number;
  /** Of each layer. */
  readonly #works: Map<AttentionOptions, LayerWork>[] = [];

  /** The attention is freed with it. */
  constructor(
    shape: ModelShape,
    blocks: number,
    dtype: Dtype,
    attention: BlockAttention,
    long = LONG,
  ) {
    this.blocks = blocks;
    this.scratch = blocks;
    this.#shape = shape;
    this.#attention = attention;
    this.#long = long;
    const size = [blocks + 1, shape.kvHeads, BLOCK_TOKENS, shape.headDim];
    this.#pools = Array.from({ length: shape.layers }, () => {
      using _ = new Scope();
      const pools = { keys: room(size, dtype), values: room(size, dtype) };
      evaluate(pools.keys, pools.values);
      hold([pools.keys, pools.values]);
      return pools;
    });
  }

  get bytes(): number {
    return this.#pools.reduce((sum, { keys, values }) => sum + keys.bytes + values.bytes, 0);
  }

  /** A step over these rows. In a scope: it makes arrays. */
  begin(rows: readonly KvRow[], copies: readonly BlockCopy[]): Step {
    this.#copy(copies);
    const tables = array(tablesOf(rows).tables);
    return rows.every(({ count }) => count === 1)
      ? this.decodeStep(tables, splitsFor(rows, this.#shape.kvHeads))
      : this.#mixedStep(rows, tables);
  }

  /** One token each. The tables may be the input of a function that is being traced. */
  decodeStep(tables: MlxArray, splits: number): Step {
    return {
      attend: (layer, qkv, heads, options) => {
        const work = this.#work(layer, heads, options);
        return this.#attention.decode(qkv, this.#pools[layer]!, tables, work, splits);
      },
    };
  }

  #mixedStep(rows: readonly KvRow[], tables: MlxArray): Step {
    const tokens = rows.flatMap(({ start, count, table }, row) =>
      Array.from({ length: count }, (_, i) => {
        const position = start + i;
        const block = table[Math.floor(position / BLOCK_TOKENS)]!;
        return { position, slot: block * BLOCK_TOKENS + (position % BLOCK_TOKENS), row };
      }),
    );
    const places = array(packPlaces(tokens));
    const { chunks } = this.#attention;
    const segments = segmentsOf(rows, (row) => this.#wayOf(row)).map((segment, _, all) => {
      const { from, to, way } = segment;
      return {
        ...segment,
        places: all.length === 1 ? places : array(packPlaces(tokens.slice(from, to))),
        tiles: chunks && way === "chunks" && array(packTiles(segment.rows, chunks.tileTokens)),
      };
    });
    const attend: Step["attend"] = (layer, qkv, heads, options) => {
      const pools = this.#pools[layer]!;
      const work = this.#work(layer, heads, options);
      const queries = this.#attention.prepare(qkv, pools, places, work);
      const outputs = segments.map(({ from, to, way, rows: own, places: at, tiles }) => {
        const part = segments.length === 1 ? queries : slice(queries, 0, from, to);
        if (chunks && tiles) return chunks.attend(part, pools, tables, at, tiles, work);
        // MLX's attention has no soft cap.
        return way === "mlx" && options.softcap === undefined
          ? this.#attendLong(part, queries, pools, own[0]!, heads, options)
          : this.#attention.attend(part, pools, tables, at, work);
      });
      return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
    };
    return { attend };
  }

  #wayOf({ start, count }: KvRow): Way {
    if (this.#attention.chunks) return "chunks";
    return count > 1 && start + count > this.#long ? "mlx" : "tokens";
  }

  /** A chunk of one prompt (count, heads * D) over all that its sequence has. */
  #attendLong(
    own: MlxArray,
    written: MlxArray,
    pools: Pools,
    { start, count, table }: KvRow,
    { heads, kvHeads, headDim }: Heads,
    { scale, window, sinks }: AttentionOptions,
  ): MlxArray {
    const length = start + count;
    const used = array(Int32Array.from(table.slice(0, Math.ceil(length / BLOCK_TOKENS))));
    // What is gathered must have been written.
    const blocks = behind(used, written);
    const gathered = (pool: MlxArray) => {
      const whole = swapAxes(take(pool, blocks, 0), 0, 1); // (kvHeads, blocks, 32, D)
      return slice(reshape(whole, [1, kvHeads, -1, headDim]), 2, 0, length);
    };
    const queries = swapAxes(reshape(own, [1, count, heads, headDim]), 1, 2);
    const isLimited = window !== undefined && length > window;
    const mask = isLimited ? causalMask(start, count, length, window) : ("causal" as const);
    const [keys, values] = [gathered(pools.keys), gathered(pools.values)];
    const attended = attention(queries, keys, values, { scale, mask, sinks });
    return reshape(swapAxes(attended, 1, 2), [count, heads * headDim]);
  }

  #copy(copies: readonly BlockCopy[]): void {
    if (copies.length === 0) return;
    const pairs = array(Int32Array.from(copies.flatMap(({ from, to }) => [from, to])));
    const done = this.#pools.flatMap(({ keys, values }) => [keys, values]);
    evaluate(...done.map((pool) => this.#attention.copy(pool, pairs)));
  }

  /** One object for the same options: kernels keep what they make of it. */
  #work(layer: number, { qNorm, kNorm, rope: turn }: Heads, options: AttentionOptions): LayerWork {
    this.#works[layer] ??= new Map();
    const found = this.#works[layer].get(options);
    if (found) return found;
    const norms = qNorm && kNorm && { query: qNorm.weight, key: kNorm.weight, eps: qNorm.eps };
    const work = { ...options, norms, turn };
    this.#works[layer].set(options, work);
    return work;
  }

  free(): void {
    this.#attention.free();
    for (const { keys, values } of this.#pools) {
      keys.free();
      values.free();
    }
  }
}

/** (L, T) bool: a token sees itself and those before it, back to the edge of the window. */
export function causalMask(
  start: number,
  tokens: number,
  length: number,
  window: number | undefined,
): MlxArray {
  const rows = expandDims(arange(start, start + tokens), 1); // (L, 1)
  const columns = expandDims(arange(0, length), 0); // (1, T)
  const before = lessEqual(columns, rows);
  if (window === undefined) return before;
  return logicalAnd(before, greater(columns, subtract(rows, window)));
}

/**
 * The same integers, but not before `before` is there. GPUs order work by the numbers that it takes: they
 * know nothing of what a kernel writes into its inputs, and MLX's own `depends` moves no numbers.
 */
export function behind(integers: MlxArray, before: MlxArray): MlxArray {
  const first = slice(flatten(before), 0, 0, 1);
  // Nothing is less than that, and no number is not either.
  return add(integers, astype(less(first, -Infinity), integers.dtype));
}

/** As the kernels take them. */
export function tablesOf(rows: readonly KvRow[]): { tables: Int32Array; width: number } {
  let longest = 0;
  const packed = rows.map(({ start, count, table }) => {
    longest = Math.max(longest, table.length);
    return { length: start + count, blocks: table };
  });
  const width = Math.max(LEAST_WIDTH, 2 ** Math.ceil(Math.log2(longest)));
  return { tables: packTables(packed, width), width };
}

/** Into how many parts sequences are cut, where there are too few of them to keep the device busy. */
export function splitsFor(rows: readonly KvRow[], kvHeads: number): number {
  const longest = rows.reduce((most, { start }) => Math.max(most, start + 1), 1);
  const most = Math.max(1, Math.floor(longest / SPLIT_TOKENS));
  const wanted = Math.floor(BUSY_GROUPS / (rows.length * kvHeads));
  return 2 ** Math.floor(Math.log2(Math.max(1, Math.min(most, wanted, 16))));
}

/** Each token by itself, many of a sequence together, or a prompt by MLX's attention. */
type Way = "tokens" | "chunks" | "mlx";

type Segment = { from: number; to: number; way: Way; rows: KvRow[] };

/** Neighbours that go the same way are one; MLX's attention takes one prompt at a time. */
function segmentsOf(rows: readonly KvRow[], wayOf: (row: KvRow) => Way): Segment[] {
  const segments: Segment[] = [];
  let at = 0;
  for (const row of rows) {
    const to = at + row.count;
    const way = wayOf(row);
    const last = segments.at(-1);
    if (last && last.way === way && way !== "mlx") {
      last.to = to;
      last.rows.push(row);
    } else segments.push({ from: at, to, way, rows: [row] });
    at = to;
  }
  return segments;
}
