// Runs the steps of a pipeline rank other than the first: computes each step as soon as it arrives and sends the
// hidden states to the next rank.
import { array, evaluate } from "../../mlx/array.ts";
import { Scope } from "../../mlx/scope.ts";
import type { Model } from "../contract/model.ts";
import type { StateStore } from "../state/state-store.ts";
import type { Launched, StepInputs } from "./step.ts";

export class StageRunner {
  readonly #model: Model;
  readonly #store: StateStore;

  constructor(model: Model, store: StateStore) {
    this.#model = model;
    this.#store = store;
  }

  launch({ tokens, rows, copies }: StepInputs): Launched {
    using _ = new Scope();
    const own = copies.filter(({ group }) => this.#store.hasGroup(group));
    if (own.length > 0) evaluate(this.#store.copy(own, undefined));
    evaluate(this.#model.forward(array(tokens), this.#store.begin(rows)));
    return { draw() {}, read: () => ({ sampled: [], scored: [], sums: [] }) };
  }

  free(): void {}
}
