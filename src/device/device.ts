// Where a model runs: a CPU, a CUDA GPU or a Metal GPU. A device is created once, when MLX is
// opened, and passed down; model code asks it to compute and never asks which one it is. It has four parts, of which
// each consumer takes the ones it uses: computing, the policy of steps, transfer with the host, and memory.
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

/** Hidden states of tokens: computed, or a residual add that the norm after it may fuse. */
export type Hidden = MlxArray | PendingSum;

/** RMSNorm, x -> x / rms(x) * weight, with the parameters for fusing it into a kernel. */
export type Norm = ((x: Hidden) => MlxArray) & { weight: MlxArray; eps: number };

/** How an MLP combines gate and up projections: a name that devices can fuse, or a function. */
export type Gating = "swiglu" | "geglu" | ((gate: MlxArray, up: MlxArray) => MlxArray);

/** Operations that may be fused into a product. */
export type Fused = {
  /** Applied to the input. */
  norm?: Norm | undefined;
  /** Combines the two halves of the output. */
  gating?: Gating | undefined;
  /** Added to the output. */
  residual?: MlxArray | undefined;
};

/**
 * x (..., in) -> (..., out), or (..., out / 2) with gating. A residual add may be pending for the norm after it; a
 * product with nothing fused, for attention that prepares heads of it.
 */
export type Linear = ((x: MlxArray, fused?: Fused) => Hidden | PendingProduct) & {
  /** The matrix (out, in), if the layer is only that: not quantized, without a bias. */
  dense?: MlxArray | undefined;
};

/**
 * x (N, in), experts (R) -> (R, out), or (R, out / 2) with gating: each row of x by the matrices of
 * the next R / N experts. `sorted` says that rows of one expert are adjacent.
 */
export type ExpertProduct = (
  x: MlxArray,
  experts: MlxArray,
  options?: { gating?: Gating | undefined; sorted?: boolean },
) => MlxArray;

/** `sortedRows`: number of rows from which sorting them by expert pays. */
export type ExpertLinear = ExpertProduct & { sortedRows: number };

/** x (T, columns) -> (T, heads * out): each head's columns times the head's own matrix. */
export type HeadLinear = (x: HeadColumns) => MlxArray;

export type LinearOptions = {
  dtype: FloatType;
  bias: MlxArray | undefined;
  /** Keep a dequantized copy beside a quantized matrix, for steps with many rows. */
  keepDequantized: boolean;
  /** Evaluate a view of a weight, or a new weight, and free it together with the weights. */
  keepView(view: MlxArray): MlxArray;
  keepWeight(make: () => MlxArray): MlxArray;
};

/** A function of arrays that a device may compile or record. */
export type Traced = {
  /** Outputs may be in memory that the next call overwrites: evaluate their users before that. */
  call(...inputs: readonly MlxArray[]): MlxArray[];
  /** The same while other streams wait: a slow recording is postponed until it amortizes. */
  callBeside?(...inputs: readonly MlxArray[]): MlxArray[];
  /** Only after all of its outputs were read. */
  free(): void;
};

/** Neither compiled nor recorded: every call builds the graph anew. */
export function untraced(build: (inputs: MlxArray[]) => readonly MlxArray[]): Traced {
  return { call: (...inputs) => [...build([...inputs])], free() {} };
}

/** Computes: the operations of a model, and the types and layouts of their matrices. */
export type Compute = {
  /** The compute type of a model stored in this type. */
  computeType(stored: FloatType): FloatType;
  /** Whether products use such a quantized matrix directly; otherwise it is dequantized at load. */
  keepsQuantized(dtype: FloatType, quantization?: Quantization): boolean;
  /** The type of expert matrices in a model that computes in `dtype`. */
  expertType(dtype: FloatType): FloatType;
  /** The type in which a quantized matrix's scales and biases are kept. */
  scaleType(stored: FloatType, dtype: FloatType): FloatType;
  /**
   * Rearranges weights, scales or biases of a quantized matrix, (..., out, n), for the device's
   * products. May work in place: `rows` must not be used afterwards.
   */
  packedRows(rows: MlxArray): MlxArray;
  /** Embedding lookup: tokens (T) -> (T, in) */
  lookup(matrix: Matrix, tokens: MlxArray, dtype: FloatType): MlxArray;
  linear(matrix: Matrix, options: LinearOptions): Linear;
  /** Products with one matrix per expert. */
  experts(
    matrix: Matrix,
    bias: MlxArray | undefined,
    keepView: LinearOptions["keepView"],
  ): ExpertLinear;
  /** MoE routing of x (T, D). `scores`: the router, plus a column if shared experts are gated. */
  route(x: MlxArray, scores: Linear, routing: Routing): Routed;
  /** Expert outputs `made` (T, K, D) summed by shares (T, K), plus residual (T, D) -> (T, D) */
  combine(made: MlxArray, shares: MlxArray, residual?: MlxArray): Hidden;
  /** Products with one matrix per head, (heads, out, in) or transposed. */
  headLinear(
    weight: MlxArray,
    isTransposed: boolean,
    keepView: LinearOptions["keepView"],
  ): HeadLinear;
  rmsNorm(x: Hidden, weight: MlxArray | undefined, eps: number): MlxArray;
  gate(gating: Gating, gate: MlxArray, up: MlxArray): MlxArray;
  attention(shape: PagedShape, dtype: Dtype): BlockAttention;
  latentAttention(shape: LatentShape, dtype: Dtype): LatentAttention;
  /** Operations of recurrent layers. The caller frees it. */
  recurrence(): Recurrence;
  /** Context length above which prompts use MLX's attention, over gathered KV blocks. */
  readonly longPrompt: number;
  /** Over the last axis. */
  softmax(x: MlxArray): MlxArray;
  /** Over the last axis, which is kept with size 1. */
  logSumExp(x: MlxArray): MlxArray;
  /** Argmax of each row (R): first index of the maximum, and the maximum; NaN if a value is NaN. */
  best(x: MlxArray): { indices: MlxArray; highest: MlxArray };
  /** Token mask: x (R, V), one bit per token (R, words); -infinity where the bit is not set. */
  mask(x: MlxArray, bits: Uint32Array): MlxArray;
  /**
   * The same integers, available only after `before` is evaluated. MLX orders launches by their
   * inputs and outputs and does not know that a kernel writes into its inputs: a launch that
   * touches a KV pool must therefore take an output of the previous launch that touched it.
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
  /** The batch size to which decoding rows are padded; one recorded step is kept per size. */
  paddedRows(rows: number): number;
  /** Tokens to which a prompt step is padded for recording; undefined: it is not recorded. */
  paddedTokens?(tokens: number, weightBytes: number): number | undefined;
  /**
   * Whether a step that is not recorded is long enough to launch its first layers while the others
   * are still being built. Default: false.
   */
  beginsEarly?(tokens: number, weightBytes: number): boolean;
  /** Whether kernels and steps are compiled at first use, so that a warm-up helps. */
  readonly compiles: boolean;
  /** `rehearsal`: inputs for trial runs without lasting effect (KV writes go to scratch). */
  trace(
    build: (inputs: MlxArray[]) => readonly MlxArray[],
    rehearsal: () => readonly MlxArray[],
  ): Traced;
};

/** Transfer of a step's values with the host. */
export type HostTransfer = {
  /** Host values for one step, read once by the device. */
  stage(values: HostArray, shape?: readonly number[]): MlxArray;
  /** Host values for one step, read by all of its layers. */
  spread(values: HostArray): MlxArray;
  /** An output of a step for the host to read once it is evaluated. */
  fetch(x: MlxArray): MlxArray;
};

/** Allocates arrays, and says how much memory there is and how much a step takes. */
export type Memory = {
  /** The KV cache's type for this compute type. */
  kvType(dtype: Dtype): Dtype;
  /** An uninitialized or zero array: write it before reading it. */
  allocate(shape: readonly number[], dtype: Dtype): MlxArray;
  /** Whether the host can write to an array's memory. */
  readonly hasHostMemory: boolean;
  /** Default share of free memory for dequantized copies, if those speed up quantized weights. */
  readonly spareShare?: number | undefined;
  /** How MLX evaluates a graph, as far as it affects memory. */
  readonly evaluation: Evaluation;
  readonly memory: DeviceMemory;
  /**
   * A device of the same kind for estimating a model's memory: arrays have shapes but are never
   * computed. Nothing built with it can be used otherwise. The caller frees it.
   */
  sketch(): DeviceKind;
  readonly isSketch?: true;
};

export type Device = { readonly backend: Backend } & Compute & StepPolicy & HostTransfer & Memory;

/** The members that depend on the backend; openDevice adds the rest. */
export type DeviceKind = Omit<Device, "memory" | "sketch">;
export type MemoryKind = Omit<Memory, "memory" | "sketch">;
