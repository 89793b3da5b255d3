// The past of decoding rows on a CPU, as attention wants it: keys and values of a group of sequences in
// one array a layer, (batch, kvHeads, keys, D). MLX's own gather would copy all of it in every step, an
// element at a time. Here TypeScript copies what is new since the last step, into memory that enters the
// graph as a constant: the past is complete before a step begins.
//
// A place holds the past of one sequence, known by its table and the blocks in it. Whatever changes about
// those, the place is filled anew. The mirrors together stay within MIRROR_BYTES; rows that do not fit are
// gathered by MLX.
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import type { MlxArray } from "../mlx/array.ts";
import { bytesOf, hostArrays } from "../mlx/dtype.ts";
import { slice, zeros } from "../mlx/ops.ts";
import { hold, Scope } from "../mlx/scope.ts";
import type { Group, KeysValues, KvRow } from "./kv-store.ts";
import type { ModelShape } from "./model.ts";

const MIRROR_BYTES = 512 * 2 ** 20;

/** Memory that is copied from and to. */
type Memory = { array: MlxArray; data: Float32Array };

/** Whose past a place holds, and how much of it. */
type Place = { table: readonly number[]; blocks: number[]; length: number };

type Mirror = {
  capacity: number;
  width: number;
  bytes: number;
  /** Keys and values of each layer: [k0, v0, k1, v1, ...] */
  layers: Memory[];
  places: (Place | undefined)[];
};

export class PastMirror {
  readonly #shape: ModelShape;
  /** In the same order as a mirror's layers. */
  readonly #pools: Memory[];
  readonly #blocks: number;
  /** By width. */
  readonly #mirrors = new Map<number, Mirror>();

  constructor(shape: ModelShape, keys: readonly MlxArray[], values: readonly MlxArray[]) {
    this.#shape = shape;
    this.#pools = keys.flatMap((pool, layer) => [memoryOf(pool), memoryOf(values[layer]!)]);
    this.#blocks = keys[0]?.shape[1] ?? 0;
  }

  /** Brings the past of these groups up to date; what each layer is to attend to. */
  update(groups: readonly Group[]): Map<Group, (layer: number) => KeysValues> {
    // The first group of a width has its mirror; decoding rows come sorted, so there is no second.
    const first = new Map<number, Group>();
    for (const group of groups) {
      if (group.count === 1 && group.width > 0 && !first.has(group.width)) {
        first.set(group.width, group);
      }
    }
    for (const width of [...this.#mirrors.keys()]) if (!first.has(width)) this.#drop(width);
    const mirrored = new Map<Group, (layer: number) => KeysValues>();
    for (const group of first.values()) {
      const mirror = this.#mirrorFor(group);
      if (!mirror) continue;
      for (const [place, row] of group.rows.entries()) this.#fill(mirror, place, row);
      mirrored.set(group, (layer) => ({
        keys: firstPlaces(mirror.layers[2 * layer]!.array, group.batch),
        values: firstPlaces(mirror.layers[2 * layer + 1]!.array, group.batch),
      }));
    }
    return mirrored;
  }

  free(): void {
    for (const width of [...this.#mirrors.keys()]) this.#drop(width);
  }

  /** Undefined where there is no memory for it. */
  #mirrorFor({ width, batch }: Group): Mirror | undefined {
    const known = this.#mirrors.get(width);
    if (known && known.capacity >= batch) return known;
    this.#drop(width);
    const { layers, kvHeads, headDim } = this.#shape;
    const capacity = 2 ** Math.ceil(Math.log2(batch));
    const dims = [capacity, kvHeads, width * BLOCK_TOKENS, headDim];
    const { dtype } = this.#pools[0]!.array;
    const bytes = 2 * layers * dims.reduce((a, b) => a * b, bytesOf(dtype));
    const others = this.#mirrors.values().reduce((sum, mirror) => sum + mirror.bytes, 0);
    if (others + bytes > MIRROR_BYTES) return undefined;
    const make = (): Memory => {
      using _ = new Scope();
      return memoryOf(hold(zeros(dims, dtype)));
    };
    const mirror: Mirror = {
      capacity,
      width,
      bytes,
      layers: this.#pools.map(make),
      places: [],
    };
    this.#mirrors.set(width, mirror);
    return mirror;
  }

  #drop(width: number): void {
    for (const { array } of this.#mirrors.get(width)?.layers ?? []) array.free();
    this.#mirrors.delete(width);
  }

  #fill(mirror: Mirror, place: number, { table, start }: KvRow): void {
    const known = mirror.places[place];
    const same = known?.table === table && known.blocks.every((block, i) => block === table[i]);
    const from = same ? Math.min(known.length, start) : 0;
    for (let at = from; at < start; ) {
      const within = at % BLOCK_TOKENS;
      const count = Math.min(BLOCK_TOKENS - within, start - at);
      this.#copy(mirror, place, table[Math.floor(at / BLOCK_TOKENS)]!, within, at, count);
      at += count;
    }
    const blocks = table.slice(0, Math.ceil(start / BLOCK_TOKENS));
    mirror.places[place] = { table, blocks, length: start };
  }

  /** So many tokens of a block to position `at` of a place, in every layer. */
  #copy(
    { layers, width }: Mirror,
    place: number,
    block: number,
    within: number,
    at: number,
    count: number,
  ): void {
    const { kvHeads, headDim } = this.#shape;
    const size = count * headDim;
    for (let head = 0; head < kvHeads; head++) {
      const source = ((head * this.#blocks + block) * BLOCK_TOKENS + within) * headDim;
      const target = ((place * kvHeads + head) * width * BLOCK_TOKENS + at) * headDim;
      for (let i = 0; i < layers.length; i++) {
        const part = this.#pools[i]!.data.subarray(source, source + size);
        layers[i]!.data.set(part, target);
      }
    }
  }
}

function memoryOf(array: MlxArray): Memory {
  const data = new hostArrays[array.dtype](array.memory());
  return { array, data: data as Float32Array };
}

function firstPlaces(layer: MlxArray, count: number): MlxArray {
  return layer.shape[0] === count ? layer : slice(layer, 0, 0, count);
}
