// A short benchmark. It first measures memory bandwidth and matmul throughput, and reports all other speeds relative
// to these limits, so that slow results stand out on machines without earlier measurements.
import type { Device, FloatType } from "../device/device.ts";
import { packedFor } from "../device/linear.ts";
import {
  type LayerWork,
  packPlaces,
  packTables,
  packTiles,
} from "../kernels/attention/paged-attention.ts";
import type { Matrix } from "../kernels/product/matrix.ts";
import { packMoves, type Scan } from "../kernels/recurrence/recurrence.ts";
import { BLOCK_TOKENS } from "../kv/blocks.ts";
import { array, evaluate, type MlxArray } from "../mlx/array.ts";
import { add, astype, matmul, quantize, zeros } from "../mlx/ops.ts";
import { key, normal } from "../mlx/random.ts";
import { Scope } from "../mlx/scope.ts";
import { keeping, noise } from "./check.ts";
import type { Figure } from "./lines.ts";

/** Measured limits of the machine: bytes and floating-point operations per second. */
export type Limits = { memory: number; products: number };

export type SpeedCheck = { name: string; run(device: Device, limits: Limits): Figure[] };

/** Sizes of arrays: on a GPU they exceed caches of tens of megabytes, and fill all SMs. */
const sizesOf = ({ backend }: Device) =>
  backend === "cpu" ? { elements: 2 ** 23, side: 512 } : { elements: 2 ** 26, side: 4096 };

const typeOf = (device: Device): FloatType => device.computeType("bfloat16");
const bytesOf = (device: Device) => (typeOf(device) === "float32" ? 4 : 2);

const LEAST_MS = 150;
const MOST_RUNS = 50;

/** Returns the seconds of the best run, after a first run that may compile kernels. */
function secondsOf(launch: () => MlxArray): number {
  const once = () => {
    using _ = new Scope();
    const made = launch();
    const start = Bun.nanoseconds();
    evaluate(made);
    return (Bun.nanoseconds() - start) / 1e9;
  };
  once();
  const end = performance.now() + LEAST_MS;
  let best = Number.POSITIVE_INFINITY;
  for (let run = 0; run < 3 || (run < MOST_RUNS && performance.now() < end); run++) {
    best = Math.min(best, once());
  }
  return best;
}

function random(device: Device, shape: readonly number[]): MlxArray {
  const made = astype(normal(key(1), shape), typeOf(device));
  evaluate(made);
  return made;
}

export function measureLimits(device: Device): Limits {
  using _ = new Scope();
  const { elements, side } = sizesOf(device);
  const x = random(device, [elements]);
  const moved = 2 * elements * bytesOf(device);
  const [a, b] = [random(device, [side, side]), random(device, [side, side])];
  return {
    // Takes the better of two: on a CPU MLX adds on one thread, while a product uses all threads and more bandwidth.
    memory: Math.max(moved / secondsOf(() => add(x, 1)), vectorRate(device)),
    products: (2 * side ** 3) / secondsOf(() => matmul(a, b)),
  };
}

/** Returns the seconds of a matrix-vector product. */
function vectorSeconds(device: Device, matrix: Matrix, inputs: number): number {
  const x = random(device, [1, inputs]);
  return keeping((keep) => {
    const options = { dtype: typeOf(device), bias: undefined, keepDequantized: false, ...keep };
    const linear = device.linear(matrix, options);
    return secondsOf(() => linear(x));
  });
}

/** Returns the bytes per second at which a matrix-vector product reads its matrix. */
function vectorRate(device: Device): number {
  const inputs = 2048;
  const weight = random(device, [sizesOf(device).elements / inputs, inputs]);
  return weight.bytes / vectorSeconds(device, { kind: "dense", weight }, inputs);
}

export const speedChecks: readonly SpeedCheck[] = [
  {
    name: "speed: memory and products",
    run: (_, { memory, products }) => [
      { name: "memory", value: memory / 1e9, unit: "GB/s" },
      { name: "large matrix products", value: products / 1e9, unit: "GFLOP/s" },
    ],
  },
  { name: "speed: matrix-vector products", run: measureVectors },
  { name: "speed: attention", run: measureAttention },
  { name: "speed: scan", run: measureScan },
];

const ofMemory = (rate: number, { memory }: Limits, least: number) => ({
  of: "memory bandwidth",
  value: rate / memory,
  least,
});

function measureVectors(device: Device, limits: Limits): Figure[] {
  const inputs = 2048;
  const dense = vectorRate(device);
  const quantization = { mode: "affine", bits: 4, groupSize: 64 } as const;
  const outputs = sizesOf(device).elements / inputs;
  const matrix = packedFor(device, quantize(random(device, [outputs, inputs]), quantization));
  const parts = [matrix.weight, matrix.scales, matrix.biases!];
  evaluate(...parts);
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  const packed = bytes / vectorSeconds(device, { kind: "packed", matrix, quantization }, inputs);
  const figure = (what: string, rate: number, least: number): Figure => ({
    name: `matrix-vector product, ${what}`,
    value: rate / 1e9,
    unit: "GB/s",
    part: ofMemory(rate, limits, least),
  });
  return [figure(typeOf(device), dense, 0.3), figure("4 bits", packed, 0.1)];
}

const [HEADS, KV_HEADS, HEAD_DIM] = [16, 4, 128];
const CONTEXT = 1024;
const CHUNK = 256;

/** Measures attention to sequences of 1,024 tokens: a decode step of all of them, and a chunk at the end of one. */
function measureAttention(device: Device, limits: Limits): Figure[] {
  const rows = device.backend === "cpu" ? 8 : 64;
  const width = CONTEXT / BLOCK_TOKENS;
  const kept = device.kvType(typeOf(device));
  const pool = () => zeros([rows * width, KV_HEADS, BLOCK_TOKENS, HEAD_DIM], kept);
  const pools = { keys: pool(), values: pool() };
  evaluate(pools.keys, pools.values);
  const tableOf = (row: number) => ({
    length: CONTEXT,
    blocks: Array.from({ length: width }, (_, i) => row * width + i),
  });
  const shape = { heads: HEADS, kvHeads: KV_HEADS, headDim: HEAD_DIM };
  const attention = device.attention(shape, typeOf(device));
  const work: LayerWork = { scale: HEAD_DIM ** -0.5 };
  const tables = array(
    packTables(
      Array.from({ length: rows }, (_, row) => tableOf(row)),
      width,
    ),
  );
  const qkv = random(device, [rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM]);
  const decode = secondsOf(() => attention.decode(qkv, pools, tables, work));
  const start = CONTEXT - CHUNK;
  const tokens = Array.from({ length: CHUNK }, (_, i) => {
    return { position: start + i, slot: start + i, row: 0 };
  });
  const [places, table] = [array(packPlaces(tokens)), array(packTables([tableOf(0)], width))];
  const queries = random(device, [CHUNK, HEADS * HEAD_DIM]);
  const { chunks } = attention;
  const tiles = chunks && array(packTiles([{ start, count: CHUNK }], chunks.tile));
  const prompt = secondsOf(() =>
    chunks
      ? chunks.attend(queries, pools, table, places, tiles!, work)
      : attention.attend(queries, pools, table, places, work),
  );
  attention.free();
  const rate = (pools.keys.bytes + pools.values.bytes) / decode;
  const seen = tokens.reduce((sum, { position }) => sum + position + 1, 0);
  const products = (4 * HEADS * HEAD_DIM * seen) / prompt;
  return [
    {
      name: `attention of ${rows} tokens over ${CONTEXT} each`,
      value: rate / 1e9,
      unit: "GB/s",
      part: ofMemory(rate, limits, 0.1),
    },
    {
      name: `attention of a chunk of ${CHUNK} tokens`,
      value: products / 1e9,
      unit: "GFLOP/s",
      // The minimum is lower on GPUs without chunk kernels, because MLX's attention computes long prompts there.
      part: {
        of: "large matrix products",
        value: products / limits.products,
        least: chunks || device.backend === "cpu" ? 0.03 : 0.002,
      },
    },
  ];
}

/** Measures a scan of one token per sequence, which reads and writes the states of a layer. */
function measureScan(device: Device, limits: Limits): Figure[] {
  const [rows, heads, dims] = [device.backend === "cpu" ? 8 : 64, 16, 128];
  const pool = zeros([rows, heads, dims, dims]);
  evaluate(pool);
  const moves = Array.from({ length: rows }, (_, i) => ({ first: i, count: 1, from: i, to: i }));
  const scan: Scan = {
    keyHeads: heads,
    columns: { queries: 0, keys: heads * dims, values: 2 * heads * dims },
    norm: { eps: 1e-6, queryScale: 1 / dims, keyScale: dims ** -0.5 },
    deltaRule: true,
  };
  const gate = () =>
    array(
      noise("gates", rows * heads).map((x) => (x + 1) / 2),
      [rows, heads],
    );
  const inputs = {
    x: random(device, [rows, 3 * heads * dims]),
    gates: { decays: gate(), betas: gate() },
  };
  const recurrence = device.recurrence();
  const packed = array(packMoves(moves));
  const rate = (2 * pool.bytes) / secondsOf(() => recurrence.scan(inputs, pool, packed, scan));
  recurrence.free();
  return [
    {
      name: `scan of ${rows} sequences, one token each`,
      value: rate / 1e9,
      unit: "GB/s",
      part: ofMemory(rate, limits, 0.1),
    },
  ];
}
