// Declares the interface between models and the code that runs them. All sequences of a step are concatenated to one
// row of T tokens. Most layers work token by token and ignore sequences; attention is left to the step, which knows
// which tokens each token may attend to and where the keys are.
import type { Norm } from "../../device/device.ts";
import type { LatentRows } from "../../kernels/attention/latent-attention.ts";
import type { PendingProduct } from "../../kernels/product/prompt-heads.ts";
import type { Convolution, Scan, ScanInputs } from "../../kernels/recurrence/recurrence.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { BegunLayers } from "./begun-layers.ts";
import type { Rope } from "./rope.ts";
import type { KvState, LatentState, LayerStates, SlotState } from "./states.ts";

export type AttentionOptions = {
  scale: number;
  /** Maximum number of latest tokens that a token attends to, including the token itself. */
  window?: number | undefined;
  /** Whether the window begins at a multiple of its size, so that a token attends only to its own chunk. */
  chunked?: boolean | undefined;
  /** (heads): a score per head that takes part in the softmax but has no value. */
  sinks?: MlxArray | undefined;
  /** Soft cap: scores are mapped into (-cap, cap). */
  softcap?: number | undefined;
};

/** Head counts and sizes, and what attention applies to queries, keys and values first: norms per head, then RoPE. */
export type Heads = {
  heads: number;
  kvHeads: number;
  headDim: number;
  qNorm?: Norm | undefined;
  kNorm?: Norm | undefined;
  /** Norm of values, with the epsilon of qNorm. */
  vNorm?: Norm | undefined;
  rope?: Rope | undefined;
  /** Whether the layer reads keys and values that an earlier layer wrote in the same step. */
  sharesKv?: boolean | undefined;
};

export type LatentOptions = {
  scale: number;
  /** RoPE of the rotary features of queries and latents. Feature 2i rotates with 2i + 1. */
  rope?: Rope | undefined;
  /** Norm of the latent features. */
  norm: Norm;
};

/** Gives one forward pass access to the state that layers keep: KV blocks, latents and slots. */
export interface Step {
  /**
   * Applies norms and RoPE to queries and keys, writes keys and values to the KV store, and attends: qkv (T, (heads +
   * 2 kvHeads) * D) -> (T, heads * D). With `sharesKv` qkv has only queries: an earlier layer wrote the keys and
   * values. With `rows` (R), only the tokens at these indices attend: (R, heads * D). Each of these tokens is its
   * sequence's last one, or a token whose output is not needed.
   */
  attend(
    state: KvState,
    qkv: MlxArray | PendingProduct,
    heads: Heads,
    options: AttentionOptions,
    rows?: MlxArray,
  ): MlxArray;
  /**
   * Writes latents to their store and lets all heads of a token attend to the latents of its sequence: all features
   * are the key, the latent features are the value. The norm applies to the latent features, RoPE to the rotary ones.
   * -> (T, heads * latent)
   */
  attendLatent(state: LatentState, rows: LatentRows, options: LatentOptions): MlxArray;
  /** Returns the position of each token in its sequence: (T) int32 */
  positions(): MlxArray;
  /** Convolves each channel over a sequence's last inputs, which its slot keeps. x (T, C) -> (T, C) */
  convolve(state: SlotState, x: MlxArray, convolution: Convolution): MlxArray;
  /** Runs each sequence's tokens through its recurrent state. -> (T, heads * value features) */
  scan(state: SlotState, inputs: ScanInputs, scan: Scan): MlxArray;
}

export type ModelShape = {
  /** Features of a hidden state. */
  dims: number;
  vocabulary: number;
  layers: number;
  /** Maximum sequence length. */
  maxPositions: number;
};

export type Model = {
  shape: ModelShape;
  states: LayerStates;
  /**
   * tokens (T) -> the last hidden states (T, D), or only those of `rows` (R): (R, D). `begun`: launches layers while
   * later ones are built.
   */
  forward(tokens: MlxArray, step: Step, rows?: MlxArray, begun?: BegunLayers): MlxArray;
  /** Computes the logits of hidden states: (R, D) -> (R, vocabulary) */
  logits(hidden: MlxArray): MlxArray;
};
