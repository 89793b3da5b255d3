// Stores keys and values in blocks of BLOCK_TOKENS tokens, one pool per layer (paged attention). Layers with the same
// window form a group and share block numbers. Pools are allocated once and written in place by kernels; no MLX
// operation writes to them, so MLX never copies them. A decode step is one launch per layer. A step with prompt
// tokens takes two: one writes all keys and values, then queries attend, with a kernel for chunks if the device has
// one. Otherwise long prompts use MLX's attention over gathered blocks.
import type { Compute, HostTransfer, Memory } from "../../device/device.ts";
import {
  type BlockAttention,
  type LayerWork,
  packTables,
  packTiles,
  type TileSize,
} from "../../kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import type { BlockCopy } from "../../kv/kv-cache.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import { attention } from "../../mlx/fast.ts";
import {
  add,
  arange,
  concatenate,
  expandDims,
  flatten,
  floorDivide,
  greaterEqual,
  lessEqual,
  logicalAnd,
  multiply,
  reshape,
  slice,
  subtract,
  swapAxes,
  take,
} from "../../mlx/ops.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { AttentionOptions, Heads, Step } from "../contract/model.ts";
import { groupsOf, type KvState, type LayerStates } from "../contract/states.ts";
import { distinct, LatentStore, nameOf } from "./latent-store.ts";

/**
 * Consecutive tokens of one sequence, from `start` on, and a block table per group. `isLong`: keys and queries are
 * rotated with longrope's long factors.
 */
export type KvRow = {
  start: number;
  count: number;
  tables: readonly (readonly number[])[];
  isLong?: boolean | undefined;
};

/** Shape of a decode step: width of the tables, and maximum splits per row. */
export type DecodeShape = { width: number; parts: number };

type Pools = { keys: MlxArray; values: MlxArray };

type OnQueries = (queries: MlxArray) => void;

/** Functions of a step that use KV blocks; `attendLatent` only if a layer has latents. */
type PagedStep = Pick<Step, "attend" | "positions"> & Partial<Pick<Step, "attendLatent">>;

/** Pools, kernels and launch options of a layer. */
type Layer = {
  group: number;
  pools: Pools;
  attention: BlockAttention;
  works: Map<AttentionOptions, LayerWork>;
};

/**
 * Minimum width of block tables. Tables have one column per block of the longest sequence, rounded up to few widths.
 * Below 8 elements MLX passes arrays to Metal in another address space.
 */
const LEAST_WIDTH = 8;

/** CTAs (thread blocks) that keep a GPU busy: LONG_BUSY_GROUPS if tables have at least LONG_WIDTH blocks per row. */
const BUSY_GROUPS = 256;
const LONG_WIDTH = 256;
const LONG_BUSY_GROUPS = 512;

/** Minimum tokens per split, if a second launch merges the splits. */
const SPLIT_TOKENS = 256;
const MOST_PARTS = 64;
/** Minimum tokens per split, if the same launch merges the splits: one pass of a CTA. */
const CLUSTER_TOKENS = 64;
const MOST_LATENT_PARTS = 64;

export class PagedKvStore {
  /** Per group, the index of a spare block after the last one: padding rows write there. */
  readonly #scratch: readonly number[];
  readonly #device: Compute & HostTransfer & Memory;
  readonly #layers: Layer[] = [];
  /** Kernels by head counts and sizes. */
  readonly #attentions = new Map<string, BlockAttention>();
  readonly #latents: LatentStore | undefined;
  readonly #fewestKvHeads: number;
  readonly #originalLength: number;

  /** Allocates the pools, with `blocks` per group. Frees them if memory runs out. */
  constructor(
    device: Compute & HostTransfer & Memory,
    states: LayerStates,
    blocks: readonly number[],
    dtype: Dtype,
  ) {
    this.#scratch = blocks;
    this.#device = device;
    const { kvs, latents, originalLength = Number.POSITIVE_INFINITY } = states;
    this.#originalLength = originalLength;
    this.#fewestKvHeads = Math.min(...kvs.map(({ kvHeads }) => kvHeads), ...latents.map(() => 1));
    const groups = groupsOf(states);
    const kept = device.kvType(dtype);
    try {
      for (const state of kvs) {
        using _ = new Scope();
        const group = groups.findIndex((each) => each.kvs.includes(state));
        const { kvHeads, headDim } = state;
        const attention = this.#attentionOf(state, dtype);
        const size = [blocks[group]! + 1, kvHeads, BLOCK_TOKENS, headDim];
        const pools = { keys: device.allocate(size, kept), values: device.allocate(size, kept) };
        evaluate(pools.keys, pools.values);
        hold([pools.keys, pools.values]);
        this.#layers.push({ group, pools, attention, works: new Map() });
      }
      if (latents.length > 0) {
        const group = groups.findIndex((each) => each.latents.length > 0);
        this.#latents = new LatentStore(device, latents, group, blocks[group]! + 1, dtype);
      }
    } catch (error) {
      this.free();
      throw error;
    }
  }

  get bytes(): number {
    return this.#layers.reduce(
      (sum, { pools: { keys, values } }) => sum + keys.bytes + values.bytes,
      this.#latents?.bytes ?? 0,
    );
  }

  /** Makes a padding row, whose blocks are all the scratch block. */
  scratchRow(start: number, count: number): KvRow {
    const blocks = Math.ceil((start + count) / BLOCK_TOKENS);
    return { start, count, tables: this.#scratch.map((block) => Array(blocks).fill(block)) };
  }

  /** Packs one block table per group, in the kernels' layout. */
  tablesOf(rows: readonly KvRow[]): { tables: Int32Array[]; width: number } {
    const width = tableWidth(rows);
    const tables = this.#scratch.map((scratch, group) =>
      packTables(
        rows.map(({ start, count, tables }) => ({ length: start + count, blocks: tables[group]! })),
        width,
        scratch,
      ),
    );
    return { tables, width };
  }

  /** Returns the maximum number of splits per row of a decode step, chosen for the longest row. */
  partsOf(rows: readonly KvRow[]): number {
    const longest = rows.reduce((most, { start }) => Math.max(most, start + 1), 1);
    const parts = Math.min(Math.max(1, Math.floor(longest / SPLIT_TOKENS)), MOST_PARTS);
    const clustered = this.#layers[0]?.attention.clustered;
    if (!clustered || longest < CLUSTER_TOKENS || parts > clustered.splits) {
      return splitsFor(parts, rows.length, this.#fewestKvHeads, busyGroups(tableWidth(rows)));
    }
    // Splits short rows only if all CTAs then run at once; long rows may have more CTAs.
    const busy = parts > 1 ? BUSY_GROUPS : clustered.groups;
    return splitsFor(clustered.splits, rows.length, this.#fewestKvHeads, busy);
  }

  /**
   * Makes a step over these rows. The step's tokens must depend on the last launch that touched the pools, and on
   * `copy`. Call it in a scope: it makes arrays. `onQueries` receives each layer's queries before its attention is
   * built, except in decode steps.
   */
  begin(rows: readonly KvRow[], onQueries?: OnQueries): PagedStep {
    const { spread } = this.#device;
    const isDecode = rows.every((row) => row.count === 1 && this.#showsKind(row));
    if (this.areChunked && !isDecode) {
      return this.chunkStep(this.chunkInputs(rows).map(spread), onQueries);
    }
    const { tables: packed, width } = this.tablesOf(rows);
    const tables = packed.map(spread);
    return isDecode
      ? this.decodeStep(tables, { width, parts: this.partsOf(rows) })
      : this.#mixedStep(rows, tables, onQueries);
  }

  /** Whether `start` alone tells if longrope's long factors apply. At the beginning of a long prompt it does not. */
  #showsKind({ start, isLong = false }: KvRow): boolean {
    return isLong === start >= this.#originalLength;
  }

  /** Whether all layers have a kernel for chunks. Then a step with prompts needs only tokens and packed integers. */
  get areChunked(): boolean {
    // Without block groups, no packed array has the tokens' positions.
    return this.#scratch.length > 0 && this.#layers.every(({ attention }) => attention.chunks);
  }

  /**
   * Packs the integers of a step with prompts: each group's block tables; position, slot and row of each token, per
   * group; tiles of each size. If padded, the number of tiles depends only on the numbers of rows and tokens.
   */
  chunkInputs(rows: readonly KvRow[], isPadded = false): Int32Array[] {
    const tokens = rows.reduce((sum, { count }) => sum + count, 0);
    const places = this.#scratch.map((_, group) => placesOf(rows, group));
    const tiles = this.#tileSizes().map((size) =>
      packTiles(rows, size, isPadded ? (tokens * size.perToken) / size.most + rows.length : 0),
    );
    return [...this.tablesOf(rows).tables, ...places, ...tiles];
  }

  /** Makes a step with prompts from arrays like `chunkInputs`, which may be inputs of a traced function. */
  chunkStep(arrays: readonly MlxArray[], onQueries?: OnQueries): PagedStep {
    const groups = this.#scratch.length;
    const [tables, places] = [arrays.slice(0, groups), arrays.slice(groups, 2 * groups)];
    const names = this.#tileSizes().map(nameOf);
    const tilesOf = (size: TileSize) => arrays[2 * groups + names.indexOf(nameOf(size))]!;
    const attend: Step["attend"] = ({ index }, qkv, heads, options, some) => {
      const layer = this.#layers[index]!;
      const { attention, pools, group } = layer;
      const work = workOf(layer, heads, options);
      const [table, at] = [tables[group]!, places[group]!];
      const queries = attention.prepare(qkv, pools, at, work, some !== undefined);
      onQueries?.(queries);
      if (some) return attendSome(layer, queries, table, at, work, some);
      const chunks = attention.chunks!;
      return chunks.attend(queries, pools, table, at, tilesOf(chunks.tile), work);
    };
    const positions = () => flatten(slice(reshape(places[0]!, [-1, 3]), 1, 0, 1));
    const packed = (group: number) => places[group]!;
    return { attend, positions, ...this.#latents?.mixedStep(tables, packed, tilesOf) };
  }

  /** Returns the distinct tile sizes of the layers' kernels. */
  #tileSizes(): TileSize[] {
    const sizes = this.#layers.map(({ attention }) => attention.chunks?.tile);
    return distinct([...sizes, ...(this.#latents?.tileSizes ?? [])]);
  }

  /** Makes a decode step of one token per row. The tables may be inputs of a traced function. */
  decodeStep(tables: readonly MlxArray[], { width, parts }: DecodeShape): PagedStep {
    return {
      positions: () => newestPositions(tables[0]!, width),
      // Splits down to single blocks, because a CTA takes long for the latents of one block.
      ...this.#latents?.decodeStep(tables, (groups) =>
        splitsFor(Math.min(width, MOST_LATENT_PARTS), groups, 1),
      ),
      attend: ({ index, kvHeads }, qkv, heads, options, some) => {
        const layer = this.#layers[index]!;
        const work = workOf(layer, heads, options);
        const splits = splitsFor(parts, qkv.shape[0]!, kvHeads, busyGroups(width));
        const table = tables[layer.group]!;
        const attended = layer.attention.decode(qkv, layer.pools, table, work, splits);
        return some ? take(attended, some, 0) : attended;
      },
    };
  }

  hasGroup(group: number): boolean {
    return this.#layers.some((layer) => layer.group === group) || this.#latents?.group === group;
  }

  /**
   * Copies blocks in every pool, after `before`: the last array of a step that uses the pools. The next step must
   * depend on the result.
   */
  copy(copies: readonly BlockCopy[], before: MlxArray | undefined): MlxArray {
    const pairsOf = (group: number) => {
      const own = copies.filter((copy) => copy.group === group);
      const listed = this.#device.spread(
        Int32Array.from(own.flatMap(({ from, to }) => [from, to])),
      );
      return before ? this.#device.after(listed, before) : listed;
    };
    const touched = new Map(copies.map(({ group }) => [group, pairsOf(group)]));
    const done = this.#layers.flatMap(({ group, pools: { keys, values }, attention }) => {
      const pairs = touched.get(group);
      return pairs ? [attention.copy(keys, pairs), attention.copy(values, pairs)] : [];
    });
    return concatenate([...done, ...(this.#latents?.copy(touched) ?? [])]);
  }

  #attentionOf({ heads, kvHeads, headDim }: KvState, dtype: Dtype): BlockAttention {
    return this.#attentions.getOrInsertComputed(`${heads} ${kvHeads} ${headDim}`, () =>
      this.#device.attention({ heads, kvHeads, headDim }, dtype),
    );
  }

  #mixedStep(
    rows: readonly KvRow[],
    tables: readonly MlxArray[],
    onQueries: OnQueries | undefined,
  ): PagedStep {
    const { spread } = this.#device;
    const plan = ({ group, attention }: Layer) => {
      const places = spread(placesOf(rows, group));
      const { chunks } = attention;
      const segments = segmentsOf(rows, (row) => this.#methodOf(row, attention)).map(
        (segment, _, all) => {
          const { from, to, method } = segment;
          return {
            ...segment,
            places: all.length === 1 ? places : slice(places, 0, 3 * from, 3 * to),
            tiles: chunks && method === "chunks" && spread(packTiles(segment.rows, chunks.tile)),
          };
        },
      );
      return { places, segments };
    };
    const keyOf = ({ group, attention: { chunks } }: Layer) =>
      `${group} ${chunks && nameOf(chunks.tile)}`;
    /** Kernel inputs, shared by the layers of one group that have the same tile size. */
    const planned = new Map<string, ReturnType<typeof plan>>();
    for (const layer of this.#layers) {
      const key = keyOf(layer);
      if (!planned.has(key)) planned.set(key, plan(layer));
    }
    const attend: Step["attend"] = ({ index }, qkv, heads, options, some) => {
      const layer = this.#layers[index]!;
      const { attention, pools, group } = layer;
      const { places, segments } = planned.get(keyOf(layer))!;
      const work = workOf(layer, heads, options);
      const queries = attention.prepare(qkv, pools, places, work, some !== undefined);
      onQueries?.(queries);
      if (some) return attendSome(layer, queries, tables[group]!, places, work, some);
      const outputs = segments.map(({ from, to, method, rows: own, places: at, tiles }) => {
        const part = segments.length === 1 ? queries : slice(queries, 0, from, to);
        if (attention.chunks && tiles) {
          return attention.chunks.attend(part, pools, tables[group]!, at, tiles, work);
        }
        // Uses our kernel for layers with a soft cap, because MLX's attention has none.
        return method === "mlx" && options.softcap === undefined
          ? this.#attendLong(part, queries, layer, own[0]!, heads, options)
          : attention.attend(part, pools, tables[group]!, at, work);
      });
      return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
    };
    const packed = (group: number) => spread(placesOf(rows, group));
    const positions = () => {
      const each = rows.flatMap(({ start, count }) =>
        Array.from({ length: count }, (_, i) => start + i),
      );
      return spread(Int32Array.from(each));
    };
    const tiles = (size: TileSize) => spread(packTiles(rows, size));
    return { attend, positions, ...this.#latents?.mixedStep(tables, packed, tiles) };
  }

  #methodOf({ start, count }: KvRow, { chunks }: BlockAttention): Method {
    if (chunks) return "chunks";
    return count > 1 && start + count > this.#device.longPrompt ? "mlx" : "tokens";
  }

  /** Attends from a chunk of one prompt (count, heads * D) to the prompt's tokens, back to the window's edge. */
  #attendLong(
    own: MlxArray,
    written: MlxArray,
    { group, pools }: Layer,
    { start, count, tables }: KvRow,
    { heads, kvHeads, headDim }: Heads,
    { scale, sinks, ...sight }: AttentionOptions,
  ): MlxArray {
    const { window } = sight;
    const first = Math.max(0, Math.floor((start + 1 - (window ?? Infinity)) / BLOCK_TOKENS));
    const end = Math.ceil((start + count) / BLOCK_TOKENS);
    const used = this.#device.spread(Int32Array.from(tables[group]!.slice(first, end)));
    // Orders the gather after this step's writes of keys and values.
    const blocks = this.#device.after(used, written);
    const length = start + count - first * BLOCK_TOKENS;
    const gathered = (pool: MlxArray) => {
      const whole = swapAxes(take(pool, blocks, 0), 0, 1); // (kvHeads, blocks, 32, D)
      return slice(reshape(whole, [1, kvHeads, -1, headDim]), 2, 0, length);
    };
    const queries = swapAxes(reshape(own, [1, count, heads, headDim]), 1, 2);
    const isLimited = window !== undefined && length > window;
    const mask = isLimited
      ? causalMask({ first: first * BLOCK_TOKENS, start, end: start + count }, sight)
      : ("causal" as const);
    const [keys, values] = [gathered(pools.keys), gathered(pools.values)];
    const attended = attention(queries, keys, values, { scale, mask, sinks });
    return reshape(swapAxes(attended, 1, 2), [count, heads * headDim]);
  }

  free(): void {
    this.#latents?.free();
    for (const each of this.#attentions.values()) each.free();
    this.#attentions.clear();
    for (const { pools } of this.#layers.splice(0)) {
      pools.keys.free();
      pools.values.free();
    }
  }
}

/** Returns the same object each time for the same `options`, because kernels cache by the object's identity. */
function workOf(
  { works }: Layer,
  { qNorm, kNorm, vNorm, rope, sharesKv }: Heads,
  options: AttentionOptions,
): LayerWork {
  const found = works.get(options);
  if (found) return found;
  const norms = qNorm && {
    query: qNorm.weight,
    key: kNorm?.weight,
    value: vNorm?.weight,
    eps: qNorm.eps,
  };
  const work = { ...options, norms, rope, sharesKv };
  works.set(options, work);
  return work;
}

/** Attends with only `some` (R) of the tokens, each one separately. */
function attendSome(
  { attention, pools }: Layer,
  queries: MlxArray,
  tables: MlxArray,
  places: MlxArray,
  work: LayerWork,
  some: MlxArray,
): MlxArray {
  const own = flatten(take(reshape(places, [-1, 3]), some, 0));
  return attention.attend(take(queries, some, 0), pools, tables, own, work);
}

/**
 * Returns a mask (bool): whether each token of start..end attends to each token of first..end. A token attends to
 * itself and earlier tokens, back to the window's edge.
 */
export function causalMask(
  { first, start, end }: { first: number; start: number; end: number },
  { window, chunked }: Pick<AttentionOptions, "window" | "chunked">,
): MlxArray {
  const rows = expandDims(arange(start, end), 1); // (L, 1)
  const columns = expandDims(arange(first, end), 0); // (1, T)
  const before = lessEqual(columns, rows);
  if (window === undefined) return before;
  const oldest = chunked
    ? multiply(floorDivide(rows, window), window)
    : add(subtract(rows, window), 1);
  return logicalAnd(before, greaterEqual(columns, oldest));
}

/** Reads each row's last position from tables in the layout of `packTables`. */
function newestPositions(tables: MlxArray, width: number): MlxArray {
  const rows = reshape(slice(tables, 0, 1), [-1, 1 + width]);
  return subtract(flatten(slice(rows, 1, 0, 1)), 1);
}

/** Returns the table width for these rows: the blocks of the longest one, rounded up to a power of two. */
export function tableWidth(rows: readonly { start: number; count: number }[]): number {
  const longest = rows.reduce((most, { start, count }) => Math.max(most, start + count), 1);
  const blocks = Math.ceil(longest / BLOCK_TOKENS);
  return Math.max(LEAST_WIDTH, 2 ** Math.ceil(Math.log2(blocks)));
}

/** Like `packPlaces` (position, slot and row of each token), but fast: a prompt may have thousands of tokens. */
function placesOf(rows: readonly KvRow[], group: number): Int32Array {
  const packed = new Int32Array(3 * rows.reduce((sum, { count }) => sum + count, 0));
  let at = 0;
  for (const [row, { start, count, tables, isLong = false }] of rows.entries()) {
    const blocks = tables[group]!;
    const end = start + count;
    for (let position = start; position < end; ) {
      const block = Math.floor(position / BLOCK_TOKENS);
      const next = Math.min(end, (block + 1) * BLOCK_TOKENS);
      const toSlot = (blocks[block]! - block) * BLOCK_TOKENS;
      placeTokens(packed, at, position, next, toSlot, row, isLong);
      at += 3 * (next - position);
      position = next;
    }
  }
  return packed;
}

/**
 * Writes position, slot and row of tokens in one block. This is a separate function because the JIT compiles it after
 * a few blocks; one long loop would stay interpreted.
 */
function placeTokens(
  packed: Int32Array,
  at: number,
  from: number,
  to: number,
  toSlot: number,
  row: number,
  isLong: boolean,
): void {
  for (let position = from; position < to; position++, at += 3) {
    packed[at] = position;
    packed[at + 1] = isLong ? ~(position + toSlot) : position + toSlot;
    packed[at + 2] = row;
  }
}

/** Returns the CTAs that keep a GPU busy with tables of this width. */
function busyGroups(width: number): number {
  return width >= LONG_WIDTH ? LONG_BUSY_GROUPS : BUSY_GROUPS;
}

/** Returns the splits per row: a power of two up to `parts`, and 1 if the rows alone keep the device busy. */
export function splitsFor(
  parts: number,
  rows: number,
  kvHeads: number,
  busy = BUSY_GROUPS,
): number {
  const wanted = Math.floor(busy / (rows * kvHeads));
  return 2 ** Math.floor(Math.log2(Math.max(1, Math.min(parts, wanted))));
}

/** How rows attend: each token separately, a sequence's tokens in chunks, or one prompt with MLX's attention. */
type Method = "tokens" | "chunks" | "mlx";

type Segment = { from: number; to: number; method: Method; rows: KvRow[] };

/** Joins adjacent rows with the same method to segments. A segment with method "mlx" has only one prompt. */
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
