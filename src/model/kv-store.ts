// Where keys and values live: blocks of BLOCK_TOKENS tokens, in one pool a layer. Two stores behind one
// interface, chosen when the model is loaded. They differ in how a step's new rows get into the blocks:
//
//   host (CPU)     the pools are constants of the graph, whose memory TypeScript writes to after the step
//   device (GPU)   kernels write them in place, and attend over the blocks (device-kv-store.ts)
//
// Here is what they share, and the host's.
//
// The past is gathered from its blocks, the present never leaves the graph: scores of both are computed
// apart and meet in the softmax, so that the gathered past is not copied again to append to it. On a CPU
// the past of decoding rows is gathered by TypeScript, and only what is new of it (past-mirror.ts).
import type { Backend } from "../../ffi/native.ts";
import { PagedAttention } from "../kernels/paged-attention.ts";
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
  slice,
  softmax,
  subtract,
  sum,
  swapAxes,
  take,
  tanh,
  transpose,
  where,
  zeros,
} from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import { DeviceKvStore } from "./device-kv-store.ts";
import type { AttentionOptions, ModelShape, Step } from "./model.ts";
import { PastMirror } from "./past-mirror.ts";

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
    : new DeviceKvStore(shape, blocks, dtype, (heads) => new PagedAttention(backend, heads, dtype));
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
  readonly #mirror: PastMirror;

  constructor(shape: ModelShape, blocks: number, dtype: Dtype) {
    this.blocks = blocks;
    this.#shape = shape;
    this.#keys = makePools(shape, blocks, dtype);
    this.#values = makePools(shape, blocks, dtype);
    this.#mirror = new PastMirror(shape, this.#keys, this.#values);
  }

  get bytes(): number {
    return [...this.#keys, ...this.#values].reduce((sum, pool) => sum + pool.bytes, 0);
  }

  begin(rows: readonly KvRow[], copies: readonly BlockCopy[]): PagedStep {
    for (const pool of [...this.#keys, ...this.#values]) this.#copyBlocks(pool, copies);
    const layout = new StepLayout(rows, this.#shape);
    const mirrored = this.#mirror.update(layout.groups);
    const pending: MlxArray[] = [];
    return {
      positions: layout.positions,
      pending,
      attend: (layer, q, k, v, options) => {
        pending.push(...hold([contiguous(k), contiguous(harmless(v))]));
        const pools = { keys: this.#keys[layer]!, values: this.#values[layer]! };
        const past = (group: Group) => mirrored.get(group)?.(layer) ?? layout.gather(group, pools);
        return layout.attend(q, { keys: k, values: v }, past, options);
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
    this.#mirror.free();
    free(this.#keys);
    free(this.#values);
  }
}

/** Copies (T, kvHeads, D) into the blocks of their rows. */
function writeRows(pool: Pool, source: MlxArray, rows: readonly KvRow[]): void {
  const [kvHeads, blocks, , headDim] = pool.shape as [number, number, number, number];
  const from = new hostArrays[source.dtype](source.memory()) as Float32Array;
  const to = new hostArrays[pool.dtype](pool.memory()) as Float32Array;
  let at = 0;
  for (const { start, count, table } of rows) {
    for (let position = start; position < start + count; position++) {
      const block = table[Math.floor(position / BLOCK_TOKENS)]!;
      for (let head = 0; head < kvHeads; head++, at += headDim) {
        const slot = (head * blocks + block) * BLOCK_TOKENS + (position % BLOCK_TOKENS);
        to.set(from.subarray(at, at + headDim), slot * headDim);
      }
    }
  }
}

/**
 * Values as they are kept. A block is read whole, and what a row does not see of it has the weight 0:
 * but 0 times infinity is no number, so one sequence's would spoil the next that gets the block.
 */
function harmless(values: MlxArray): MlxArray {
  return where(isFinite(values), values, 0);
}

function free(arrays: readonly MlxArray[]): void {
  for (const each of arrays) each.free();
}

/** Rows that are computed together: `batch` sequences, each with `count` tokens, from row `at` on. */
export type Group = {
  at: number;
  batch: number;
  count: number;
  rows: readonly KvRow[];
  /** Blocks of the past that are read of each sequence; 0 where there is none. */
  width: number;
  /** (batch * width), filled up with block 0. */
  tables: MlxArray;
  /** How many tokens of the past are real (batch). */
  starts: MlxArray;
  /** By window, for layers have few. */
  masks: Map<number | undefined, MlxArray>;
};

/** Of the past (batch, kvHeads, keys, D), of the present (T, kvHeads, D). */
export type KeysValues = { keys: MlxArray; values: MlxArray };

/** What a step's rows mean for attention. */
class StepLayout {
  readonly positions: MlxArray; // (T)
  readonly groups: readonly Group[];
  readonly #shape: ModelShape;

  constructor(rows: readonly KvRow[], shape: ModelShape) {
    this.#shape = shape;
    this.positions = array(
      Int32Array.from(
        rows.flatMap(({ start, count }) => Array.from({ length: count }, (_, i) => start + i)),
      ),
    );
    this.groups = groupRows(rows);
  }

  /** The past of a group's sequences, out of the blocks. */
  gather({ tables, batch, width }: Group, pools: KeysValues): KeysValues {
    const { kvHeads, headDim } = this.#shape;
    const part = (pool: Pool) => {
      const blocks = take(pool, tables, 1); // (kvHeads, batch * width, BLOCK_TOKENS, D)
      return swapAxes(reshape(blocks, [kvHeads, batch, width * BLOCK_TOKENS, headDim]), 0, 1);
    };
    return { keys: part(pools.keys), values: part(pools.values) };
  }

  /** q (T, heads, D) -> (T, heads * D) */
  attend(
    q: MlxArray,
    present: KeysValues,
    past: (group: Group) => KeysValues,
    options: AttentionOptions,
  ): MlxArray {
    const outputs = this.groups.map((group) => this.#attendGroup(group, q, present, past, options));
    return outputs.length === 1 ? outputs[0]! : concatenate(outputs);
  }

  #attendGroup(
    group: Group,
    q: MlxArray,
    present: KeysValues,
    past: (group: Group) => KeysValues,
    { scale, window, sinks, softcap }: AttentionOptions,
  ): MlxArray {
    const { kvHeads, headDim } = this.#shape;
    const { at, batch, count, width } = group;
    const tokens = batch * count;
    const shared = q.shape[1]! / kvHeads; // queries that share keys
    // x (T, kvHeads * n, D) -> (batch, kvHeads, n * count, D). For one token each, nothing moves.
    const part = (x: MlxArray, n: number) => {
      const own = x.shape[0] === tokens ? x : slice(x, 0, at, at + tokens);
      if (count === 1) return reshape(own, [batch, kvHeads, n, headDim]);
      const split = transpose(reshape(own, [batch, count, kvHeads, n, headDim]), [0, 2, 3, 1, 4]);
      return reshape(split, [batch, kvHeads, n * count, headDim]);
    };
    const queries = multiply(part(q, shared), scale);
    const [keys, values] = [part(present.keys, 1), part(present.values, 1)];
    const cap = (scores: MlxArray) =>
      softcap === undefined ? scores : multiply(tanh(divide(scores, softcap)), softcap);
    // (batch, kvHeads, shared * count, keys); masks want `count` as an axis of its own.
    const masked = (scores: MlxArray, mask: MlxArray | undefined) => {
      if (!mask) return scores;
      if (count === 1) return where(mask, scores, -Infinity);
      const split = reshape(scores, [batch, kvHeads, shared, count, -1]);
      return reshape(where(mask, split, -Infinity), scores.shape);
    };
    const transposed = (x: MlxArray) => swapAxes(x, -1, -2);
    // A product with one key is a sum, and one with one value a multiple.
    const now =
      count === 1 ? sum(multiply(queries, keys), -1, true) : matmul(queries, transposed(keys));
    const scores = [masked(cap(now), presentMask(count, window))];
    const before = width > 0 ? past(group) : undefined;
    if (before) {
      const mask = maskOf(group, window);
      scores.unshift(masked(cap(matmul(queries, transposed(before.keys))), mask));
    }
    if (sinks) scores.push(sinkScores(sinks, [batch, kvHeads, shared, count]));
    const weights = softmax(scores.length === 1 ? scores[0]! : concatenate(scores, -1));
    const split = width * BLOCK_TOKENS;
    const nowWeights = slice(weights, -1, split, split + count);
    let result = count === 1 ? multiply(nowWeights, values) : matmul(nowWeights, values);
    if (before) result = add(result, matmul(slice(weights, -1, 0, split), before.values));
    if (count === 1) return reshape(result, [tokens, -1]);
    const heads = reshape(result, [batch, kvHeads, shared, count, headDim]);
    return reshape(transpose(heads, [0, 3, 1, 2, 4]), [tokens, -1]);
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
      rows: part,
      width,
      tables: array(Int32Array.from(tables)),
      starts: array(Int32Array.from(part, ({ start }) => start)),
      masks: new Map(),
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

/** Keys of the past that are real, and inside the window: (batch, 1, 1, keys), with an axis for `count`. */
function maskOf(group: Group, window: number | undefined): MlxArray {
  const { masks, width, starts, count } = group;
  const known = masks.get(window);
  if (known) return known;
  const keys = arange(0, width * BLOCK_TOKENS);
  const from = reshape(starts, [-1, 1, 1, 1]);
  let mask = less(keys, from);
  if (window !== undefined) {
    const positions = add(from, reshape(arange(0, count), [1, 1, count, 1]));
    mask = logicalAnd(mask, greater(keys, subtract(positions, window)));
  }
  const shaped = count === 1 ? mask : expandDims(mask, 1);
  masks.set(window, shaped);
  return shaped;
}

/** (count, keys): itself and those before it, inside the window. */
function presentMask(count: number, window: number | undefined): MlxArray | undefined {
  if (count === 1) return undefined;
  const [rows, columns] = [expandDims(arange(0, count), 1), expandDims(arange(0, count), 0)];
  const before = greaterEqual(rows, columns);
  if (window === undefined || window >= count) return before;
  return logicalAnd(before, greater(columns, subtract(rows, window)));
}

/** (batch, kvHeads, shared * count, 1): a head's score, for each of its queries. */
function sinkScores(sinks: MlxArray, sizes: readonly [number, number, number, number]): MlxArray {
  const [batch, kvHeads, shared, count] = sizes;
  const scores = broadcastTo(reshape(sinks, [1, kvHeads, shared, 1]), sizes);
  return reshape(scores, [batch, kvHeads, shared * count, 1]);
}
