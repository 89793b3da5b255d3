// What a model is to the code that runs it. All sequences of a step are one row of T tokens, one sequence
// after the other. Layers that work token by token never see the difference; attention is left to the
// step, which knows what each token may attend to and where its keys are.
import type { Norm } from "../../device/device.ts";
import type { LatentRows } from "../../kernels/attention/latent-attention.ts";
import type { Convolution, Scan, ScanInputs } from "../../kernels/recurrence/recurrence.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { BegunLayers } from "./begun-layers.ts";
import type { Rope } from "./rope.ts";
import type { KvState, LatentState, LayerStates, SlotState } from "./states.ts";

export type AttentionOptions = {
  scale: number;
  /** How many of the latest tokens, itself among them, a token attends to. */
  window?: number | undefined;
  /** The window begins at a multiple of its size: a token attends to those of its own chunk. */
  chunked?: boolean | undefined;
  /** (heads): a score a head that takes part in the softmax and in nothing else. */
  sinks?: MlxArray | undefined;
  /** Scores are squeezed into (-cap, cap). */
  softcap?: number | undefined;
};

/** What is applied to queries, keys and values before attention: norms over each head, then RoPE. */
export type Heads = {
  heads: number;
  kvHeads: number;
  headDim: number;
  qNorm?: Norm | undefined;
  kNorm?: Norm | undefined;
  /** With the epsilon of the others. */
  vNorm?: Norm | undefined;
  rope?: Rope | undefined;
  /** Keys and values are those that an earlier layer has written in the same step. */
  sharesKv?: boolean | undefined;
};

export type LatentOptions = {
  scale: number;
  /** Of the rotary features of queries and latents: here feature 2i is rotated with 2i + 1. */
  rope?: Rope | undefined;
  /** Of the latent features of latents. */
  norm: Norm;
};

/** One forward pass's view of what the layers keep. */
export interface Step {
  /**
   * Applies norms and RoPE to this step's queries and keys, writes its keys and values to the KV store, and
   * lets each token attend. qkv (T, (heads + 2 kvHeads) * D) -> (T, heads * D). A layer that shares an earlier
   * one's keys and values brings only queries. They are made of what that layer has attended to, so this launch is
   * ordered behind the one that writes. With `rows` (R) only these of the tokens attend: (R, heads * D). Each is the last of
   * its sequence, or what it attends to is not wanted.
   */
  attend(
    state: KvState,
    qkv: MlxArray,
    heads: Heads,
    options: AttentionOptions,
    rows?: MlxArray,
  ): MlxArray;
  /**
   * Writes this step's latents to their store, and lets all heads of each token attend to those of its sequence: all
   * features are the key, the latent ones are the value. The norm is applied to the latent features, RoPE to the
   * rotary ones. -> (T, heads * latent)
   */
  attendLatent(state: LatentState, rows: LatentRows, options: LatentOptions): MlxArray;
  /** Where each token is in its sequence: (T) int32 */
  positions(): MlxArray;
  /** Convolves each channel with the last inputs of its sequence, which it keeps. x (T, C) -> (T, C) */
  convolve(state: SlotState, x: MlxArray, convolution: Convolution): MlxArray;
  /** Passes each sequence's tokens through its state. -> (T, heads * value features) */
  scan(state: SlotState, inputs: ScanInputs, scan: Scan): MlxArray;
}

export type ModelShape = {
  /** Of a hidden state. */
  dims: number;
  vocabulary: number;
  layers: number;
  /** The longest sequence it was made for. */
  maxPositions: number;
};

export type Model = {
  shape: ModelShape;
  states: LayerStates;
  /**
   * tokens (T) -> the last hidden state (T, D), or that of some of the tokens alone, `rows` (R): (R, D). `begun`: layers
   * begin while those behind them are built.
   */
  forward(tokens: MlxArray, step: Step, rows?: MlxArray, begun?: BegunLayers): MlxArray;
  /** Rows of the hidden state (R, D), those that are sampled, -> (R, vocabulary) */
  logits(hidden: MlxArray): MlxArray;
};
