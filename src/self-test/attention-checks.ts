// Checks a device's paged attention against plain arithmetic: decoding, prompts, chunks on tensor cores, layers that
// share keys and values, block copies.
import type { Device, FloatType } from "../device/device.ts";
import {
  type BlockAttention,
  type LayerWork,
  type Pools,
  packPlaces,
  packTables,
  packTiles,
} from "../kernels/attention/paged-attention.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import type { Dtype } from "../mlx/dtype.ts";
import { astype, contiguous, reshape, swapAxes } from "../mlx/ops.ts";
import { compared, type DeviceCheck, type Finding, noise, numbersOf } from "./check.ts";
import { PlainAttention } from "./plain-attention.ts";

type Case = {
  headDim: number;
  kvHeads: number;
  headsPerKv: number;
  dtype: FloatType;
  normed?: "queries and keys" | "values too";
  rotaryDims?: number;
  /** Length above which sequences are rotated with RoPE factors of their own. */
  longBeyond?: number;
  splits?: number;
} & Partial<Pick<LayerWork, "window" | "chunked" | "softcap"> & { sinks: boolean }>;

const plain = { kvHeads: 2, headsPerKv: 2, dtype: "float32" } as const;

/** Cases for every head size that has kernels, and for every option that changes the result. */
const cases: readonly Case[] = [
  ...[16, 64, 80, 96, 128, 256].map((headDim) => ({ ...plain, headDim, rotaryDims: headDim })),
  { ...plain, headDim: 512, kvHeads: 1, normed: "values too", rotaryDims: 512, splits: 4 },
  { ...plain, headDim: 64, normed: "queries and keys", rotaryDims: 32 },
  { ...plain, headDim: 64, headsPerKv: 4, window: 40, sinks: true, splits: 4 },
  { ...plain, headDim: 64, rotaryDims: 64, longBeyond: 50, sinks: true },
  { ...plain, headDim: 96, rotaryDims: 72, longBeyond: 50 },
  { ...plain, headDim: 64, headsPerKv: 3, window: 32, chunked: true },
  { ...plain, headDim: 64, headsPerKv: 8, softcap: 2 },
];

/** Cases of 16-bit types, for which GPUs have separate kernels; a CPU converts them. */
const halfCases: readonly Case[] = (["float16", "bfloat16"] as const).flatMap((dtype) => [
  { ...plain, dtype, headDim: 128, rotaryDims: 96, longBeyond: 50 },
  { ...plain, dtype, headDim: 64, headsPerKv: 7, normed: "queries and keys", rotaryDims: 32 },
  { ...plain, dtype, headDim: 128, headsPerKv: 4, window: 50, sinks: true, splits: 4 },
]);

const gpuCases: readonly Case[] = (["float16", "bfloat16"] as const).flatMap((dtype) => [
  ...[80, 96, 256, 512].map((headDim) => ({ ...plain, dtype, headDim, rotaryDims: headDim })),
  { ...plain, dtype, headDim: 64, headsPerKv: 4, window: 32, chunked: true, softcap: 2 },
  { ...plain, dtype, headDim: 128, kvHeads: 1, headsPerKv: 16, rotaryDims: 128, splits: 8 },
]);

export function attentionChecks(device: Device): DeviceCheck[] {
  const some = [...cases, ...halfCases, ...(device.backend === "cpu" ? [] : gpuCases)];
  return some.flatMap((each) => {
    const attention = device.attention(shapeOf(each), each.dtype);
    const hasChunks = attention.chunks !== undefined;
    attention.free();
    const kinds: Kind[] = ["decode", "prompt", ...(hasChunks ? (["chunks"] as const) : [])];
    const isFirstOfType = each === some.find(({ dtype }) => dtype === each.dtype);
    if (isFirstOfType) kinds.push("shared keys", "copy");
    return kinds.map((kind) => ({
      name: `attention, ${kind}: ${described(each)}`,
      run: (device) => check(kind, each, device),
    }));
  });
}

type Kind = "decode" | "prompt" | "chunks" | "shared keys" | "copy";

/** Per sequence, the number of cached tokens (`start`) and of tokens that a step adds; decode steps add one. */
const sequences = [
  { start: 0, added: 7 },
  { start: 32, added: 34 },
  { start: 99, added: 3 },
  { start: 200, added: 1 },
];
const WIDTH = 8;
const BLOCKS = sequences.length * WIDTH;

/** Returns the block of a position. Block tables are deliberately not ascending. */
const blockOf = (row: number, position: number) =>
  ((row * WIDTH + Math.floor(position / BLOCK_TOKENS)) * 5) % BLOCKS;

const shapeOf = ({ headDim, kvHeads, headsPerKv }: Case) => ({
  heads: kvHeads * headsPerKv,
  kvHeads,
  headDim,
});

function described({ headDim, kvHeads, headsPerKv, dtype, ...options }: Case): string {
  const rest = Object.entries(options).map(([key, value]) =>
    value === true ? key : `${key} ${value}`,
  );
  return [`${kvHeads * headsPerKv}/${kvHeads} heads of ${headDim}`, dtype, ...rest].join(", ");
}

function check(kind: Kind, each: Case, device: Device): Finding[] {
  const shape = shapeOf(each);
  const { dtype } = each;
  const made = makeInputs(kind, each);
  const expected = compute(
    kind,
    new PlainAttention(shape),
    made,
    { dtype: "float32" },
    each.splits,
  );
  const attention = device.attention(shape, dtype);
  const form = { dtype, kept: device.kvType(dtype), isTransposed: device.backend === "cpu" };
  const found = compute(kind, attention, made, form, each.splits);
  attention.free();
  const most = { float32: device.backend === "cpu" ? 1e-5 : 2e-4, float16: 4e-3, bfloat16: 3e-2 };
  return (["output", "keys", "values"] as const).map((what) =>
    compared(what, found[what], expected[what], most[dtype]),
  );
}

/** Storage format of arrays. `isTransposed`: key blocks with the tokens as last axis, as on a CPU. */
type Form = { dtype: Dtype; kept?: Dtype; isTransposed?: boolean };

type Inputs = ReturnType<typeof makeInputs>;

function ropeOf(dims: number, base: number, magnitude: number) {
  const wavelengths = Float32Array.from({ length: dims / 2 }, (_, i) => base ** (i / 20));
  return { wavelengths: array(wavelengths), magnitude };
}

/** Makes inputs rounded to the case's type, stored as float32. */
function makeInputs(kind: Kind, each: Case) {
  const { headDim, kvHeads, dtype, normed, rotaryDims, longBeyond } = each;
  const { window, chunked, softcap } = each;
  const { heads } = shapeOf(each);
  const rounded = (key: string, shape: number[]) => {
    const count = shape.reduce((a, b) => a * b);
    return astype(astype(array(noise(key, count), shape), dtype), "float32");
  };
  const isDecode = kind === "decode";
  const rows = sequences.map(({ start, added }) => ({ start, count: isDecode ? 1 : added }));
  const sharesKv = kind === "shared keys";
  const tokens = rows.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => {
      const position = start + i;
      const slot = blockOf(row, position) * BLOCK_TOKENS + (position % BLOCK_TOKENS);
      return { position, slot, row, isLong: start + count > (longBeyond ?? Infinity) };
    }),
  );
  /** Makes a pool whose slots without a token hold NaN, so that reading one spoils the result. */
  const pool = (key: string) => {
    const filled = new Float32Array(BLOCKS * kvHeads * BLOCK_TOKENS * headDim).fill(Number.NaN);
    for (const [row, { start, count }] of rows.entries()) {
      const known = noise(`${key} ${row}`, (start + count) * kvHeads * headDim);
      for (let position = 0; position < (sharesKv ? start + count : start); position++) {
        for (let kv = 0; kv < kvHeads; kv++) {
          const from = (position * kvHeads + kv) * headDim;
          const slot = (blockOf(row, position) * kvHeads + kv) * BLOCK_TOKENS;
          const to = (slot + (position % BLOCK_TOKENS)) * headDim;
          filled.set(known.subarray(from, from + headDim), to);
        }
      }
    }
    return filled;
  };
  const work: LayerWork = {
    norms: normed && {
      query: rounded("query norm", [headDim]),
      key: rounded("key norm", [headDim]),
      value: normed === "values too" ? rounded("value norm", [headDim]) : undefined,
      eps: 1e-5,
    },
    rope: rotaryDims
      ? {
          dims: rotaryDims,
          ...ropeOf(rotaryDims, 100, 1.1),
          long: longBeyond ? { ...ropeOf(rotaryDims, 70, 0.9), beyond: longBeyond } : undefined,
        }
      : undefined,
    scale: headDim ** -0.5,
    window,
    chunked,
    softcap,
    sinks: each.sinks ? rounded("sinks", [heads]) : undefined,
    sharesKv,
  };
  const columns = (heads + (sharesKv ? 0 : 2 * kvHeads)) * headDim;
  return {
    rows,
    qkv: rounded("qkv", [tokens.length, columns]),
    keys: pool("keys"),
    values: pool("values"),
    poolShape: [BLOCKS, kvHeads, BLOCK_TOKENS, headDim] as const,
    dtype,
    tables: array(
      packTables(
        rows.map(({ start, count }, row) => ({
          length: start + count,
          blocks: Array.from({ length: WIDTH }, (_, i) => blockOf(row, i * BLOCK_TOKENS)),
        })),
        WIDTH,
      ),
    ),
    places: array(packPlaces(tokens)),
    work,
  };
}

function compute(
  kind: Kind,
  by: BlockAttention,
  { rows, qkv, keys, values, poolShape, dtype: rounded, tables, places, work }: Inputs,
  { dtype, kept = dtype, isTransposed = false }: Form,
  splits?: number,
) {
  // Device and reference have separate pools, so that the device does not see what the reference writes.
  const stored = (pool: Float32Array, isKeys: boolean) => {
    const made = astype(astype(array(pool, poolShape), rounded), kept);
    if (!isKeys || !isTransposed) return made;
    return reshape(contiguous(swapAxes(made, 2, 3)), poolShape);
  };
  const pools: Pools = { keys: stored(keys, true), values: stored(values, false) };
  evaluate(pools.keys, pools.values);
  const own = astyped(work, dtype);
  const x = astype(qkv, dtype);
  const output = launch();
  const found = numbersOf(output);
  const [blocks, kvHeads, tokens, headDim] = poolShape;
  const read = isTransposed
    ? swapAxes(reshape(pools.keys, [blocks, kvHeads, headDim, tokens]), 2, 3)
    : pools.keys;
  return { output: found, keys: numbersOf(read), values: numbersOf(pools.values) };

  function launch(): MlxArray {
    if (kind === "decode") return by.decode(x, pools, tables, own, splits);
    if (kind === "copy") {
      // Copies two blocks in one launch, and evaluates both pools together.
      const pairs = array(
        Int32Array.of(blockOf(1, 0), blockOf(0, 64), blockOf(3, 32), blockOf(2, 200)),
      );
      evaluate(by.copy(pools.keys, pairs), by.copy(pools.values, pairs));
      return array([0]);
    }
    const queries = by.prepare(x, pools, places, own);
    if (kind !== "chunks" || !by.chunks) return by.attend(queries, pools, tables, places, own);
    const tiles = array(packTiles(rows, by.chunks.tile));
    return by.chunks.attend(queries, pools, tables, places, tiles, own);
  }
}

function astyped(work: LayerWork, dtype: Dtype): LayerWork {
  const { norms, sinks } = work;
  const to = (x: MlxArray | undefined) => x && astype(x, dtype);
  return {
    ...work,
    norms: norms && {
      ...norms,
      query: to(norms.query)!,
      key: to(norms.key),
      value: to(norms.value),
    },
    sinks: to(sinks),
  };
}
