// Runs one step of a model: one forward over all rows, logits for the rows that are sampled, their tokens.
import { array, asyncEvaluate, evaluate, type MlxArray } from "../mlx/array.ts";
import { astype, slice, sum, take } from "../mlx/ops.ts";
import { Scope } from "../mlx/scope.ts";
import type { BlockCopy, DeviceKvStore, KvRow } from "./device-kv-store.ts";
import type { Model } from "./model.ts";
import { type Draw, type Sampled, type SampleRow, type Score, sample, score } from "./sampler.ts";

export type StepInputs = {
  /** The tokens of all rows, one row after the other. */
  tokens: Uint32Array;
  /** Where a token is not known yet: which of the samples of the step before it is; -1 where it is. */
  fed?: Int32Array | undefined;
  rows: readonly KvRow[];
  copies: readonly BlockCopy[];
  /** Which of the tokens are sampled, and how. */
  samples: readonly { at: number; row: SampleRow }[];
  /** Where it is asked how likely these tokens were, each after the token at `at` and following. */
  scores: readonly { at: number; next: Uint32Array; top: number }[];
  /** Spans of tokens whose hidden states are wanted, added up. */
  sums: readonly { from: number; to: number }[];
};

/** In the order of the inputs. */
export type StepOutputs = { sampled: Sampled[]; scored: Score[][]; sums: Float32Array[] };

/** A step on its way. */
export type Launched = {
  /**
   * Draws its tokens, unless they are. Rows that look back at their last token are drawn only when it is
   * known: after the step before was read, and before the next one is launched.
   */
  draw(): void;
  /** Waits for it. Once, in the order of the launches. */
  read(): StepOutputs;
};

export class Runner {
  /** How many forward passes there were. */
  forwards = 0;
  /** Steps under way at most, the one that is read among them. */
  readonly depth = 1;
  readonly #model: Model;
  readonly #store: DeviceKvStore;

  constructor(model: Model, store: DeviceKvStore) {
    this.#model = model;
    this.#store = store;
  }

  launch(inputs: StepInputs): Launched {
    const outputs = this.#run(inputs);
    return { draw() {}, read: () => outputs };
  }

  /** A CPU's are compiled. */
  warmUp(): void {}

  free(): void {}

  #run({ tokens, rows, copies, samples, scores, sums }: StepInputs): StepOutputs {
    using _ = new Scope();
    const step = this.#store.begin(rows, copies);
    this.forwards += 1;
    const hidden = this.#model.forward(array(tokens), step); // (T, D)
    const draw = this.#draw(hidden, samples);
    const scored = scores.map(({ at, next, top }) =>
      score(this.#model.logits(slice(hidden, 0, at, at + next.length)), next, top),
    );
    const added = sums.map((span) => sumRows(hidden, span));
    const pending = [draw ? [draw] : [], scored].flat().flatMap(({ pending }) => pending);
    // Where nothing is read, keys and values must be written all the same.
    evaluate(...pending, ...added, ...(draw ? [] : [hidden]));
    return {
      sampled: draw?.read() ?? [],
      scored: scored.map(({ read }) => read()),
      sums: added.map((each) => Float32Array.from(each.numbers())),
    };
  }

  #draw(hidden: MlxArray, samples: StepInputs["samples"]): Draw | undefined {
    if (samples.length === 0) return undefined;
    const sampled = take(hidden, array(Int32Array.from(samples, ({ at }) => at))); // (R, D)
    const logits = this.#model.logits(sampled); // (R, vocabulary)
    const rows = samples.map(({ row }) => row);
    // The masks are made meanwhile.
    if (rows.some(({ allowed }) => allowed)) asyncEvaluate(logits);
    return sample(logits, rows);
  }
}

/** hidden (T, D): some of its rows, added up (D). */
export function sumRows(hidden: MlxArray, { from, to }: StepInputs["sums"][number]): MlxArray {
  return astype(sum(slice(hidden, 0, from, to), 0), "float32");
}
