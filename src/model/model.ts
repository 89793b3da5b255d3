// What a model is to the code that runs it. All sequences of a step stand in one row of tokens: T tokens
// of one sequence, then of the next. Layers that look at one token at a time never see the difference;
// attention is left to the step, which knows what each token may look at and where its keys are.
import type { MlxArray } from "../mlx/array.ts";
import type { Rope } from "./rope.ts";
import type { Norm } from "./weights.ts";

export type AttentionOptions = {
  scale: number;
  /** How many of the latest tokens, itself among them, a token looks at. */
  window?: number | undefined;
  /** (heads): a score a head that takes part in the softmax and in nothing else. */
  sinks?: MlxArray | undefined;
  /** Scores are squeezed into (-cap, cap). */
  softcap?: number | undefined;
};

/** What is to be done to queries and keys before they meet: norms over each head, then the turn. */
export type Heads = {
  heads: number;
  kvHeads: number;
  headDim: number;
  qNorm?: Norm | undefined;
  kNorm?: Norm | undefined;
  rope?: Rope | undefined;
};

/** One forward pass's view of the KV store. */
export interface Step {
  /**
   * Norms and turns this step's queries and keys, keeps its keys and values, and lets each token attend to
   * what it may see. Queries, keys and values side by side (T, (heads + 2 kvHeads) * D) -> (T, heads * D)
   */
  attend(layer: number, qkv: MlxArray, heads: Heads, options: AttentionOptions): MlxArray;
}

/** The sizes that what a model keeps of each token, and how long it takes over it, depend on. */
export type ModelShape = {
  layers: number;
  /** Of a hidden state. */
  dims: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  vocabulary: number;
  /** The longest sequence it was made for. */
  maxPositions: number;
};

export type Model = {
  shape: ModelShape;
  /** tokens (T) -> the last hidden state (T, D) */
  forward(tokens: MlxArray, step: Step): MlxArray;
  /** Rows of the hidden state (R, D), those that are sampled, -> (R, vocabulary) */
  logits(hidden: MlxArray): MlxArray;
};
