// A step as the runner sees it: its inputs, which are plain data, its outputs, and a launched step between the two.
import type { BlockCopy } from "../../kv/kv-cache.ts";
import type { MlxArray } from "../../mlx/array.ts";
import type { StateRow } from "../state/state-store.ts";
import type { PromptScore, Score } from "./logprobs.ts";
import type { Best, Lookback, Sampled, SampleRow } from "./sampler.ts";

/** Plain data, so that it can be sent to other ranks. */
export type StepInputs = {
  /** The tokens of all rows, one row after the other. */
  tokens: Uint32Array;
  /** For tokens that are not known yet: the index of the previous step's sample that draws them; else -1. */
  fed?: Int32Array | undefined;
  rows: readonly StateRow[];
  copies: readonly BlockCopy[];
  /** Positions in `tokens` whose next token is sampled, and how. Answers to one prompt share a position. */
  samples: readonly { at: number; row: SampleRow }[];
  scores: readonly PromptScore[];
  /** Spans of tokens whose hidden states are summed. */
  sums: readonly { from: number; to: number }[];
};

/** In the order of the inputs. */
export type StepOutputs = { sampled: Sampled[]; scored: Score[][]; sums: Float32Array[] };

/** A step in flight. */
export type Launched = {
  /**
   * Draws the rows that look back, given their lookbacks in order. Call once, after the previous step was read and
   * before the next is launched. If it throws, so does `read`.
   */
  draw(lookbacks: readonly Lookback[]): void;
  /** Waits for the step. Call once, in launch order. Rows that look back have no token unless they were drawn. */
  read(): StepOutputs;
};

/** The arrays of a forward pass, with logits if rows are sampled. */
export type Forward = {
  /** (T, D), or (R, D) if only the sampled rows are computed; undefined for traced decode steps. */
  hidden?: MlxArray;
  /** The sums of hidden states. */
  added: readonly MlxArray[];
  logits?: MlxArray;
  best?: Best;
};
