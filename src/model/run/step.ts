// Declares a step as the runner sees it: inputs (plain data), outputs, and the launched step between the two.
import type { BlockCopy } from "../../kv/kv-cache.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { StateRow } from "../state/state-store.ts";
import type { PromptScore, Score } from "./logprobs.ts";
import type { Best, Lookback, Sampled, SampleRow } from "./sampler.ts";

/** Inputs of a step: plain data, so that they can be sent to other ranks. */
export type StepInputs = {
  /** The tokens of all rows, one row after the other. */
  tokens: Uint32Array;
  /** For each token that is not known yet, the index of the previous step's sample that gives it; -1 for others. */
  fed?: Int32Array | undefined;
  rows: readonly StateRow[];
  copies: readonly BlockCopy[];
  /** Positions in `tokens` whose next token is sampled, and how. Answers to one prompt share a position. */
  samples: readonly { at: number; row: SampleRow }[];
  scores: readonly PromptScore[];
  /** Spans of tokens whose hidden states are summed. */
  sums: readonly { from: number; to: number }[];
};

/** Outputs of a step, in the order of its inputs. */
export type StepOutputs = { sampled: Sampled[]; scored: Score[][]; sums: Float32Array[] };

/** A step in flight. */
export type Launched = {
  /**
   * Draws the rows with penalties or grammars, given their token counts and masks in order. Call it once, after the
   * previous step was read and before the next is launched. If this throws, so does `read`.
   */
  draw(lookbacks: readonly Lookback[]): void;
  /** Waits for the step. Call it once, in launch order. Rows with penalties or grammars need `draw` before. */
  read(): StepOutputs;
};

/** The arrays of a forward pass, with logits if rows are sampled. */
export type Forward = {
  /** Hidden states (T, D), or (R, D) if only sampled rows are computed; undefined for traced decode steps. */
  hidden?: MlxArray;
  /** Sums of hidden states over the spans in `sums`. */
  added: readonly MlxArray[];
  logits?: MlxArray;
  best?: Best;
};
