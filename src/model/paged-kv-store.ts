// The paged KV store: keys and values in blocks of BLOCK_TOKENS tokens, one pool a layer. Pools are allocated
// once and written in place by kernels; no operation of MLX ever writes to them, so MLX has nothing to
// copy. A decoding step is one launch a layer. With prompt tokens it takes two: first all keys and values
// are written, then queries attend, by a kernel for chunks where the device has one. Elsewhere long
// prompts attend by MLX's own attention, over keys and values gathered from their blocks.
import type { Device } from "../device/device.ts";
import {
  type BlockAttention,
  type LayerWork,
  packPlaces,
  packTables,
  packTiles,
} from "../kernels/paged-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import { bytesOf, type Dtype } from "../mlx/dtype.ts";
import { attention } from "../mlx/fast.ts";
import {
  arange,
  concatenate,
  expandDims,
  greater,
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

/**
 * Tables are as wide as the longest sequence's, rounded up to few sizes. MLX gives arrays of fewer than 8
 * elements to Metal in another address space.
 */
const LEAST_WIDTH = 8;

/** Thread groups that keep a GPU busy. */
const BUSY_GROUPS = 256;

/** A part of a sequence that is worth a thread group of its own. */
const SPLIT_TOKENS = 256;

export class PagedKvStore {
  /** One block behind the pool's: where rows that pad a batch write. */
  readonly scratch: number;
  readonly #device: Device;
  readonly #shape: ModelShape;
  readonly #attention: BlockAttention;
  readonly #pools: Pools[] = [];
  /** Of each layer. */
  readonly #works: Map<AttentionOptions, LayerWork>[] = [];

  /** Frees what it has where memory runs out. */
  constructor(device: Device, shape: ModelShape, blocks: number, dtype: Dtype) {
    this.scratch = blocks;
    this.#device = device;
    this.#shape = shape;
    this.#attention = device.attention(shape, dtype);
    const size = [blocks + 1, shape.kvHeads, BLOCK_TOKENS, shape.headDim];
    const kept = device.kvType(dtype);
    try {
      for (let layer = 0; layer < shape.layers; layer++) {
        using _ = new Scope();
        const pools = { keys: device.allocate(size, kept), values: device.allocate(size, kept) };
        evaluate(pools.keys, pools.values);
        hold([pools.keys, pools.values]);
        this.#pools.push(pools);
      }
    } catch (error) {
      this.free();
      throw error;
    }
  }

  get bytes(): number {
    return this.#pools.reduce((sum, { keys, values }) => sum + keys.bytes + values.bytes, 0);
  }

  /**
   * A step over these rows. Its tokens must be ordered behind the last launch that touched the pools, and
   * behind `copy`. In a scope: it makes arrays.
   */
  begin(rows: readonly KvRow[]): Step {
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

  /**
   * Copies blocks in every pool, not before `before` is there, the last thing that a step on the pools makes.
   * What comes out is there when all copies are done: the next step goes behind it.
   */
  copy(copies: readonly BlockCopy[], before: MlxArray | undefined): MlxArray {
    const listed = array(Int32Array.from(copies.flatMap(({ from, to }) => [from, to])));
    const pairs = before ? this.#device.after(listed, before) : listed;
    const pools = this.#pools.flatMap(({ keys, values }) => [keys, values]);
    return concatenate(pools.map((pool) => this.#attention.copy(pool, pairs)));
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
    const segments = segmentsOf(rows, (row) => this.#methodOf(row)).map((segment, _, all) => {
      const { from, to, method } = segment;
      return {
        ...segment,
        places: all.length === 1 ? places : array(packPlaces(tokens.slice(from, to))),
        tiles: chunks && method === "chunks" && array(packTiles(segment.rows, chunks.tileTokens)),
      };
    });
    const attend: Step["attend"] = (layer, qkv, heads, options) => {
      const pools = this.#pools[layer]!;
      const work = this.#work(layer, heads, options);
      const queries = this.#attention.prepare(qkv, pools, places, work);
      const outputs = segments.map(({ from, to, method, rows: own, places: at, tiles }) => {
        const part = segments.length === 1 ? queries : slice(queries, 0, from, to);
        if (chunks && tiles) return chunks.attend(part, pools, tables, at, tiles, work);
        // MLX's attention has no soft cap.
        return method === "mlx" && options.softcap === undefined
          ? this.#attendLong(part, queries, pools, own[0]!, heads, options)
          : this.#attention.attend(part, pools, tables, at, work);
      });
      return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
    };
    return { attend };
  }

  #methodOf({ start, count }: KvRow): Method {
    if (this.#attention.chunks) return "chunks";
    return count > 1 && start + count > this.#device.longPrompt ? "mlx" : "tokens";
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
    // Blocks are gathered after this step's keys and values are in them.
    const blocks = this.#device.after(used, written);
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

  /** One object for the same options: kernels keep what they make of it. */
  #work(layer: number, { qNorm, kNorm, rope }: Heads, options: AttentionOptions): LayerWork {
    this.#works[layer] ??= new Map();
    const found = this.#works[layer].get(options);
    if (found) return found;
    const norms = qNorm && kNorm && { query: qNorm.weight, key: kNorm.weight, eps: qNorm.eps };
    const work = { ...options, norms, rope };
    this.#works[layer].set(options, work);
    return work;
  }

  free(): void {
    this.#attention.free();
    for (const { keys, values } of this.#pools.splice(0)) {
      keys.free();
      values.free();
    }
  }
}

/** What a block takes in all layers. */
export function blockBytes({ layers, kvHeads, headDim }: ModelShape, kept: Dtype): number {
  return 2 * layers * kvHeads * BLOCK_TOKENS * headDim * bytesOf(kept);
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

/** Into how many parts sequences are split, where there are too few of them to keep the device busy. */
export function splitsFor(rows: readonly KvRow[], kvHeads: number): number {
  const longest = rows.reduce((most, { start }) => Math.max(most, start + 1), 1);
  const most = Math.max(1, Math.floor(longest / SPLIT_TOKENS));
  const wanted = Math.floor(BUSY_GROUPS / (rows.length * kvHeads));
  return 2 ** Math.floor(Math.log2(Math.max(1, Math.min(most, wanted, 16))));
}

/** Each token by itself, many of a sequence together, or a prompt by MLX's attention. */
type Method = "tokens" | "chunks" | "mlx";

type Segment = { from: number; to: number; method: Method; rows: KvRow[] };

/** Neighbours with the same method are one segment; MLX's attention takes one prompt at a time. */
function segmentsOf(rows: readonly KvRow[], methodOf: (row: KvRow) => Method): Segment[] {
  const segments: Segment[] = [];
  let at = 0;
  for (const row of rows) {
    const to = at + row.count;
    const method = methodOf(row);
    const last = segments.at(-1);
    if (last && last.method === method && method !== "mlx") {
      last.to = to;
      last.rows.push(row);
    } else segments.push({ from: at, to, method, rows: [row] });
    at = to;
  }
  return segments;
}
