// Reference attention, in JavaScript numbers and plain loops. It implements BlockAttention, so that it can replace
// the kernels in tests of the paged store on a CPU, where it writes to MLX's memory.
import {
  type BlockAttention,
  type LayerWork,
  type PagedShape,
  type Place,
  type Pools,
  packPlaces,
} from "../kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, type MlxArray } from "../mlx/array.ts";

export type PlainWork = {
  norms?:
    | {
        query: readonly number[];
        key: readonly number[];
        value?: readonly number[] | undefined;
        eps: number;
      }
    | undefined;
  rope?: (PlainRope & { dims: number; long?: PlainRope | undefined }) | undefined;
};

type PlainRope = { wavelengths: readonly number[]; magnitude: number };

export type PlainScores = Pick<LayerWork, "scale" | "window" | "chunked" | "softcap">;

/** Returns one head of a token, normalized and with RoPE applied. */
export function prepared(
  head: readonly number[],
  norm: readonly number[] | undefined,
  { position, isLong = false }: Pick<Place, "position" | "isLong">,
  { norms, rope }: PlainWork,
): number[] {
  const x = norm && norms ? normed(head, norm, norms.eps) : [...head];
  if (!rope) return x;
  const { wavelengths, magnitude } = (isLong && rope.long) || rope;
  const half = rope.dims / 2;
  const rotated = [...x];
  for (let i = 0; i < half; i++) {
    const angle = position / wavelengths[i]!;
    const [a, b] = [x[i]! * magnitude, x[i + half]! * magnitude];
    rotated[i] = a * Math.cos(angle) - b * Math.sin(angle);
    rotated[i + half] = a * Math.sin(angle) + b * Math.cos(angle);
  }
  return rotated;
}

/** Returns one value head of a token, normalized but without RoPE. */
export function preparedValue(head: readonly number[], { norms }: PlainWork): number[] {
  return norms?.value ? normed(head, norms.value, norms.eps) : [...head];
}

/** Applies RMSNorm to one head. */
export function normed(head: readonly number[], norm: readonly number[], eps: number): number[] {
  const mean = head.reduce((sum, value) => sum + value * value, 0) / head.length;
  return head.map((value, i) => (value / Math.sqrt(mean + eps)) * norm[i]!);
}

/** Attends from one query to the keys and values of its sequence. */
export function attended(
  query: readonly number[],
  keys: readonly ArrayLike<number>[],
  values: readonly ArrayLike<number>[],
  sink: number | undefined,
  { scale, window, chunked, softcap }: PlainScores,
): number[] {
  const position = keys.length - 1;
  const edge = (size: number) => (chunked ? position - (position % size) : position + 1 - size);
  const oldest = window === undefined ? 0 : Math.max(0, edge(window));
  const scores = keys.slice(oldest).map((key) => {
    let product = 0;
    for (let i = 0; i < query.length; i++) product += key[i]! * query[i]!;
    const score = scale * product;
    return softcap === undefined ? score : softcap * Math.tanh(score / softcap);
  });
  const highest = Math.max(...scores, sink ?? -Infinity);
  const weights = scores.map((score) => Math.exp(score - highest));
  const rest = sink === undefined ? 0 : Math.exp(sink - highest);
  const total = weights.reduce((sum, weight) => sum + weight, rest);
  const output: number[] = Array(query.length).fill(0);
  for (const [t, weight] of weights.entries()) {
    const [value, share] = [values[oldest + t]!, weight / total];
    for (let d = 0; d < output.length; d++) output[d]! += share * value[d]!;
  }
  return output;
}

/** Plain attention over float32 pools in host memory. */
export class PlainAttention implements BlockAttention {
  readonly #shape: PagedShape;

  constructor(shape: PagedShape) {
    this.#shape = shape;
  }

  decode(qkv: MlxArray, pools: Pools, tables: MlxArray, work: LayerWork): MlxArray {
    const places = newestPlaces(tables, work.rope?.long?.beyond);
    return this.attend(this.prepare(qkv, pools, places, work), pools, tables, places, work);
  }

  /** With `lastQueries` only each sequence's last query is computed; the others are NaN. */
  prepare(
    qkv: MlxArray,
    pools: Pools,
    places: MlxArray,
    work: LayerWork,
    lastQueries = false,
  ): MlxArray {
    const { heads, kvHeads, headDim } = this.#shape;
    const [keys, values] = [memoryOf(pools.keys), memoryOf(pools.values)];
    const all = [...qkv.numbers()];
    const plain = plainWork(work);
    const tokens = unpackPlaces(places);
    const queries: number[] = [];
    const count = heads + (work.sharesKv ? 0 : 2 * kvHeads);
    for (const [token, place] of tokens.entries()) {
      const { slot, row } = place;
      const isWanted = !lastQueries || tokens[token + 1]?.row !== row;
      for (let index = 0; index < count; index++) {
        const at = (token * count + index) * headDim;
        const head = all.slice(at, at + headDim);
        const isQuery = index < heads;
        const isValue = index >= heads + kvHeads;
        const norm = isQuery ? plain.norms?.query : plain.norms?.key;
        const made = isValue ? preparedValue(head, plain) : prepared(head, norm, place, plain);
        if (isQuery) queries.push(...(isWanted ? made : made.fill(Number.NaN)));
        else (isValue ? values : keys).set(made, this.#at(slot, (index - heads) % kvHeads));
      }
    }
    return array(Float32Array.from(queries), [tokens.length, heads * headDim]);
  }

  attend(
    queries: MlxArray,
    pools: Pools,
    tables: MlxArray,
    places: MlxArray,
    work: LayerWork,
  ): MlxArray {
    const { heads, kvHeads, headDim } = this.#shape;
    const [keys, values] = [memoryOf(pools.keys), memoryOf(pools.values)];
    const all = [...queries.numbers()];
    const sinks = work.sinks && [...work.sinks.numbers()];
    const sequences = unpackTables(tables);
    const tokens = unpackPlaces(places);
    const outputs = tokens.flatMap(({ position, row }, token) => {
      const { blocks } = sequences[row]!;
      const rows = (pool: Float32Array) =>
        Array.from({ length: kvHeads }, (_, kv) =>
          Array.from({ length: position + 1 }, (_, t) => {
            const block = blocks[Math.floor(t / BLOCK_TOKENS)]!;
            const at = this.#at(block * BLOCK_TOKENS + (t % BLOCK_TOKENS), kv);
            return pool.subarray(at, at + headDim);
          }),
        );
      const [ownKeys, ownValues] = [rows(keys), rows(values)];
      return Array.from({ length: heads }, (_, head) => {
        const kv = Math.floor(head / (heads / kvHeads));
        const at = (token * heads + head) * headDim;
        const query = all.slice(at, at + headDim);
        return attended(query, ownKeys[kv]!, ownValues[kv]!, sinks?.[head], work);
      }).flat();
    });
    return array(Float32Array.from(outputs), [tokens.length, heads * headDim]);
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    const memory = memoryOf(pool);
    const size = memory.length / pool.shape[0]!;
    const ids = [...pairs.numbers()];
    for (let i = 0; i < ids.length; i += 2) {
      memory.copyWithin(ids[i + 1]! * size, ids[i]! * size, (ids[i]! + 1) * size);
    }
    return array(Int32Array.of(1));
  }

  free(): void {}

  /** Returns the offset in a pool of the vector that KV head `kv` has in a token's slot. */
  #at(slot: number, kv: number): number {
    const { kvHeads, headDim } = this.#shape;
    const block = Math.floor(slot / BLOCK_TOKENS);
    return ((block * kvHeads + kv) * BLOCK_TOKENS + (slot % BLOCK_TOKENS)) * headDim;
  }
}

/** Packs position, slot and row of each sequence's newest token. Long sequences exceed `longBeyond` tokens. */
export function newestPlaces(tables: MlxArray, longBeyond = Number.POSITIVE_INFINITY): MlxArray {
  const tokens = unpackTables(tables).map(({ length, blocks }, row) => {
    const position = length - 1;
    const block = blocks[Math.floor(position / BLOCK_TOKENS)]!;
    const slot = block * BLOCK_TOKENS + (position % BLOCK_TOKENS);
    return { position, slot, row, isLong: length > longBeyond };
  });
  return array(packPlaces(tokens));
}

export function unpackTables(tables: MlxArray): { length: number; blocks: number[] }[] {
  const [width, ...rest] = tables.numbers() as unknown as [number, ...number[]];
  return Array.from({ length: rest.length / (1 + width) }, (_, row) => {
    const at = row * (1 + width);
    return { length: rest[at]!, blocks: rest.slice(at + 1, at + 1 + width) };
  });
}

export function unpackPlaces(places: MlxArray): Place[] {
  const all = [...places.numbers()];
  return Array.from({ length: all.length / 3 }, (_, i) => {
    const [position, slot, row] = all.slice(3 * i) as [number, number, number];
    return slot < 0
      ? { position, slot: ~slot, row, isLong: true }
      : { position, slot, row, isLong: false };
  });
}

export function memoryOf(pool: MlxArray): Float32Array {
  return new Float32Array(pool.memory());
}

export function plainRope({
  wavelengths,
  magnitude,
}: Pick<NonNullable<LayerWork["rope"]>, "wavelengths" | "magnitude">): PlainRope {
  return { wavelengths: [...wavelengths.numbers()], magnitude };
}

function plainWork({ norms, rope }: LayerWork): PlainWork {
  return {
    norms: norms && {
      query: [...norms.query.numbers()],
      key: [...(norms.key ?? norms.query).numbers()],
      value: norms.value && [...norms.value.numbers()],
      eps: norms.eps,
    },
    rope: rope && { ...rope, ...plainRope(rope), long: rope.long && plainRope(rope.long) },
  };
}
