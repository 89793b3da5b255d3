// Where keys and values live: blocks of BLOCK_TOKENS tokens, in one pool a layer. Two stores behind one
// interface, chosen when the model is loaded. They differ in how a step's new rows get into the blocks:
//
//   host (CPU)     the pools are constants of the graph, whose memory TypeScript writes to after the step
//   device (GPU)   the pools are replaced by ones with the new rows scattered in, as part of the step
//
// The past is gathered from its blocks, the present never leaves the graph: scores of both are computed
// apart and meet in the softmax, so that the gathered past is not copied again to append to it.
import type { Backend } from "../../ffi/native.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import { type Dtype, hostArrays } from "../mlx/dtype.ts";
import {
  add,
  arange,
  broadcastTo,
  concatenate,
  contiguous,
  divide,
  expandDims,
  greater,
  greaterEqual,
  isFinite,
  less,
  logicalAnd,
  matmul,
  multiply,
  reshape,
  scatter,
  slice,
  softmax,
  subtract,
  swapAxes,
  take,
  tanh,
  transpose,
  where,
  zeros,
} from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import type { AttentionOptions, ModelShape, Step } from "./model.ts";

/** Consecutive tokens of one sequence: from `start` on, in the blocks of its table. */
export type KvRow = { start: number; count: number; table: readonly number[] };

export type BlockCopy = { from: number; to: number };

export interface KvStore {
  readonly blocks: number;
  readonly bytes: number;
  /** A step over these rows. In a scope: it makes arrays. */
  begin(rows: readonly KvRow[], copies: readonly BlockCopy[]): PagedStep;
  free(): void;
}

export interface PagedStep extends Step {
  /** What must be evaluated with the step's result. */
  readonly pending: readonly MlxArray[];
  /** After that: the new keys and values are in their blocks. */
  commit(): void;
  /** Instead of `commit`, where the step could not be evaluated. */
  abandon(): void;
}

export function makeKvStore(
  shape: ModelShape,
  blocks: number,
  dtype: Dtype,
  backend: Backend,
): KvStore {
  return backend === "cpu"
    ? new HostKvStore(shape, blocks, dtype)
    : new DeviceKvStore(shape, blocks, dtype);
}

/** (kvHeads, blocks, BLOCK_TOKENS, D) */
type Pool = MlxArray;

function makePools({ layers, kvHeads, headDim }: ModelShape, blocks: number, dtype: Dtype): Pool[] {
  return Array.from({ length: layers }, () => {
    using _ = new Scope();
    const pool = zeros([kvHeads, blocks, BLOCK_TOKENS, headDim], dtype);
    pool.evaluate();
    return hold(pool);
  });
}

class HostKvStore implements KvStore {
  readonly blocks: number;
  readonly #keys: Pool[];
  readonly #values: Pool[];
  readonly #shape: ModelShape;

  constructor(shape: ModelShape, blocks: number, dtype: Dtype) {
    this.blocks = blocks;
    this.#shape = shape;
    this.#keys = makePools(shape, blocks, dtype);
    this.#values = makePools(shape, blocks, dtype);
  }

  get bytes(): number {
    return [...this.#keys, ...this.#values].reduce((sum, pool) => sum + pool.bytes, 0);
  }

  begin(rows: readonly KvRow[], copies: readonly BlockCopy[]): PagedStep {
    for (const pool of [...this.#keys, ...this.#values]) this.#copyBlocks(pool, copies);
    const layout = new StepLayout(rows, this.#shape);
    const pending: MlxArray[] = [];
    return {
      positions: layout.positions,
      pending,
      attend: (layer, q, k, v, options) => {
        const [keys, values] = [contiguous(layout.split(k)), contiguous(layout.split(v))];
        pending.push(...hold([keys, harmless(values)]));
        const past = { keys: this.#keys[layer]!, values: this.#values[layer]! };
        return layout.attend(q, past, { keys, values }, options);
      },
      commit: () => {
        pending.forEach((rowsOfLayer, i) => {
          const pools = i % 2 === 0 ? this.#keys : this.#values;
          writeRows(pools[i >> 1]!, rowsOfLayer, rows);
        });
        free(pending);
      },
      abandon: () => free(pending),
    };
  }

  #copyBlocks(pool: Pool, copies: readonly BlockCopy[]): void {
    if (copies.length === 0) return;
    const { kvHeads, headDim } = this.#shape;
    const memory = new hostArrays[pool.dtype](pool.memory());
    const size = BLOCK_TOKENS * headDim;
    for (const { from, to } of copies) {
      for (let head = 0; head < kvHeads; head++) {
        const at = (block: number) => (head * this.blocks + block) * size;
        memory.copyWithin(at(to), at(from), at(from) + size);
      }
    }
  }

  free(): void {
    free(this.#keys);
    free(this.#values);
  }
}

/** Copies (kvHeads, T, D) into the blocks of their rows, as many tokens at a time as share a block. */
function writeRows(pool: Pool, source: MlxArray, rows: readonly KvRow[]): void {
  const [kvHeads, blocks, , headDim] = pool.shape as [number, number, number, number];
  const tokens = source.shape[1]!;
  const from = new hostArrays[source.dtype](source.memory()) as Float32Array;
  const to = new hostArrays[pool.dtype](pool.memory()) as Float32Array;
  let row = 0;
  for (const { start, count, table } of rows) {
    for (let at = start; at < start + count; ) {
      const within = at % BLOCK_TOKENS;
      const length = Math.min(BLOCK_TOKENS - within, start + count - at);
      const block = table[Math.floor(at / BLOCK_TOKENS)]!;
      for (let head = 0; head < kvHeads; head++) {
        const source = (head * tokens + row) * headDim;
        const target = ((head * blocks + block) * BLOCK_TOKENS + within) * headDim;
        to.set(from.subarray(source, source + length * headDim), target);
      }
      at += length;
      row += length;
    }
  }
}

class DeviceKvStore implements KvStore {
  readonly blocks: number;
  readonly #keys: Pool[];
  readonly #values: Pool[];
  readonly #shape: ModelShape;

  constructor(shape: ModelShape, blocks: number, dtype: Dtype) {
    this.blocks = blocks;
    this.#shape = shape;
    this.#keys = makePools(shape, blocks, dtype);
    this.#values = makePools(shape, blocks, dtype);
  }

  get bytes(): number {
    return [...this.#keys, ...this.#values].reduce((sum, pool) => sum + pool.bytes, 0);
  }

  begin(rows: readonly KvRow[], copies: readonly BlockCopy[]): PagedStep {
    const layout = new StepLayout(rows, this.#shape);
    const slots = array(Int32Array.from(rows.flatMap(slotsOf)));
    const sources = array(Int32Array.from(copies, ({ from }) => from));
    const targets = array(Int32Array.from(copies, ({ to }) => to));
    // The pools as the step leaves them, in place of those before it once it has been evaluated.
    const replaced: { pools: Pool[]; layer: number; pool: Pool }[] = [];
    const replace = (pools: Pool[], layer: number, pool: Pool, fresh: MlxArray) => {
      replaced.push({ pools, layer, pool: hold(scatterRows(pool, slots, fresh)) });
    };
    return {
      positions: layout.positions,
      get pending() {
        return replaced.map(({ pool }) => pool);
      },
      attend: (layer, q, k, v, options) => {
        const [keys, values] = [layout.split(k), layout.split(v)];
        const copied = (pool: Pool) =>
          copies.length > 0 ? copyBlocks(pool, sources, targets) : pool;
        const past = { keys: copied(this.#keys[layer]!), values: copied(this.#values[layer]!) };
        replace(this.#keys, layer, past.keys, keys);
        replace(this.#values, layer, past.values, harmless(values));
        return layout.attend(q, past, { keys, values }, options);
      },
      commit: () => {
        for (const { pools, layer, pool } of replaced) {
          pools[layer]!.free();
          pools[layer] = pool;
        }
      },
      abandon: () => free(replaced.map(({ pool }) => pool)),
    };
  }

  free(): void {
    free(this.#keys);
    free(this.#values);
  }
}

/**
 * Values as they are kept. A block is read whole, and what a row does not see of it has the weight 0:
 * but 0 times infinity is no number, so one sequence's would spoil the next that gets the block.
 */
function harmless(values: MlxArray): MlxArray {
  return where(isFinite(values), values, 0);
}

/** The places of a row's tokens, counted through the blocks. */
function slotsOf({ start, count, table }: KvRow): number[] {
  return Array.from({ length: count }, (_, i) => {
    const at = start + i;
    return table[Math.floor(at / BLOCK_TOKENS)]! * BLOCK_TOKENS + (at % BLOCK_TOKENS);
  });
}

function scatterRows(pool: Pool, slots: MlxArray, rows: MlxArray): Pool {
  const [kvHeads, blocks, , headDim] = pool.shape as [number, number, number, number];
  const flat = reshape(pool, [kvHeads, blocks * BLOCK_TOKENS, headDim]);
  const updates = expandDims(swapAxes(rows, 0, 1), 2); // (T, kvHeads, 1, D)
  return reshape(scatter(flat, slots, updates, 1), pool.shape);
}

function copyBlocks(pool: Pool, sources: MlxArray, targets: MlxArray): Pool {
  const blocks = take(pool, sources, 1); // (kvHeads, C, BLOCK_TOKENS, D)
  return scatter(pool, targets, expandDims(swapAxes(blocks, 0, 1), 2), 1);
}

function free(arrays: readonly MlxArray[]): void {
  for (const each of arrays) each.free();
}

type KeysValues = { keys: MlxArray; values: MlxArray };

/** Rows that are computed together: `batch` sequences, each with `count` tokens, from row `at` on. */
type Group = {
  at: number;
  batch: number;
  count: number;
  /** Blocks of the past (batch * width), and how many of their tokens are real (batch). */
  tables: MlxArray | undefined;
  width: number;
  starts: MlxArray; // (batch, 1)
};

/** What a step's rows mean for attention. */
class StepLayout {
  readonly positions: MlxArray; // (T)
  readonly #groups: Group[];
  readonly #shape: ModelShape;

  constructor(rows: readonly KvRow[], shape: ModelShape) {
    this.#shape = shape;
    this.positions = array(
      Int32Array.from(
        rows.flatMap(({ start, count }) => Array.from({ length: count }, (_, i) => start + i)),
      ),
    );
    this.#groups = groupRows(rows);
  }

  /** x (T, heads, D) -> (heads, T, D) */
  split(x: MlxArray): MlxArray {
    return swapAxes(x, 0, 1);
  }

  /** q (T, heads, D), present (kvHeads, T, D) -> (T, heads * D) */
  attend(q: MlxArray, past: KeysValues, present: KeysValues, options: AttentionOptions): MlxArray {
    const outputs = this.#groups.map((group) =>
      this.#attendGroup(group, q, past, present, options),
    );
    return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
  }

  #attendGroup(
    { at, batch, count, tables, width, starts }: Group,
    q: MlxArray,
    past: KeysValues,
    present: KeysValues,
    { scale, window, sinks, softcap }: AttentionOptions,
  ): MlxArray {
    const { kvHeads, headDim } = this.#shape;
    const tokens = batch * count;
    const group = q.shape[1]! / kvHeads;
    // All queries that share keys stand in one matrix: (kvHeads, batch, group * count, D).
    const part = reshape(slice(q, 0, at, at + tokens), [batch, count, kvHeads, group, headDim]);
    const queries = reshape(multiply(transpose(part, [2, 0, 3, 1, 4]), scale), [
      kvHeads,
      batch,
      group * count,
      headDim,
    ]);
    const fresh = (x: MlxArray) =>
      reshape(slice(x, 1, at, at + tokens), [kvHeads, batch, count, headDim]);
    const gathered = (pool: Pool) =>
      reshape(take(pool, tables!, 1), [kvHeads, batch, width * BLOCK_TOKENS, headDim]);
    const cap = (scores: MlxArray) =>
      softcap === undefined ? scores : multiply(tanh(divide(scores, softcap)), softcap);
    // Scores as (kvHeads, batch, group, count, keys), so that masks fit.
    const scoresOf = (keys: MlxArray, allowed: MlxArray | undefined) => {
      const product = cap(matmul(queries, swapAxes(keys, -1, -2)));
      const shaped = reshape(product, [kvHeads, batch, group, count, -1]);
      return allowed ? where(allowed, shaped, -Infinity) : shaped;
    };
    const scores = [scoresOf(fresh(present.keys), presentMask(count, window))];
    if (tables) {
      const allowed = pastMask(width * BLOCK_TOKENS, starts, count, window);
      scores.unshift(scoresOf(gathered(past.keys), allowed));
    }
    if (sinks) scores.push(sinkScores(sinks, [kvHeads, batch, group, count, 1]));
    const all = scores.length === 1 ? scores[0]! : concatenate(scores, -1);
    const weights = reshape(softmax(all), [kvHeads, batch, group * count, -1]);
    const pastKeys = tables ? width * BLOCK_TOKENS : 0;
    const now = slice(weights, -1, pastKeys, pastKeys + count);
    let result = matmul(now, fresh(present.values));
    if (tables) {
      result = add(result, matmul(slice(weights, -1, 0, pastKeys), gathered(past.values)));
    }
    const heads = reshape(result, [kvHeads, batch, group, count, headDim]);
    return reshape(transpose(heads, [1, 3, 0, 2, 4]), [tokens, -1]);
  }
}

/** Decoding rows of like length go together; a chunk of a prompt goes alone. */
function groupRows(rows: readonly KvRow[]): Group[] {
  const groups: Group[] = [];
  let at = 0;
  for (let i = 0; i < rows.length; ) {
    const { count } = rows[i]!;
    const width = widthOf(rows[i]!);
    let end = i + 1;
    while (count === 1 && end < rows.length && rows[end]!.count === 1) {
      if (widthOf(rows[end]!) !== width) break;
      end += 1;
    }
    const part = rows.slice(i, end);
    const tables = part.flatMap(({ table, start }) => {
      const used = table.slice(0, Math.ceil(start / BLOCK_TOKENS));
      return [...used, ...Array(width - used.length).fill(0)];
    });
    groups.push({
      at,
      batch: part.length,
      count,
      width,
      tables: width > 0 ? array(Int32Array.from(tables)) : undefined,
      starts: array(
        Int32Array.from(part, ({ start }) => start),
        [part.length, 1],
      ),
    });
    at += part.length * count;
    i = end;
  }
  return groups;
}

/** Blocks of its past: for decoding rows rounded up to few sizes, so that many go together. */
function widthOf({ start, count }: KvRow): number {
  const blocks = Math.ceil(start / BLOCK_TOKENS);
  if (count > 1 || blocks < 4) return blocks;
  const step = 2 ** (Math.floor(Math.log2(blocks)) - 1);
  return Math.ceil(blocks / step) * step;
}

/** (batch, 1, count, keys): keys of the past that are real, and inside the window. */
function pastMask(
  keys: number,
  starts: MlxArray,
  count: number,
  window: number | undefined,
): MlxArray {
  const at = reshape(arange(0, keys), [1, 1, 1, keys]);
  const from = reshape(starts, [-1, 1, 1, 1]);
  const real = less(at, from);
  if (window === undefined) return real;
  const position = add(from, reshape(arange(0, count), [1, 1, count, 1]));
  return logicalAnd(real, greater(at, subtract(position, window)));
}

/** (count, keys): itself and those before it, inside the window. */
function presentMask(count: number, window: number | undefined): MlxArray | undefined {
  if (count === 1) return undefined;
  const [rows, columns] = [expandDims(arange(0, count), 1), expandDims(arange(0, count), 0)];
  const before = greaterEqual(rows, columns);
  if (window === undefined || window >= count) return before;
  return logicalAnd(before, greater(columns, subtract(rows, window)));
}

function sinkScores(sinks: MlxArray, shape: readonly number[]): MlxArray {
  const [kvHeads, , group] = shape as [number, number, number];
  return broadcastTo(reshape(sinks, [kvHeads, 1, group, 1, 1]), shape);
}
