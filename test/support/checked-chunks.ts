// Attention of chunks of prompts by tensor cores, beside plain arithmetic.
import { expect } from "bun:test";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
  packTiles,
  type WarpgroupChunks,
} from "../../src/kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array } from "../../src/mlx/array.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import { astype } from "../../src/mlx/ops.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { attended } from "../../src/self-test/plain-attention.ts";
import { type AttentionCase, tolerance } from "./checked-attention.ts";
import { makeRandom } from "./random.ts";

export type ChunkCase = Omit<AttentionCase, "normed" | "valuesNormed" | "rotaryDims" | "splits"> & {
  hopper?: WarpgroupChunks | undefined;
};

/** Of the pools: as many as the tables of the four sequences have. */
const BLOCKS = 52;

/** Chunks of several sequences, one from its start; none ends at the end of a block or a tile. */
export function checkChunks(
  { headDim, kvHeads, headsPerKv, dtype, scores, hopper }: ChunkCase,
  make?: MakeKernel,
): void {
  const chunks = [
    { start: 45, count: 83 },
    { start: 0, count: 139 },
    { start: 131, count: 1 },
    { start: 352, count: 33 },
  ];
  const heads = kvHeads * headsPerKv;
  const random = makeRandom(headDim + headsPerKv);
  const numbers = (count: number) =>
    Float32Array.from({ length: count }, () => random.below(4001) / 1000 - 2);
  using _ = new Scope();
  const rounded = (values: Float32Array, shape: number[]) => {
    const made = astype(array(values, shape), dtype);
    return { made, values: Float32Array.from(astype(made, "float32").numbers()) };
  };
  const width = 13;
  const rows = chunks.map(({ start, count }, row) => {
    const blocks = Array.from({ length: width }, (_, i) => ((row * width + i) * 5) % BLOCKS);
    return { length: start + count, blocks };
  });
  const slotOf = (row: number, position: number) =>
    rows[row]!.blocks[Math.floor(position / BLOCK_TOKENS)]! * BLOCK_TOKENS +
    (position % BLOCK_TOKENS);
  /** Where a head of a token begins. */
  const at = (row: number, position: number, kv: number) => {
    const slot = slotOf(row, position);
    const block = Math.floor(slot / BLOCK_TOKENS);
    return ((block * kvHeads + kv) * BLOCK_TOKENS + (slot % BLOCK_TOKENS)) * headDim;
  };
  /** A slot without a token that is seen holds NaN. */
  const pool = (sizeAt: (position: number) => number) => {
    const values = new Float32Array(BLOCKS * kvHeads * BLOCK_TOKENS * headDim).fill(Number.NaN);
    for (const [row, { length }] of rows.entries())
      for (let position = oldestSeen(chunks[row]!.start, scores); position < length; position++)
        for (let kv = 0; kv < kvHeads; kv++) {
          const made = numbers(headDim).map((x) => x * sizeAt(position));
          values.set(made, at(row, position, kv));
        }
    return rounded(values, [BLOCKS, kvHeads, BLOCK_TOKENS, headDim]);
  };
  // Scores become much higher towards the end, so that what was summed up before must be scaled down.
  const [keys, values] = [pool((position) => 1 + position / 50), pool(() => 1)];
  const tokens = chunks.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => {
      return { position: start + i, slot: slotOf(row, start + i), row };
    }),
  );
  const queries = rounded(numbers(tokens.length * heads * headDim), [
    tokens.length,
    heads * headDim,
  ]);
  const sinks = scores?.sinks ? rounded(numbers(heads), [heads]) : undefined;
  const work: LayerWork = { ...scores, scale: headDim ** -0.5, sinks: sinks?.made };
  const kernels = new PagedAttention("cuda", { heads, kvHeads, headDim }, dtype, make, hopper);
  const { tile, attend } = kernels.chunks!;
  const result = freeing(kernels, () => {
    const found = attend(
      queries.made,
      { keys: keys.made, values: values.made },
      array(packTables(rows, width)),
      array(packPlaces(tokens)),
      array(packTiles(chunks, tile)),
      work,
    );
    return astype(found, "float32").numbers();
  });

  const seen = (of: Float32Array, kv: number) =>
    rows.map(({ length }, row) =>
      Array.from({ length }, (_, position) => [
        ...of.subarray(at(row, position, kv), at(row, position, kv) + headDim),
      ]),
    );
  let worst = 0;
  for (let head = 0; head < heads; head++) {
    const kv = Math.floor(head / headsPerKv);
    const [seenKeys, seenValues] = [seen(keys.values, kv), seen(values.values, kv)];
    for (const [token, { position, row }] of tokens.entries()) {
      const from = (token * heads + head) * headDim;
      const expected = attended(
        [...queries.values.subarray(from, from + headDim)],
        seenKeys[row]!.slice(0, position + 1),
        seenValues[row]!.slice(0, position + 1),
        sinks?.values[head],
        work,
      );
      for (const [d, value] of expected.entries()) {
        const difference = Math.abs(value - result[from + d]!);
        worst = Math.max(worst, difference); // NaN stays NaN
      }
    }
  }
  expect(worst).toBeLessThan(tolerance[dtype]);
}

/** By the token at `position`, and by all of its sequence that come after it. */
function oldestSeen(position: number, { window, chunked }: NonNullable<ChunkCase["scores"]> = {}) {
  if (window === undefined || position < window) return 0;
  return chunked ? position - (position % window) : position - window + 1;
}

/** Whether it throws or not. */
function freeing<T>(kernels: PagedAttention, run: () => T): T {
  try {
    return run();
  } finally {
    kernels.free();
  }
}
