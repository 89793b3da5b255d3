// Records the kernel launches of every relevant shape, without a GPU.
import { findLibrary } from "../../ffi/native.ts";
import { warpgroupChunks } from "../../src/device/cuda.ts";
import { openDevice } from "../../src/device/open.ts";
import { HeadProducts } from "../../src/kernels/attention/head-product.ts";
import { LatentKernels } from "../../src/kernels/attention/latent-attention.ts";
import {
  type LayerWork,
  PagedAttention,
  packPlaces,
  packTables,
} from "../../src/kernels/attention/paged-attention.ts";
import { gpuFacts } from "../../src/kernels/host/gpu.ts";
import type { Matrix } from "../../src/kernels/product/matrix.ts";
import { Products } from "../../src/kernels/product/product.ts";
import { PromptHeads } from "../../src/kernels/product/prompt-heads.ts";
import { packMoves, type Scan } from "../../src/kernels/recurrence/recurrence.ts";
import { RecurrenceKernels } from "../../src/kernels/recurrence/recurrence-kernels.ts";
import { BestKernels } from "../../src/kernels/token/best.ts";
import { Gates } from "../../src/kernels/token/gate.ts";
import { Lookups } from "../../src/kernels/token/lookup.ts";
import { type Routing, RoutingKernels } from "../../src/kernels/token/routing.ts";
import { PendingSum, SumNorms } from "../../src/kernels/token/sum-norm.ts";
import { array, type MlxArray } from "../../src/mlx/array.ts";
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { KernelLaunch, KernelSource, Language } from "../../src/mlx/kernel.ts";
import { quantize, zeros } from "../../src/mlx/ops.ts";
import { openMlx } from "../../src/mlx/runtime.ts";
import { Scope } from "../../src/mlx/scope.ts";
import { deviceChecks, outcomeOf } from "../../src/self-test/device-checks.ts";
import { recordingKernel } from "../../test/support/recording-kernel.ts";

export type Launch = {
  kernel: KernelSource;
  launch: KernelLaunch;
  /** In the order of the kernel's names. */
  inputs: readonly { dtype: Dtype; shape: readonly number[] }[];
};

const launches: Launch[] = [];

const recordedKernel = recordingKernel((kernel, launch, inputs) => {
  const kept = inputs.map(({ dtype, shape }) => ({ dtype, shape }));
  launches.push({ kernel, launch, inputs: kept });
});

const hopper = gpuFacts({ architecture: "sm_90" });

const HEAD_DIMS = [64, 80, 96, 128, 192, 256, 512];
const DTYPES = ["float32", "float16", "bfloat16"] as const;
const KV_HEADS = 2;
/** Query heads per KV head; a CTA computes up to 4 together. */
const HEADS_PER_KV = [1, 2, 3, 4];
/** Includes 1, because MLX passes small inputs to Metal in another address space. */
const TOKENS = [1, 16];

export function recordLaunches(language: Language): readonly Launch[] {
  openMlx(findLibrary(), { device: "cpu" });
  for (const dtype of DTYPES) {
    recordAttention(language, dtype);
    recordLatents(language, dtype);
    recordRecurrence(language, dtype);
    recordRouting(language, dtype);
    recordBest(language, dtype);
  }
  for (const dtype of language === "cuda" ? (["float16", "bfloat16"] as const) : []) {
    recordProducts(dtype);
    recordStreams(dtype);
    recordSumNorms(dtype);
    recordGates(dtype);
    recordLookups(dtype);
    recordWideExperts(dtype);
    recordWarpgroups(dtype);
    recordDense(dtype);
    recordPromptHeads(dtype);
    recordHeadProducts(dtype);
  }
  if (language === "metal") recordSelfTest();
  return launches;
}

/** Kernels of the self-test, which users' Macs compile. */
function recordSelfTest(): void {
  const device = openDevice("metal", {}, recordedKernel);
  const own = /^(latent )?attention|^convolution|^scan/;
  for (const check of deviceChecks(device).filter(({ name }) => own.test(name))) {
    outcomeOf(check, device);
  }
  device.free();
}

function recordAttention(language: Language, dtype: Dtype): void {
  for (const headDim of HEAD_DIMS) {
    for (const headsPerKv of HEADS_PER_KV) {
      using _ = new Scope();
      const heads = KV_HEADS * headsPerKv;
      const shape = { heads, kvHeads: KV_HEADS, headDim };
      const attention = new PagedAttention(language, shape, dtype, recordedKernel);
      const warpgroups = warpgroupChunks(hopper);
      const onHopper = new PagedAttention(language, shape, dtype, recordedKernel, warpgroups);
      const pool = zeros([4, KV_HEADS, 32, headDim], dtype);
      const pools = { keys: pool, values: pool };
      for (const tokens of TOKENS) {
        const qkv = zeros([tokens, (heads + 2 * KV_HEADS) * headDim], dtype);
        const { tables, places } = tablesOf(tokens);
        for (const work of worksOf(heads, headDim)) {
          attention.decode(qkv, pools, tables, work);
          attention.decode(qkv, pools, tables, work, 4);
          for (const splits of [2, 8]) {
            if (onHopper.clustered) onHopper.decode(qkv, pools, tables, work, splits);
          }
          const queries = attention.prepare(qkv, pools, places, work);
          attention.attend(queries, pools, tables, places, work);
          const tiles = array(new Int32Array(2 * tokens));
          attention.chunks?.attend(queries, pools, tables, places, tiles, work);
          onHopper.chunks?.attend(queries, pools, tables, places, tiles, work);
        }
        attention.copy(pool, array(new Int32Array(2 * tokens)));
      }
      attention.free();
      onHopper.free();
    }
  }
}

function tablesOf(tokens: number) {
  const rows = Array.from({ length: tokens }, () => ({ length: 1, blocks: [0] }));
  const places = rows.map(() => ({ position: 0, slot: 0, row: 0 }));
  return { tables: array(packTables(rows, 8)), places: array(packPlaces(places)) };
}

/** Attention without and with all options for heads and scores. */
function worksOf(heads: number, headDim: number): LayerWork[] {
  const norm = zeros([headDim], "float32");
  const wavelengths = zeros([headDim / 2], "float32");
  return [
    { scale: 1 },
    {
      norms: { query: norm, key: norm, eps: 1e-6 },
      rope: {
        dims: headDim,
        wavelengths,
        magnitude: 1,
        long: { beyond: 4096, wavelengths, magnitude: 1 },
      },
      scale: 1,
      window: 128,
      sinks: zeros([heads], "float32"),
      softcap: 50,
    },
  ];
}

function recordLatents(language: Language, dtype: Dtype): void {
  for (const heads of [1, 16, 40, 128]) {
    using _ = new Scope();
    const shape = { heads, latent: 512, rotary: 64 };
    const latents = new LatentKernels(language, shape, dtype, recordedKernel);
    const dims = shape.latent + shape.rotary;
    const pool = zeros([4, 1, 32, dims], dtype);
    const wavelengths = zeros([shape.rotary / 2], "float32");
    const norm = Object.assign((x: MlxArray) => x, { weight: zeros([512], dtype), eps: 1e-6 });
    const work = { scale: 1, norm, rope: { dims: shape.rotary, wavelengths, magnitude: 1 } };
    for (const tokens of TOKENS) {
      const projected = zeros([tokens, heads * 192 + dims], dtype);
      const rows = {
        absorbed: zeros([tokens, heads * shape.latent], dtype),
        placed: { rows: projected, first: 128, stride: 192 },
        latents: { rows: projected, first: heads * 192 },
      };
      const { tables, places } = tablesOf(tokens);
      const tiles = array(new Int32Array(2 * tokens));
      latents.decode(rows, pool, tables, work);
      latents.decode(rows, pool, tables, work, 4);
      latents.attend(rows, pool, tables, places, work, tiles);
      latents.copy(pool, array(new Int32Array(2 * tokens)));
    }
    latents.free();
  }
}

/** A gated delta net, and Mamba 2. */
function recordRecurrence(language: Language, dtype: Dtype): void {
  for (const tokens of TOKENS) {
    using _ = new Scope();
    const recurrence = new RecurrenceKernels(language, recordedKernel, 1);
    const moves = array(packMoves([{ first: 0, count: tokens, from: 0, to: 0 }]));
    const [heads, dim, channels] = [4, 128, 1024];
    const floats = (...shape: number[]) => zeros(shape, "float32");
    const raw = zeros([tokens, 2048], dtype);
    for (const bias of [undefined, floats(channels)]) {
      const convolution = { weight: floats(4, channels), bias, column: 512 } as const;
      const pool = floats(2, 3, channels);
      recurrence.convolve(raw, pool, moves, convolution);
      recurrence.convolve(raw, pool, moves, { ...convolution, activation: "silu" });
    }
    const x = zeros([tokens, channels], dtype);
    const pool = floats(2, heads, dim, dim);
    const delta: Scan = {
      keyHeads: 2,
      columns: { queries: 0, keys: 256, values: 512 },
      norm: { eps: 1e-6, queryScale: 1, keyScale: 1 },
      deltaRule: true,
    };
    const mamba: Scan = { ...delta, norm: undefined, deltaRule: false, skip: floats(heads) };
    const norm = { weight: zeros([dim], dtype), eps: 1e-6 };
    const columns = { steps: 0, rate: floats(heads), bias: floats(heads) };
    const betas = floats(tokens, heads);
    const output = { column: 512, norm };
    recurrence.scan(
      { x, gates: { raw, columns: { ...columns, betas: 4, output } } },
      pool,
      moves,
      delta,
    );
    recurrence.scan({ x, gates: { raw, columns } }, pool, moves, mamba);
    for (const decays of [floats(tokens, heads), floats(tokens, heads * dim)]) {
      recurrence.scan({ x, gates: { decays, betas } }, pool, moves, delta);
    }
    // Mamba, with a head per channel, and RWKV 7.
    const byFeature = { ...columns, rate: floats(heads * 16) };
    recurrence.scan(
      { x, gates: { raw, columns: byFeature } },
      floats(2, heads, 1, 16),
      moves,
      mamba,
    );
    const erasing = { find: 256, put: 512 };
    recurrence.scan(
      { x, gates: { decays: floats(tokens, heads * 64), betas } },
      floats(2, heads, 64, 64),
      moves,
      { ...delta, keyHeads: heads, norm: undefined, deltaRule: false, erasing },
    );
    // Heads that read only some columns of the rows.
    const small = { decays: floats(tokens, heads), betas };
    recurrence.scan({ x, gates: small }, floats(2, heads, 64, 96), moves, delta);
    recurrence.free();
  }
}

function recordBest(language: Language, dtype: Dtype): void {
  using _ = new Scope();
  const kernels = new BestKernels(language, recordedKernel);
  for (const tokens of TOKENS) kernels.best(zeros([tokens, 1000], dtype));
  kernels.free();
}

function recordSumNorms(dtype: Dtype): void {
  using _ = new Scope();
  const norms = new SumNorms(recordedKernel);
  const weight = zeros([2048], dtype);
  for (const tokens of TOKENS) {
    const rowsOf = (...shape: number[]) => zeros([tokens, ...shape], dtype);
    const experts = { made: rowsOf(7, 2048), shares: zeros([tokens, 7], "float32") };
    for (const addends of [{ made: rowsOf(2048) }, experts]) {
      const sum = new PendingSum(rowsOf(2048), { residual: rowsOf(2048), ...addends });
      norms.norm(sum, weight, 1e-6);
    }
    norms.norm(rowsOf(2048), weight, 1e-6);
  }
  norms.free();
}

function recordRouting(language: Language, dtype: Dtype): void {
  for (const tokens of TOKENS) {
    using _ = new Scope();
    const kernels = new RoutingKernels(language, recordedKernel);
    const plain: Routing = {
      experts: 128,
      each: 8,
      scores: "softmax",
      isNormalized: true,
      scale: 1,
      shared: { count: 0, isGated: false },
    };
    const routings: Routing[] = [
      plain,
      { ...plain, experts: 512, shared: { count: 1, isGated: true } },
      {
        ...plain,
        experts: 256,
        scores: "sigmoid",
        correction: zeros([256], "float32"),
        groups: { count: 8, kept: 4, best: 2 },
      },
      { ...plain, groups: { count: 8, kept: 4, best: 2, leavesOut: true } },
    ];
    for (const routing of routings) {
      const width = routing.experts + (routing.shared.isGated ? 1 : 0);
      kernels.route(zeros([tokens, width], dtype), routing);
      kernels.route(zeros([tokens, 2048], dtype), routing, zeros([width, 2048], dtype));
    }
    const made = zeros([tokens, 9, 2048], dtype);
    const shares = zeros([tokens, 9], "float32");
    kernels.combine(made, shares, undefined);
    kernels.combine(made, shares, zeros([tokens, 2048], dtype));
    kernels.free();
  }
}

function recordGates(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const gates = new Gates(recordedKernel);
  gates.swiglu(zeros([3, 96], dtype));
  gates.free();
}

/** One token and many, with fewer and more packs per row than a CTA has threads. */
function recordLookups(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const lookups = new Lookups(recordedKernel);
  for (const dims of [1024, 3072, 16_384]) {
    for (const tokens of [1, 1024]) {
      lookups.rows(zeros([64, dims], dtype), array(new Uint32Array(tokens)));
    }
  }
  lookups.free();
}

/** To the latents of 16 heads and back. */
function recordHeadProducts(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const products = new HeadProducts(recordedKernel);
  for (const tokens of [1, 32, 64]) {
    const queries = { rows: zeros([tokens, 16 * 192], dtype), first: 0, stride: 192 };
    const attended = { rows: zeros([tokens, 16 * 512], dtype), first: 0, stride: 512 };
    products.product(queries, { weight: zeros([16, 128, 512], dtype), isTransposed: true });
    products.product(attended, { weight: zeros([16, 128, 512], dtype), isTransposed: false });
  }
  products.free();
}

/** Products by tensor cores, dense and quantized, for few and many rows, and with experts. */
function recordProducts(dtype: "float16" | "bfloat16"): void {
  for (const bits of [16, 8, 4]) {
    using _ = new Scope();
    const products = new Products(gpuFacts({}), recordedKernel);
    const matrixOf = (...shape: number[]): Matrix => {
      const weight = zeros(shape, dtype);
      if (bits === 16) return { kind: "dense", weight };
      const quantization = { mode: "affine", groupSize: 64, bits } as const;
      return { kind: "packed", matrix: quantize(weight, quantization), quantization };
    };
    for (const outputs of [1024, 4608, 12_288]) {
      const matrix = matrixOf(outputs, 512);
      const norm = Object.assign((x: MlxArray) => x, { weight: zeros([512], dtype), eps: 1e-6 });
      for (const rows of bits === 16 ? [1, 16] : [1, 16, 32, 64, 200]) {
        const x = zeros([rows, 512], dtype);
        products.product(x, matrix, {});
        products.product(x, matrix, { norm, residual: zeros([rows, outputs], dtype) });
        products.product(x, matrix, { norm, isGated: true });
      }
    }
    // One token, with the maximum loads in flight per lane.
    for (const inputs of bits === 16 ? [2048, 8192] : [3072, 8192, 10_240]) {
      const x = zeros([1, inputs], dtype);
      const norm = Object.assign((x: MlxArray) => x, { weight: zeros([inputs], dtype), eps: 1e-6 });
      products.product(x, matrixOf(8192, inputs), { norm, isGated: true });
    }
    const experts = matrixOf(16, 1024, 512);
    for (const tokens of [1, 2, 64, 128, 1024]) {
      const chosen = array(new Uint32Array(4 * tokens));
      const plan = products.plan(chosen, tokens, experts)!;
      products.experts(zeros([tokens, 512], dtype), experts, plan, true);
      products.experts(zeros([4 * tokens, 512], dtype), experts, plan, false);
    }
    products.free();
  }
}

/** One token with a quantized matrix on a Hopper GPU: all tiles resident, and a large output head. */
function recordStreams(dtype: "float16" | "bfloat16"): void {
  const products = new Products(hopper, recordedKernel);
  for (const [bits, groupSize, outputs, inputs] of [
    [4, 64, 5120, 3072],
    [4, 64, 3072, 8192],
    [4, 64, 16_384, 3072],
    [4, 64, 128_256, 3072],
    [4, 32, 6144, 1024],
    [4, 128, 6144, 5120],
    [8, 32, 4096, 4096],
    [8, 64, 16_384, 2048],
    [8, 128, 3072, 8192],
  ] as const) {
    using _ = new Scope();
    const quantization = { mode: "affine", groupSize, bits } as const;
    const matrix = quantize(zeros([outputs, inputs], dtype), quantization);
    const form: Matrix = { kind: "packed", matrix, quantization };
    const x = zeros([1, inputs], dtype);
    const norm = Object.assign((x: MlxArray) => x, { weight: zeros([inputs], dtype), eps: 1e-6 });
    products.product(x, form, {});
    products.product(x, form, { residual: zeros([1, outputs], dtype) });
    products.product(x, form, { norm });
    products.product(x, form, { norm, isGated: true });
  }
  products.free();
}

/** Many rows with a quantized matrix, with wgmma: CTAs of each size, with and without clusters. */
function recordWarpgroups(dtype: "float16" | "bfloat16"): void {
  for (const [tiles, shares, bits, groupSize, ...numbers] of [
    [1, 1, 4, 64, 32, 64, 96, 128, 192, 256],
    [2, 1, 4, 64, 32, 64, 96, 128],
    [1, 4, 4, 64, 64, 128, 256],
    [2, 2, 4, 64, 64, 128],
    [2, 8, 4, 64, 32, 64, 96, 128],
    [2, 1, 4, 32, 128],
    [2, 1, 4, 128, 128],
    [1, 1, 8, 64, 64, 256],
    [2, 1, 8, 32, 128],
    [2, 2, 8, 64, 128],
  ] as const) {
    using _ = new Scope();
    const products = new Products(hopper, recordedKernel, undefined, {
      tiles,
      shares,
      leastRows: 17,
    });
    const quantization = { mode: "affine", groupSize, bits } as const;
    const matrix = quantize(zeros([512, 1024], dtype), quantization);
    const packed = { kind: "packed", matrix, quantization } as const;
    for (const rows of numbers) {
      const x = zeros([rows, 1024], dtype);
      products.product(x, packed, { isGated: true });
      products.product(x, packed, { residual: zeros([rows, 512], dtype) });
    }
    products.free();
  }
}

/** A few rows with a dense matrix, with wgmma: CTAs of one and two warpgroups, and clusters. */
function recordDense(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const products = new Products(hopper, recordedKernel);
  for (const [outputs, inputs] of [
    [1024, 2048],
    [1024, 3072],
    [4096, 1024],
    [3072, 8192],
    [16384, 3072],
  ] as const) {
    const matrix = { kind: "dense", weight: zeros([outputs, inputs], dtype) } as const;
    for (const rows of [32, 64, 96, 128]) {
      const x = zeros([rows, inputs], dtype);
      products.product(x, matrix, { isGated: true });
      products.product(x, matrix, { residual: zeros([rows, outputs], dtype) });
    }
    products.product(zeros([8192, inputs], dtype), matrix, { isGated: true });
  }
  products.free();
}

/** Queries, keys and values of prompts, fused with their product, with wgmma. */
function recordPromptHeads(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const [rows, dims, headDim] = [8192, 1024, 128];
  for (const heads of [4, 28]) {
    const promptHeads = new PromptHeads(hopper, recordedKernel);
    const shape = { heads, kvHeads: KV_HEADS, headDim };
    const attention = new PagedAttention(
      "cuda",
      shape,
      dtype,
      recordedKernel,
      undefined,
      promptHeads,
    );
    const columns = (heads + 2 * KV_HEADS) * headDim;
    const qkv = promptHeads.pending(zeros([rows, columns], dtype), {
      x: zeros([rows, dims], dtype),
      weight: zeros([columns, dims], dtype),
    });
    const pool = zeros([4, KV_HEADS, 32, headDim], dtype);
    const { places } = tablesOf(rows);
    for (const work of worksOf(heads, headDim)) {
      for (const lastQueries of [false, true]) {
        const pools = { keys: pool, values: pool };
        attention.prepare(qkv, pools, places, { ...work, norms: undefined }, lastQueries);
      }
    }
    attention.free();
    promptHeads.free();
  }
}

/** Many rows with dense experts, with wgmma. */
function recordWideExperts(dtype: "float16" | "bfloat16"): void {
  using _ = new Scope();
  const products = new Products(hopper, recordedKernel);
  const [tokens, each] = [2048, 6];
  for (const [experts, width] of [
    [32, 512],
    [64, 1408],
  ] as const) {
    const matrixOf = (...shape: number[]): Matrix => ({
      kind: "dense",
      weight: zeros([experts, ...shape], dtype),
    });
    const [up, down] = [matrixOf(2 * width, 2048), matrixOf(2048, width)];
    const plan = products.plan(array(new Uint32Array(tokens * each)), tokens, up)!;
    products.experts(zeros([tokens, 2048], dtype), up, plan, true);
    products.experts(zeros([tokens * each, width], dtype), down, plan, false);
  }
  products.free();
}
