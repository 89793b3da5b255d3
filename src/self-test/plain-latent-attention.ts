// Reference latent attention: JavaScript numbers and plain loops, over a float32 pool in host memory.
import {
  joinedRows,
  type LatentAttention,
  type LatentRows,
  type LatentShape,
  type LatentWork,
} from "../kernels/attention/latent-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, type MlxArray } from "../mlx/array.ts";
import {
  attended,
  memoryOf,
  newestPlaces,
  PlainAttention,
  unpackPlaces,
  unpackTables,
} from "./plain-attention.ts";

export class PlainLatentAttention implements LatentAttention {
  readonly #shape: LatentShape;
  readonly groups = 1;

  constructor(shape: LatentShape) {
    this.#shape = shape;
  }

  decode(rows: LatentRows, pool: MlxArray, tables: MlxArray, work: LatentWork): MlxArray {
    return this.attend(rows, pool, tables, newestPlaces(tables), work);
  }

  attend(
    rows: LatentRows,
    pool: MlxArray,
    tables: MlxArray,
    places: MlxArray,
    work: LatentWork,
  ): MlxArray {
    const { heads, latent, rotary } = this.#shape;
    const { queries, latents } = joinedRows(rows, this.#shape, work.norm);
    const dims = latent + rotary;
    const memory = memoryOf(pool);
    const tokens = unpackPlaces(places);
    const [allQueries, allLatents] = [[...queries.numbers()], [...latents.numbers()]];
    const vector = (all: readonly number[], index: number, position: number) =>
      rotatedPairs(all.slice(index * dims, (index + 1) * dims), latent, position, work);
    for (const [token, { position, slot }] of tokens.entries()) {
      memory.set(vector(allLatents, token, position), slot * dims);
    }
    const sequences = unpackTables(tables);
    const outputs = tokens.flatMap(({ position, row }, token) => {
      const seen = Array.from({ length: position + 1 }, (_, t) => {
        const block = sequences[row]!.blocks[Math.floor(t / BLOCK_TOKENS)]!;
        const at = (block * BLOCK_TOKENS + (t % BLOCK_TOKENS)) * dims;
        return memory.subarray(at, at + dims);
      });
      return Array.from({ length: heads }, (_, head) => {
        const query = vector(allQueries, token * heads + head, position);
        return attended(query, seen, seen, undefined, work).slice(0, latent);
      }).flat();
    });
    return array(Float32Array.from(outputs), [tokens.length, heads * latent]);
  }

  copy(pool: MlxArray, pairs: MlxArray): MlxArray {
    const { heads, latent, rotary } = this.#shape;
    return new PlainAttention({ heads, kvHeads: 1, headDim: latent + rotary }).copy(pool, pairs);
  }

  free(): void {}
}

/** Applies interleaved RoPE (feature 2i with 2i + 1) to the features after the latent ones. */
function rotatedPairs(
  x: readonly number[],
  latent: number,
  position: number,
  { rope }: LatentWork,
): number[] {
  if (!rope) return [...x];
  const wavelengths = rope.wavelengths.numbers();
  return x.map((_, d) => {
    if (d < latent) return x[d]!;
    const pair = Math.floor((d - latent) / 2);
    const angle = position / wavelengths[pair]!;
    const [a, b] = [x[latent + 2 * pair]!, x[latent + 2 * pair + 1]!];
    const [cos, sin] = [Math.cos(angle) * rope.magnitude, Math.sin(angle) * rope.magnitude];
    return (d - latent) % 2 === 0 ? a * cos - b * sin : a * sin + b * cos;
  });
}
