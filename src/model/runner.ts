// Runs one step of a model: one forward over all rows, logits for the rows that are sampled, their tokens.
import { array, evaluate } from "../mlx/array.ts";
import { take } from "../mlx/ops.ts";
import { Scope } from "../mlx/scope.ts";
import type { BlockCopy, KvRow, KvStore } from "./kv-store.ts";
import type { Model } from "./model.ts";
import { type Sampled, type SampleRow, sample } from "./sampler.ts";

export type StepInputs = {
  /** The tokens of all rows, one row after the other. */
  tokens: Uint32Array;
  rows: readonly KvRow[];
  copies: readonly BlockCopy[];
  /** Which of the tokens are sampled, and how. */
  samples: readonly { at: number; row: SampleRow }[];
};

export class Runner {
  /** How many forward passes there were. */
  forwards = 0;
  readonly #model: Model;
  readonly #store: KvStore;

  constructor(model: Model, store: KvStore) {
    this.#model = model;
    this.#store = store;
  }

  /** What was drawn, in the order of the samples. */
  run({ tokens, rows, copies, samples }: StepInputs): Sampled[] {
    using _ = new Scope();
    const step = this.#store.begin(rows, copies);
    try {
      this.forwards += 1;
      const hidden = this.#model.forward(array(tokens), step); // (T, D)
      if (samples.length === 0) {
        evaluate(...step.pending);
        step.commit();
        return [];
      }
      const sampled = take(hidden, array(Int32Array.from(samples, ({ at }) => at))); // (R, D)
      const logits = this.#model.logits(sampled); // (R, vocabulary)
      const draw = sample(
        logits,
        samples.map(({ row }) => row),
      );
      evaluate(...draw.pending, ...step.pending);
      const drawn = draw.read();
      step.commit();
      return drawn;
    } catch (error) {
      step.abandon();
      throw error;
    }
  }
}
