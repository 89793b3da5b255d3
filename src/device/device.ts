// Where a model runs: a CPU, a CUDA GPU or a Metal GPU. A device is created once, when MLX is opened, and passed
// down; model code asks the device to compute and never asks which kind it is. A device has four parts, and consumers
// take only the parts they use: computing, the policy of steps, transfer with the host, and memory.
import type { Backend } from "../../ffi/native.ts";
import type {
  HeadColumns,
  LatentAttention,
  LatentShape,
} from "../kernels/attention/latent-attention.ts";
import type { BlockAttention, PagedShape } from "../kernels/attention/paged-attention.ts";
import type { Matrix } from "../kernels/product/matrix.ts";
import type { PendingProduct } from "../kernels/product/prompt-heads.ts";
import type { Recurrence } from "../kernels/recurrence/recurrence.ts";
import type { Routed, Routing } from "../kernels/token/routing.ts";
import type { PendingSum } from "../kernels/token/sum-norm.ts";
import type { MlxArray } from "../mlx/array.ts";
import type { Dtype, HostArray } from "../mlx/dtype.ts";
import type { Quantization } from "../mlx/ops.ts";
import type { Evaluation } from "../mlx/peak.ts";
import type { DeviceMemory } from "./memory.ts";

/** Types that models compute in. */
export type FloatType = "float32" | "float16" | "bfloat16";

/** Hidden states of tokens: an array, or a residual add that the following norm may fuse. */
export type Hidden = MlxArray | PendingSum;

/** RMSNorm, x -> x / rms(x) * weight, with the parameters for fusing it into a kernel. */
export type Norm = ((x: Hidden) => MlxArray) & { weight: MlxArray; eps: number };

/** How an MLP combines gate and up projections: a name that devices can fuse, or a function. */
export type Gating = "swiglu" | "geglu" | ((gate: MlxArray, up: MlxArray) => MlxArray);

/** Operations that may be fused into a product, before or after it. */
export type Fused = {
  /** Norm of the product's input. */
  norm?: Norm | undefined;
  /** How the two halves of the product's output are combined. */
  gating?: Gating | undefined;
  /** Array that is added to the output. */
  residual?: MlxArray | undefined;
};

/**
 * A linear layer: x (..., in) -> (..., out), or (..., out / 2) with gating. The result may be pending: a residual add
 * that the next norm may fuse, or, with nothing fused, a product that attention may fuse.
 */
export type Linear = ((x: MlxArray, fused?: Fused) => Hidden | PendingProduct) & {
  /** The layer's matrix (out, in), if it is not quantized and the layer has no bias. */
  dense?: MlxArray | undefined;
};

/**
 * Multiplies row i of x (N, in) by the matrices of its R / N experts, listed in `experts` (R) from i * R / N on ->
 * (R, out), or (R, out / 2) with gating. `sorted`: rows of the same expert are adjacent.
 */
export type ExpertProduct = (
  x: MlxArray,
  experts: MlxArray,
  options?: { gating?: Gating | undefined; sorted?: boolean },
) => MlxArray;

/** An expert layer's product. `sortedRows`: number of rows from which sorting them by expert is faster. */
export type ExpertLinear = ExpertProduct & { sortedRows: number };

/** Multiplies each head's columns of x (T, columns) by the head's own matrix -> (T, heads * out). */
export type HeadLinear = (x: HeadColumns) => MlxArray;

export type LinearOptions = {
  dtype: FloatType;
  bias: MlxArray | undefined;
  /** Whether to keep a dequantized copy of a quantized matrix too, for steps with many rows. */
  keepDequantized: boolean;
  /** Both evaluate a view of a weight, or a new weight, and keep it until the weights are freed. */
  keepView(view: MlxArray): MlxArray;
  keepWeight(make: () => MlxArray): MlxArray;
};

/** A function of arrays that a device may compile or record. */
export type Traced = {
  /** Calls the function. The next call may overwrite the outputs: evaluate all arrays computed from them first. */
  call(...inputs: readonly MlxArray[]): MlxArray[];
  /** Like `call`, for use while other streams wait: a slow recording is postponed until further calls repay it. */
  callBeside?(...inputs: readonly MlxArray[]): MlxArray[];
  /** Frees the function. Call it only after all of its outputs were read. */
  free(): void;
};

/** Wraps a function that is neither compiled nor recorded: every call builds the graph anew. */
export function untraced(build: (inputs: MlxArray[]) => readonly MlxArray[]): Traced {
  return { call: (...inputs) => [...build([...inputs])], free() {} };
}

/** The operations of a model, and the types and layouts of its matrices. */
export type Compute = {
  /** Returns the type to compute in, for a model whose weights are stored in this type. */
  computeType(stored: FloatType): FloatType;
  /** Whether products read a matrix of this quantization directly; otherwise it is dequantized at load. */
  keepsQuantized(dtype: FloatType, quantization?: Quantization): boolean;
  /** Returns the type of expert matrices in a model that computes in `dtype`. */
  expertType(dtype: FloatType): FloatType;
  /** Returns the type in which a quantized matrix's scales and biases are kept. */
  scaleType(stored: FloatType, dtype: FloatType): FloatType;
  /**
   * Rearranges weights, scales or biases of a quantized matrix, (..., out, n), for the device's products. May work in
   * place, so `rows` must not be used afterwards.
   */
  packedRows(rows: MlxArray): MlxArray;
  /** Looks up embeddings: tokens (T) -> (T, in). */
  lookup(matrix: Matrix, tokens: MlxArray, dtype: FloatType): MlxArray;
  linear(matrix: Matrix, options: LinearOptions): Linear;
  /** Makes products with one matrix per expert. */
  experts(
    matrix: Matrix,
    bias: MlxArray | undefined,
    keepView: LinearOptions["keepView"],
  ): ExpertLinear;
  /** Chooses experts for x (T, D). `scores`: the router, with one more column if shared experts are gated. */
  route(x: MlxArray, scores: Linear, routing: Routing): Routed;
  /** Sums expert outputs `made` (T, K, D), times routing weights `shares` (T, K), plus residual (T, D) -> (T, D). */
  combine(made: MlxArray, shares: MlxArray, residual?: MlxArray): Hidden;
  /** Makes products with one matrix per head, (heads, out, in), or (heads, in, out) if transposed. */
  headLinear(
    weight: MlxArray,
    isTransposed: boolean,
    keepView: LinearOptions["keepView"],
  ): HeadLinear;
  rmsNorm(x: Hidden, weight: MlxArray | undefined, eps: number): MlxArray;
  gate(gating: Gating, gate: MlxArray, up: MlxArray): MlxArray;
  attention(shape: PagedShape, dtype: Dtype): BlockAttention;
  latentAttention(shape: LatentShape, dtype: Dtype): LatentAttention;
  /** Makes the operations of recurrent layers, which the caller frees. */
  recurrence(): Recurrence;
  /** Context length above which prompts use MLX's attention, over gathered KV blocks. */
  readonly longPrompt: number;
  /** Computes the softmax over the last axis. */
  softmax(x: MlxArray): MlxArray;
  /** Computes log(sum(exp(x))) over the last axis, which is kept with size 1. */
  logSumExp(x: MlxArray): MlxArray;
  /** Finds each row's maximum: its first index (R), and its value, which is NaN if any element is NaN. */
  best(x: MlxArray): { indices: MlxArray; highest: MlxArray };
  /** Applies a token mask to x (R, V), one bit per token (R, words): -infinity where the bit is not set. */
  mask(x: MlxArray, bits: Uint32Array): MlxArray;
  /**
   * Returns `integers`, computed only after `before`. MLX orders launches by their inputs and outputs and does not
   * know that a kernel writes into its inputs: a launch that touches a KV pool must therefore take an output of the
   * previous launch that touched it.
   */
  after(integers: MlxArray, before: MlxArray): MlxArray;
  free(): void;
};

/** The policy of steps: their size, overlap, padding and recording. */
export type StepPolicy = {
  /** Maximum steps in flight, including the one that is being read. */
  readonly depth: number;
  /** Default token budget of a step. */
  readonly tokenBudget: number;
  /** Token budget when many streams decode, if lower (src/schedule/scheduler.ts). */
  readonly besideTokens?: number | undefined;
  /** Default target time of a step with prompts. */
  readonly stepMs: number;
  /** Returns the batch size to which a decode step is padded; one recorded step is kept per size. */
  paddedRows(rows: number): number;
  /** Returns the number of tokens to which a prompt step is padded for recording; undefined if it is not recorded. */
  paddedTokens?(tokens: number, weightBytes: number): number | undefined;
  /**
   * Whether a step that is not recorded is long enough to launch its first layers while the others
   * are still being built. Default: false.
   */
  beginsEarly?(tokens: number, weightBytes: number): boolean;
  /** Whether kernels and steps are compiled when they are first used, so that a warm-up helps. */
  readonly compiles: boolean;
  /** Compiles or records a function. `rehearsal`: inputs for trial runs, whose KV writes go to scratch. */
  trace(
    build: (inputs: MlxArray[]) => readonly MlxArray[],
    rehearsal: () => readonly MlxArray[],
  ): Traced;
};

/** Transfer of a step's values between host and device. */
export type HostTransfer = {
  /** Passes host values for one step to the device, which reads them once. */
  stage(values: HostArray, shape?: readonly number[]): MlxArray;
  /** Passes host values for one step to the device, where all layers read them. */
  spread(values: HostArray): MlxArray;
  /** Returns an output of a step in memory that the host can read after the output is evaluated. */
  fetch(x: MlxArray): MlxArray;
};

/** A device's memory: allocates arrays, and says how much memory there is and how much a step takes. */
export type Memory = {
  /** Returns the KV cache's element type for a compute type. */
  kvType(dtype: Dtype): Dtype;
  /** Allocates an array, uninitialized or zero: write it before reading it. */
  allocate(shape: readonly number[], dtype: Dtype): MlxArray;
  /** Whether the host can write to an array's memory. */
  readonly hasHostMemory: boolean;
  /** Default share of free memory for dequantized copies, if those speed up quantized weights. */
  readonly spareShare?: number | undefined;
  /** How MLX evaluates a graph, as far as it affects memory. */
  readonly evaluation: Evaluation;
  readonly memory: DeviceMemory;
  /**
   * Makes a device of the same kind for estimating a model's memory: its arrays have shapes but are never computed,
   * so that models built with it serve no other purpose. The caller frees it.
   */
  sketch(): DeviceKind;
  readonly isSketch?: true;
};

export type Device = { readonly backend: Backend } & Compute & StepPolicy & HostTransfer & Memory;

/** The members that depend on the backend; openDevice adds the rest. */
export type DeviceKind = Omit<Device, "memory" | "sketch">;
export type MemoryKind = Omit<Memory, "memory" | "sketch">;
