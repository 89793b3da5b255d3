// An NVIDIA GPU: our own kernels for attention and for products with few rows or quantized weights,
// and decode steps recorded as CUDA graphs.
import { has } from "../../ffi/lib.ts";
import { fitsHeads, HeadProducts } from "../kernels/attention/head-product.ts";
import { LatentKernels } from "../kernels/attention/latent-attention.ts";
import { PagedAttention, type WarpgroupChunks } from "../kernels/attention/paged-attention.ts";
import { type Gpu, gpuFacts } from "../kernels/host/gpu.ts";
import type { Dense, Matrix, Packed } from "../kernels/product/matrix.ts";
import { fitsExperts, MOST_SORTED, Products } from "../kernels/product/product.ts";
import { PromptHeads } from "../kernels/product/prompt-heads.ts";
import { cheapest, mlxCost } from "../kernels/product/way.ts";
import { RecurrenceKernels } from "../kernels/recurrence/recurrence-kernels.ts";
import { BestKernels } from "../kernels/token/best.ts";
import { Gates } from "../kernels/token/gate.ts";
import { Lookups } from "../kernels/token/lookup.ts";
import { fitsRouting, fitsScoring, RoutingKernels } from "../kernels/token/routing.ts";
import { PendingSum, SumNorms } from "../kernels/token/sum-norm.ts";
import type { MlxArray } from "../mlx/array.ts";
import { rmsNorm } from "../mlx/fast.ts";
import { type MakeKernel, makeKernel } from "../mlx/kernel.ts";
import { add, dequantize, type QuantizedMatrix, swapAxes } from "../mlx/ops.ts";
import { fetched, pinned, Recorded } from "../mlx/recording.ts";
import type { Runtime } from "../mlx/runtime.ts";
import type {
  Compute,
  DeviceKind,
  ExpertProduct,
  Gating,
  HostTransfer,
  Linear,
  LinearOptions,
  MemoryKind,
  StepPolicy,
} from "./device.ts";
import { gpuCompute, gpuMemory, gpuSteps, hostValues, scoreBytes, sortBytes } from "./gpu.ts";
import {
  denseLinear,
  fused,
  fusedOptions,
  type Gate,
  gateHalves,
  quantizedLinear,
  weightLinear,
} from "./linear.ts";

/**
 * Token budget with the best prefill throughput (docs/log.md): tiles of 128 rows fill an H200's 132 SMs in whole
 * waves, and a prompt of 8,192 tokens leaves room for streams. Reduced for steps that would take too long.
 */
const TOKEN_BUDGET = 66 * 128;
/** Token budget when many streams decode, to bound their latency. Steps of this size need no padding. */
const BESIDE_TOKENS = 2048;
const STEP_MS = 250;
const SPARE_SHARE = 0.1;
const LEAST_PROMPT = 64;
const MOST_PADDING = 1024;
/**
 * FLOPS_PER_MS: throughput of 16-bit products, which take two FLOPs per token and weight, or one per token and byte.
 * LONGEST_RECORDED_MS: in a longer step the GPU takes longer than the host's launches, so recording gains nothing.
 */
const FLOPS_PER_MS = 6e11;
const LONGEST_RECORDED_MS = 25;
/** Number of rows from which on adding the residual in the matrix product costs no time. */
const ADDING_ROWS = 2048;

const takesLong = (tokens: number, weightBytes: number) =>
  (tokens * weightBytes) / FLOPS_PER_MS > LONGEST_RECORDED_MS;

const steps: StepPolicy = {
  ...gpuSteps,
  tokenBudget: TOKEN_BUDGET,
  besideTokens: BESIDE_TOKENS,
  // Pads for recording: launching a step unrecorded takes 16 ms, the GPU time of 8,000 tokens of a small model.
  paddedTokens: (tokens, weightBytes) => {
    if (takesLong(tokens, weightBytes)) return undefined;
    const octave = 2 ** Math.ceil(Math.log2(Math.max(tokens, LEAST_PROMPT)));
    const step = Math.min(octave / 4, MOST_PADDING);
    const padded = Math.ceil(Math.max(tokens, LEAST_PROMPT) / step) * step;
    return tokens <= TOKEN_BUDGET ? Math.min(padded, TOKEN_BUDGET) : padded;
  },
  beginsEarly: takesLong,
  stepMs: STEP_MS,
  trace: (build, rehearsal) => new Recorded(build, rehearsal),
};

const memory: MemoryKind = {
  ...gpuMemory,
  hasHostMemory: false,
  spareShare: SPARE_SHARE,
  // The host may be a thousand launches ahead, but waits for the GPU if memory is short. So a step needs only the
  // memory of the arrays that are alive at the same time.
  evaluation: {
    batches: 0,
    launches: 1,
    numbers: Number.POSITIVE_INFINITY,
    launchesOf: (_, isView) => (isView ? 0 : 1),
    temporaryBytes: (node) => sortBytes(node) + scoreBytes(node, () => true),
  },
};

/** Opens the device. Without our libmlxc nothing is recorded or pinned, and steps are compiled functions. */
export function cudaDevice(info: Runtime["device"], make: MakeKernel = makeKernel): DeviceKind {
  const facts = gpuFacts(info);
  const transfer = has("mlx_serve_pinned") ? pinnedValues : hostValues;
  const gpu = gpuCompute(transfer);
  const sums = new SumNorms(make);
  const norm: Compute["rmsNorm"] = (x, weight, eps) =>
    sums.norm(x, weight, eps) ?? rmsNorm(x, weight, eps);
  const products = new Products(facts, make, norm);
  const gates = new Gates(make);
  const gate: Gate = Object.assign((...given: Parameters<Gate>) => gpu.gate(...given), {
    halves: (gating: Gating, halves: MlxArray) =>
      gating === "swiglu" ? gates.swiglu(halves) : undefined,
  });
  const routing = new RoutingKernels("cuda", make);
  const heads = new HeadProducts(make);
  const promptHeads = facts.hasWgmma ? new PromptHeads(facts, make) : undefined;
  const rows = new BestKernels("cuda", make);
  const lookups = new Lookups(make);
  const copies = new WeakMap<QuantizedMatrix, Dense>();
  const compute: Compute = {
    ...gpu,
    gate,
    // A tied embedding may have a dequantized copy, made for the output projection: lookups are faster in the copy.
    lookup: (matrix, tokens, dtype) => {
      const copy = matrix.kind === "packed" ? copies.get(matrix.matrix) : undefined;
      const from = copy ?? matrix;
      const found = from.kind === "dense" ? lookups.rows(from.weight, tokens) : undefined;
      return found ?? gpu.lookup(from, tokens, dtype);
    },
    linear: (matrix, options) => {
      const { bias, dtype } = options;
      const copy = matrix.kind === "packed" ? keptCopy(matrix, options) : undefined;
      if (matrix.kind === "packed" && copy) copies.set(matrix.matrix, copy);
      const product = mlxLinear(matrix, copy, options, gate);
      const dense = matrix.kind === "dense" ? matrix : copy;
      const plain: Linear = (x, { residual, ...fusing } = {}) => {
        if (residual && x.shape[0]! >= ADDING_ROWS) return product(x, { residual, ...fusing });
        if (residual) {
          const made = product(x, fusing);
          return new PendingSum(add(residual, made), { made, residual });
        }
        const { norm, gating } = fusing;
        if (!promptHeads || !dense || bias || gating) return product(x, fusing);
        const input = norm ? norm(x) : x;
        return promptHeads.pending(product(input), { x: input, weight: dense.weight });
      };
      if (matrix.kind === "dense" && bias) return plain;
      const own = (copy ? [matrix, copy] : [matrix]).flatMap((each) =>
        products.waysFor(each, dtype),
      );
      const ways = [
        ...own.map((way) => ({ ...way, launch: fused(way.launch, bias, gate) })),
        { fits: () => true, cost: mlxCost(matrix, copy !== undefined), launch: plain },
      ];
      return (x, fusing = {}) => {
        if (x.ndim !== 2) return plain(x, fusing);
        const call = { rows: x.shape[0]!, ...fusedOptions(fusing, bias) };
        return cheapest(ways, call)!.launch(x, fusing);
      };
    },
    experts: (matrix, bias, keepView) => {
      const linear = gpu.experts(matrix, bias, keepView);
      // `sorted` is not passed to MLX: its path for sorted rows sometimes gave wrong logits (docs/log.md).
      const plain: ExpertProduct =
        matrix.kind === "packed"
          ? linear
          : (x, chosen, { gating } = {}) => linear(x, chosen, { gating });
      if (bias || !fitsExperts(matrix)) return Object.assign(plain, linear);
      const own: ExpertProduct = (x, chosen, options = {}) => {
        const plan = products.plan(chosen, x.shape[0]!, matrix);
        if (!plan) return plain(x, chosen, options);
        const { gating } = options;
        if (!gating || gating === "swiglu") {
          return products.experts(x, matrix, plan, gating !== undefined);
        }
        return gateHalves(products.experts(x, matrix, plan, false), gating, gate);
      };
      return Object.assign(own, { sortedRows: MOST_SORTED + 1 });
    },
    route: (x, scores, how) => {
      if (!fitsRouting(how)) return gpu.route(x, scores, how);
      const { dense } = scores;
      return dense && fitsScoring(x, dense)
        ? routing.route(x, how, dense)
        : routing.route(scores(x), how);
    },
    combine: (made, shares, residual) => {
      const combined =
        made.shape[2]! % 2 === 0
          ? routing.combine(made, shares, residual)
          : gpu.combine(made, shares, residual);
      return residual ? new PendingSum(combined, { made, shares, residual }) : combined;
    },
    rmsNorm: norm,
    headLinear: (weight, isTransposed, keepView) => {
      const plain = gpu.headLinear(weight, isTransposed, keepView);
      const matrices = { weight, isTransposed };
      return (x) => (fitsHeads(x, matrices) ? heads.product(x, matrices) : plain(x));
    },
    best: (x) => rows.best(x),
    attention: (shape, dtype) =>
      new PagedAttention("cuda", shape, dtype, make, warpgroupChunks(facts), promptHeads),
    latentAttention: (shape, dtype) => new LatentKernels("cuda", shape, dtype, make),
    recurrence: () =>
      new RecurrenceKernels("cuda", make, facts.hasWgmma ? facts.multiprocessors : 0),
    free: () => {
      products.free();
      routing.free();
      heads.free();
      promptHeads?.free();
      rows.free();
      lookups.free();
      sums.free();
      gates.free();
      gpu.free();
    },
  };
  return { backend: "cuda", ...compute, ...steps, ...transfer, ...memory };
}

/**
 * Transfer through pinned memory. MLX would put host values in managed memory that the GPU has used before, whose
 * pages migrate to the host and back: each migration waits until the whole GPU is idle, which delays the next step.
 */
const pinnedValues: HostTransfer = {
  stage: pinned,
  spread: (values) => add(pinned(values), 0),
  fetch: fetched,
};

export function warpgroupChunks(gpu: Gpu): WarpgroupChunks | undefined {
  return gpu.hasWgmma ? { groups: gpu.multiprocessors } : undefined;
}

/**
 * Products with MLX's quantized kernel for a single row, and with a dequantized matrix for more rows. For several
 * rows MLX's kernel reads the matrix once per row, compiles for a minute, or, with float32 and one group of 64 per
 * row, returns garbage (docs/log.md).
 */
function mlxLinear(
  matrix: Matrix,
  copy: Dense | undefined,
  options: LinearOptions,
  gate: Gate,
): Linear {
  if (matrix.kind === "dense") return weightLinear(matrix.weight, options, gate);
  const { bias } = options;
  const vector = quantizedLinear(matrix, bias, gate);
  const rows = copy
    ? weightLinear(copy.weight, options, gate)
    : denseLinear(() => swapAxes(dequantizedMatrix(matrix, options), -1, -2), bias, gate);
  return (x, fusing) => (x.size === x.shape.at(-1) ? vector : rows)(x, fusing);
}

function keptCopy(matrix: Packed, options: LinearOptions): Dense | undefined {
  if (!options.keepDequantized) return undefined;
  const weight = options.keepWeight(() => dequantizedMatrix(matrix, options));
  return { kind: "dense", weight };
}

const dequantizedMatrix = ({ matrix, quantization }: Packed, { dtype }: LinearOptions) =>
  dequantize(matrix, quantization, dtype);
