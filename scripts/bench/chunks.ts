// Benchmarks attention over prompt chunks on an NVIDIA GPU with wgmma: the Hopper kernel
// (src/kernels/attention/warpgroup-chunks.c) against the kernel for all GPUs (src/kernels/attention/chunks.c),
// interleaved: `MLX_SERVE_BACKEND=cuda bun scripts/bench/chunks.ts [--rounds 5]`. The default shape is that of
// Qwen3-0.6B; another one: `--heads 24 --kv-heads 8 --head-dim 128 --window 1024`. `--variants 64x2x0,128x3x132` sets
// keys per step, pipeline stages and persistent CTAs; 0 means one CTA per tile. Fails if any results differ.
import { findLibrary } from "../../ffi/native.ts";
import { warpgroupChunks } from "../../src/device/cuda.ts";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
  packTiles,
  type WarpgroupChunks,
} from "../../src/kernels/attention/paged-attention.ts";
import { gpuFacts } from "../../src/kernels/host/gpu.ts";
import { BLOCK_TOKENS } from "../../src/kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../../src/mlx/array.ts";
import { makeKernel } from "../../src/mlx/kernel.ts";
import { astype } from "../../src/mlx/ops.ts";
import { key, normal } from "../../src/mlx/random.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { readFlags } from "../flags.ts";

const { rounds, heads, kvHeads, headDim, window, variants } = readFlags({
  rounds: 5,
  heads: 16,
  kvHeads: 8,
  headDim: 128,
  window: 0,
  variants: "",
});
const dtype = "bfloat16";
const work: LayerWork = {
  scale: headDim ** -0.5,
  window: window || undefined,
};

/** Prompt tokens in a step; each prompt has `start` tokens before its chunk. */
const loads = [
  { name: "8 x 1,024", chunks: repeat(8, { start: 0, count: 1024 }) },
  { name: "1 x 8,192", chunks: [{ start: 0, count: 8192 }] },
  { name: "2,048 after 6,144", chunks: [{ start: 6144, count: 2048 }] },
  { name: "64 x 32 after 1,024", chunks: repeat(64, { start: 1024, count: 32 }) },
  { name: "64 x 1 after 1,024", chunks: repeat(64, { start: 1024, count: 1 }) },
  {
    name: "8 x 1,017 beside 56 x 1 after 1,024",
    chunks: [...repeat(56, { start: 1024, count: 1 }), ...repeat(8, { start: 0, count: 1017 })],
  },
  { name: "1 x 100", chunks: [{ start: 0, count: 100 }] },
];
/** Consecutive launches, to exclude the host's overhead. */
const CHAIN = 20;

const { device } = openMlx(findLibrary(), { device: "gpu" });
const gpu = gpuFacts(device);
if (!gpu.hasWgmma) throw new Error("this GPU has no wgmma");

const made = (hopper: WarpgroupChunks | undefined) =>
  new PagedAttention("cuda", { heads, kvHeads, headDim }, dtype, makeKernel, hopper);
const kernels = new Map([
  ["chunks", made(undefined)],
  ["warpgroups", made(warpgroupChunks(gpu))],
  ...variants
    .split(",")
    .filter(Boolean)
    .map((each) => {
      const [keys, stages, groups] = each.split("x").map(Number) as [number, number, number];
      return [each, made({ keys, stages, groups })] as const;
    }),
]);

let isGood = true;
for (const { name, chunks } of loads) {
  using _ = new Scope();
  const width = Math.max(
    ...chunks.map(({ start, count }) => Math.ceil((start + count) / BLOCK_TOKENS)),
  );
  const blocks = chunks.length * width;
  // Shuffles the block tables.
  const rows = chunks.map(({ start, count }, row) => ({
    length: start + count,
    blocks: Array.from({ length: width }, (_, i) => ((row * width + i) * 7919) % blocks),
  }));
  const tokens = chunks.flatMap(({ start, count }, row) =>
    Array.from({ length: count }, (_, i) => ({ position: start + i, slot: 0, row })),
  );
  const random = (seed: number, shape: number[]) => astype(normal(key(seed), shape), dtype);
  const poolShape = [blocks, kvHeads, BLOCK_TOKENS, headDim];
  const pools = { keys: random(1, poolShape), values: random(2, poolShape) };
  const queries = random(3, [tokens.length, heads * headDim]);
  const [tables, places] = [array(packTables(rows, width)), array(packPlaces(tokens))];
  evaluate(pools.keys, pools.values, queries, tables, places);
  const launches = Array.from(kernels, ([kernel, { chunks: by }]) => {
    const tiles = array(packTiles(chunks, by!.tile));
    const attend = (x: MlxArray) => by!.attend(x, pools, tables, places, tiles, work);
    return { kernel, attend, seconds: Number.POSITIVE_INFINITY };
  });
  const results = launches.map(({ attend }) =>
    Float32Array.from(astype(attend(queries), "float32").numbers()),
  );
  for (let round = 0; round < rounds; round++)
    for (const launch of launches)
      launch.seconds = Math.min(launch.seconds, secondsOf(launch.attend, queries));
  const pairs = chunks.reduce(
    (sum, { start, count }) => sum + count * start + (count ** 2 + count) / 2,
    0,
  );
  console.log(`${name}:`);
  for (const [i, { kernel, seconds }] of launches.entries()) {
    const difference = furthest(results[0]!, results[i]!);
    if (!(difference < 2e-2)) isGood = false;
    const rate = (4 * heads * headDim * pairs) / seconds / 1e12;
    console.log(
      `  ${kernel.padEnd(18)} ${(seconds * 1e6).toFixed(1).padStart(8)} us ${rate.toFixed(0).padStart(5)} TFLOP/s` +
        `  ${(launches[0]!.seconds / seconds).toFixed(2)} x, differs by ${difference.toExponential(1)}`,
    );
  }
}
for (const each of kernels.values()) each.free();
if (!isGood) {
  console.error("the kernels differ");
  process.exitCode = 1;
}

function repeat<T>(times: number, each: T): T[] {
  return Array.from({ length: times }, () => each);
}

function secondsOf(attend: (x: MlxArray) => MlxArray, queries: MlxArray): number {
  using _ = new Scope();
  let made = queries;
  for (let i = 0; i < CHAIN; i++) made = attend(made);
  const start = Bun.nanoseconds();
  evaluate(made);
  return (Bun.nanoseconds() - start) / 1e9 / CHAIN;
}

/** NaN if either is. */
function furthest(a: Float32Array, b: Float32Array): number {
  let worst = 0;
  for (let i = 0; i < a.length; i++) worst = Math.max(worst, Math.abs(a[i]! - b[i]!));
  return worst;
}
