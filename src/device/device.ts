// Where a model runs: a CPU, a CUDA GPU or a Metal GPU. A device is made once, when MLX is opened, and handed
// down; model code asks it to compute and never asks which one it is. It owns how things are computed
// there, how launches are ordered, how much memory there is, and how far steps may overlap.
import type { Backend } from "../../ffi/native.ts";
import type {
  HeadColumns,
  LatentAttention,
  LatentShape,
} from "../kernels/attention/latent-attention.ts";
import type { BlockAttention, PagedShape } from "../kernels/attention/paged-attention.ts";
import type { Matrix } from "../kernels/product/matrix.ts";
import type { Recurrence } from "../kernels/recurrence/recurrence.ts";
import type { Routed, Routing } from "../kernels/token/routing.ts";
import type { MlxArray } from "../mlx/array.ts";
import type { Dtype, HostArray } from "../mlx/dtype.ts";
import type { Quantization } from "../mlx/ops.ts";
import type { Evaluation } from "../mlx/peak.ts";
import type { DeviceMemory } from "./memory.ts";

/** Types that models compute in. */
export type FloatType = "float32" | "float16" | "bfloat16";

/** x -> x / rms(x) * weight, with what a fused kernel needs to do the same. */
export type Norm = ((x: MlxArray) => MlxArray) & { weight: MlxArray; eps: number };

/** How the gate and up halves of an MLP become one: by name where devices fuse it, or as a function. */
export type Gating = "swiglu" | "geglu" | ((gate: MlxArray, up: MlxArray) => MlxArray);

/** What may be fused into a product. */
export type Fused = {
  /** Applied to the input. */
  norm?: Norm | undefined;
  /** Combines the two halves of the output. */
  gating?: Gating | undefined;
  /** Added to the output. */
  residual?: MlxArray | undefined;
};

/** x (..., in) -> (..., out), or (..., out / 2) with gating. */
export type Linear = ((x: MlxArray, fused?: Fused) => MlxArray) & {
  /** The matrix, where that is all of it: (out, in), not quantized and without a bias. */
  dense?: MlxArray | undefined;
};

/**
 * x (N, in), experts (R) -> (R, out), or (R, out / 2) with gating: each row of x by the matrices of the next R / N
 * experts. `sorted` says that rows of one expert are adjacent.
 */
export type ExpertProduct = (
  x: MlxArray,
  experts: MlxArray,
  options?: { gating?: Gating | undefined; sorted?: boolean },
) => MlxArray;

/** From `sortedRows` rows on it pays to sort them by expert first. */
export type ExpertLinear = ExpertProduct & { sortedRows: number };

/** x (T, columns) -> (T, heads * out): the columns of each head by a matrix of its own. */
export type HeadLinear = (x: HeadColumns) => MlxArray;

export type LinearOptions = {
  dtype: FloatType;
  bias: MlxArray | undefined;
  /** Keep a dequantized copy beside a quantized matrix, for steps with many rows. */
  keepDequantized: boolean;
  /** Evaluates an array and frees it with the weights: a view of a weight, or a weight of its own. */
  keepView(view: MlxArray): MlxArray;
  keepWeight(make: () => MlxArray): MlxArray;
};

/** A function of arrays that a device may compile or record. */
export type Traced = {
  /** What comes out may live in memory that the next call overwrites: evaluate what uses it before. */
  call(...inputs: readonly MlxArray[]): MlxArray[];
  /** The same with streams that wait for it: where recording it takes long, that is put off until it pays. */
  callBeside?(...inputs: readonly MlxArray[]): MlxArray[];
  /** After everything that it has made was read. */
  free(): void;
};

/** One that is neither: built anew by each call. */
export function untraced(build: (inputs: MlxArray[]) => readonly MlxArray[]): Traced {
  return { call: (...inputs) => [...build([...inputs])], free() {} };
}

export type Device = {
  readonly backend: Backend;

  // ---- Memory

  /** What a model stored in this type computes in. */
  computeType(stored: FloatType): FloatType;
  /** What keys and values are kept in. */
  kvType(dtype: Dtype): Dtype;
  /** An array whose contents are written before they are read. */
  allocate(shape: readonly number[], dtype: Dtype): MlxArray;
  /** Whether the host can write to an array's memory. */
  readonly hasHostMemory: boolean;
  /**
   * One of the same kind, for what a model would take: arrays are laid out and never filled. What is made there is
   * good for nothing else, and its holder frees it.
   */
  sketch(): DeviceKind;
  readonly isSketch?: true;
  readonly memory: DeviceMemory;
  /** How MLX computes a graph there, as far as memory shows it. */
  readonly evaluation: Evaluation;

  // ---- Computing

  /** Whether it multiplies by such a quantized matrix as it is; otherwise it is dequantized at load. */
  keepsQuantized(dtype: FloatType, quantization?: Quantization): boolean;
  /** What the scales and biases of a quantized matrix are kept in, of those that are stored in a type. */
  scaleType(stored: FloatType, dtype: FloatType): FloatType;
  /**
   * A part of a quantized matrix as its products read it: its weights, scales or biases, (..., out, n). It may be in the memory of
   * the rows, which are not to be read any more.
   */
  packedRows(rows: MlxArray): MlxArray;
  /** The rows of a matrix that tokens (T) have: (T, in) */
  lookup(matrix: Matrix, tokens: MlxArray, dtype: FloatType): MlxArray;
  linear(matrix: Matrix, options: LinearOptions): Linear;
  /** A matrix for each expert. */
  experts(
    matrix: Matrix,
    bias: MlxArray | undefined,
    keepView: LinearOptions["keepView"],
  ): ExpertLinear;
  /** x (T, D). `scores`: those of a router for its experts, and one more where shared experts have a gate. */
  route(x: MlxArray, scores: Linear, routing: Routing): Routed;
  /** made (T, K, D), of a token's experts, shares (T, K), residual (T, D) -> (T, D) */
  combine(made: MlxArray, shares: MlxArray, residual?: MlxArray): MlxArray;
  /** A matrix for each head, (heads, out, in) or transposed. */
  headLinear(
    weight: MlxArray,
    isTransposed: boolean,
    keepView: LinearOptions["keepView"],
  ): HeadLinear;
  rmsNorm(x: MlxArray, weight: MlxArray | undefined, eps: number): MlxArray;
  gate(gating: Gating, gate: MlxArray, up: MlxArray): MlxArray;
  attention(shape: PagedShape, dtype: Dtype): BlockAttention;
  latentAttention(shape: LatentShape, dtype: Dtype): LatentAttention;
  /** Of layers with a state. Its holder frees it. */
  recurrence(): Recurrence;
  /** A prompt whose tokens see more than this many goes through MLX's attention, over gathered blocks. */
  readonly longPrompt: number;
  /** Over the last axis. */
  softmax(x: MlxArray): MlxArray;
  /** Over the last axis, which keeps the size 1. */
  logSumExp(x: MlxArray): MlxArray;
  /** Of each row (R): the first index of the highest value, and that value; NaN where a value is NaN. */
  best(x: MlxArray): { indices: MlxArray; highest: MlxArray };
  /** x (R, V), a bit a token (R, words): minus infinity but where the bit is set. */
  mask(x: MlxArray, bits: Uint32Array): MlxArray;

  // ---- Steps

  /** Steps under way at most, the one that is read among them. */
  readonly depth: number;
  /** Tokens of a step unless the options say. */
  readonly tokenBudget: number;
  /** Of a step beside many streams, where it is to have fewer (src/schedule/scheduler.ts). */
  readonly besideTokens?: number | undefined;
  /** How long a step with prompts may take unless the options say. */
  readonly stepMs: number;
  /** Where quantized weights are quicker with a dequantized copy beside them: how much of the free memory it may take unasked. */
  readonly spareShare?: number | undefined;
  /** The batch size that so many decoding rows are padded to: a recorded step is kept for each. */
  paddedRows(rows: number): number;
  /** The number of tokens that a step with prompts is padded to where it is recorded, with weights of so many bytes. */
  paddedTokens?(tokens: number, weightBytes: number): number | undefined;
  /**
   * Whether a step of so many tokens that is not recorded, with weights of so many bytes, takes the device so long that it had
   * better begin with the first layers while the others are built; it does not unless it says.
   */
  beginsEarly?(tokens: number, weightBytes: number): boolean;
  /** Whether kernels and steps are compiled when they are first used, so that warming up helps. */
  readonly compiles: boolean;
  /** Host values for one step, which takes them once. */
  stage(values: HostArray, shape?: readonly number[]): MlxArray;
  /** Host values for one step, which all its layers take. */
  spread(values: HostArray): MlxArray;
  /** Of what a step makes, what the host is to read once it is evaluated. */
  fetch(x: MlxArray): MlxArray;
  /** `rehearsal`: inputs that it may be called with several times, of no consequence to anybody. */
  trace(
    build: (inputs: MlxArray[]) => readonly MlxArray[],
    rehearsal: () => readonly MlxArray[],
  ): Traced;
  /**
   * The same integers, available only after `before` is. MLX orders launches by the arrays that they take
   * and make, and knows nothing of what a kernel writes into its inputs: a launch that touches a KV pool
   * must take something that the last launch to touch it made.
   */
  after(integers: MlxArray, before: MlxArray): MlxArray;

  free(): void;
};

/** What kinds of devices differ in; the rest comes when one is opened. */
export type DeviceKind = Omit<Device, "memory" | "sketch">;
