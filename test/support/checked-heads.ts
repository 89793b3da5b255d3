// Queries, keys and values of prompts by one kernel, beside a plain product whose heads another kernel prepares.
import { expect } from "bun:test";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
} from "../../src/kernels/attention/paged-attention.ts";
import { PromptProducts } from "../../src/kernels/product/prompt-product.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { MakeKernel } from "../../src/mlx/kernel.ts";
import { astype, matmul, swapAxes, zeros } from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { hopper } from "./gpus.ts";

export type HeadsCase = {
  dtype: Dtype;
  rows: number;
  inputs: number;
  heads: number;
  kvHeads: number;
  isRotated: boolean;
  /** Tokens from this one on are of a long sequence. */
  longFrom?: number;
  groups: number;
  /** Where sequences begin behind the first: the queries of each one's last token are all that is asked for. */
  begins?: readonly number[];
};

const HEAD_DIM = 128;
const BLOCKS = 32;
/** Rows that are left out where none of their queries is wanted. */
const TILE_ROWS = 256;

/** No two checks have the same numbers: memory that nobody writes to may have those of an earlier one. */
let checks = 0;
/** The first token's place in its sequence and in its block. */
const START = 100_007;

export function checkHeads(each: HeadsCase, make: MakeKernel): void {
  const { dtype, rows, inputs, heads, kvHeads, groups, begins = [], longFrom = rows } = each;
  using _ = new Scope();
  checks += 1;
  const random = (seed: number, ...shape: number[]) => astype(normal(key(seed), shape), dtype);
  const x = random(2 * checks, rows, inputs);
  const weight = random(2 * checks + 1, (heads + 2 * kvHeads) * HEAD_DIM, inputs);
  const places = array(
    packPlaces(
      Array.from({ length: rows }, (_, i) => {
        const [position, at] = [START + i, (START % BLOCK_TOKENS) + i];
        const block = (Math.floor(at / BLOCK_TOKENS) * 5 + 3) % BLOCKS;
        const row = begins.filter((begin) => begin <= i).length;
        const slot = block * BLOCK_TOKENS + (at % BLOCK_TOKENS);
        return { position, slot, row, isLong: i >= longFrom };
      }),
    ),
  );
  const work = workOf(each);
  const prompts = new PromptProducts(hopper, make);
  const shape = { heads, kvHeads, headDim: HEAD_DIM };
  const plain = new PagedAttention("cuda", shape, dtype, make);
  const fused = new PagedAttention("cuda", shape, dtype, make, undefined, {
    prepared: (_qkv, given, columns, lastQueries, constants) => {
      const all = { x, weight, ...given };
      return prompts.prepared(all, columns, lastQueries, constants, groups);
    },
  });
  const exact = (of: MlxArray) => astype(of, "float32");
  const product = astype(matmul(exact(x), swapAxes(exact(weight), 0, 1)), dtype);
  const [expected, found] = [plain, fused].map((attention) => {
    const pool = () => zeros([BLOCKS, kvHeads, BLOCK_TOKENS, HEAD_DIM], dtype);
    const pools = { keys: pool(), values: pool() };
    evaluate(pools.keys, pools.values);
    try {
      const queries = attention.prepare(product, pools, places, work, begins.length > 0);
      return [queries, pools.keys, pools.values].map((made) => exact(made).numbers());
    } finally {
      attention.free();
    }
  });
  prompts.free();
  const offBy = (some: readonly number[], wanted: readonly number[]) => {
    const largest = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    return (
      wanted.reduce((most, value, i) => Math.max(most, Math.abs(value - some[i]!)), 0) / largest
    );
  };
  const [queries, ...kept] = expected!.map((wanted, i) => [found![i]!, wanted] as const);
  for (const [some, wanted] of kept) expect(offBy(some, wanted)).toBeLessThan(0.01);
  const ends = [...begins, rows].map((end) => end - 1);
  const wantedRows = begins.length > 0 ? ends : Array.from({ length: rows }, (_, row) => row);
  const columns = heads * HEAD_DIM;
  for (let row = 0; row < rows; row++) {
    const [some, wanted] = queries!.map((all) => all.slice(row * columns, (row + 1) * columns));
    const off = offBy(some!, wanted!);
    if (wantedRows.includes(row)) expect(off).toBeLessThan(0.01);
    const tile = Math.floor(row / TILE_ROWS);
    // Nobody has written them.
    if (!wantedRows.some((each) => Math.floor(each / TILE_ROWS) === tile)) {
      expect(off).not.toBeLessThan(0.01);
    }
  }
}

function workOf({ isRotated, longFrom }: HeadsCase): LayerWork {
  if (!isRotated) return { scale: 1 };
  const ropeOf = (base: number, magnitude: number) => {
    const half = HEAD_DIM / 2;
    const wavelengths = Float32Array.from({ length: half }, (_, i) => base ** (i / half));
    return { wavelengths: array(wavelengths), magnitude };
  };
  const long = longFrom === undefined ? undefined : { ...ropeOf(20_000, 0.75), beyond: 1 };
  return { scale: 1, rope: { dims: HEAD_DIM, ...ropeOf(500_000, 1.25), long } };
}
