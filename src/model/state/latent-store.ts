// Stores latents, the one vector per token that all heads of a layer share, in the blocks of the paged KV store: one
// pool per layer, written in place by kernels.
import type { Compute, Memory } from "../../device/device.ts";
import type { LatentAttention } from "../../kernels/attention/latent-attention.ts";
import type { TileSize } from "../../kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../kv/blocks.ts";
import { evaluate, type MlxArray } from "../../mlx/array.ts";
import type { Dtype } from "../../mlx/dtype.ts";
import { hold, Scope } from "../../mlx/scope.ts";
import type { Step } from "../contract/model.ts";
import type { LatentState } from "../contract/states.ts";

type LatentStep = Pick<Step, "attendLatent">;

type Layer = { pool: MlxArray; attention: LatentAttention };

export class LatentStore {
  /** Index of the group whose blocks hold latents. Latents have no window, so one group has all. */
  readonly group: number;
  readonly #layers: Layer[] = [];
  /** Kernels by head counts and sizes. */
  readonly #attentions = new Map<string, LatentAttention>();

  /** Allocates the pools. Frees them if memory runs out. */
  constructor(
    device: Compute & Memory,
    states: readonly LatentState[],
    group: number,
    blocks: number,
    dtype: Dtype,
  ) {
    this.group = group;
    const kept = device.kvType(dtype);
    try {
      for (const { heads, latent, rotary } of states) {
        using _ = new Scope();
        const key = `${heads} ${latent} ${rotary}`;
        const attention = this.#attentions.getOrInsertComputed(key, () =>
          device.latentAttention({ heads, latent, rotary }, dtype),
        );
        const pool = device.allocate([blocks, 1, BLOCK_TOKENS, latent + rotary], kept);
        evaluate(pool);
        this.#layers.push({ pool: hold(pool), attention });
      }
    } catch (error) {
      this.free();
      throw error;
    }
  }

  /** Distinct tile sizes of the layers' kernels. */
  get tileSizes(): TileSize[] {
    return distinct(this.#layers.map(({ attention }) => attention.tile));
  }

  get bytes(): number {
    return this.#layers.reduce((sum, { pool }) => sum + pool.bytes, 0);
  }

  /** Makes a decode step of one token per row. `splitsOf`: number of unsplit CTAs -> number of splits per row. */
  decodeStep(tables: readonly MlxArray[], splitsOf: (groups: number) => number): LatentStep {
    const own = tables[this.group]!;
    return {
      attendLatent: ({ index }, rows, options) => {
        const { pool, attention } = this.#layers[index]!;
        const splits = splitsOf(rows.absorbed.shape[0]! * attention.groups);
        return attention.decode(rows, pool, own, options, splits);
      },
    };
  }

  /** Makes a step with prompts. `placesOf`: position, slot and row of each token. `tilesOf`: tiles of a size. */
  mixedStep(
    tables: readonly MlxArray[],
    placesOf: (group: number) => MlxArray,
    tilesOf: (size: TileSize) => MlxArray,
  ): LatentStep {
    const own = tables[this.group]!;
    const places = placesOf(this.group);
    const tiles = new Map(this.tileSizes.map((size) => [nameOf(size), tilesOf(size)]));
    return {
      attendLatent: ({ index }, rows, options) => {
        const { pool, attention } = this.#layers[index]!;
        const ownTiles = attention.tile && tiles.get(nameOf(attention.tile));
        return attention.attend(rows, pool, own, places, options, ownTiles);
      },
    };
  }

  /** Copies blocks, given (from, to) pairs per group. Returns one array per layer, which depends on the copies. */
  copy(pairsOf: ReadonlyMap<number, MlxArray>): MlxArray[] {
    const pairs = pairsOf.get(this.group);
    if (!pairs) return [];
    return this.#layers.map(({ pool, attention }) => attention.copy(pool, pairs));
  }

  free(): void {
    for (const each of this.#attentions.values()) each.free();
    this.#attentions.clear();
    for (const { pool } of this.#layers.splice(0)) pool.free();
  }
}

export function nameOf({ most, perToken }: TileSize): string {
  return `${most} of ${perToken} a token`;
}

/** Removes duplicates and undefined. */
export function distinct(sizes: readonly (TileSize | undefined)[]): TileSize[] {
  const some = sizes.filter((size) => size !== undefined);
  return [...new Map(some.map((size) => [nameOf(size), size])).values()];
}
