// The layers of a long step, which the device computes while those behind them are built.
import { asyncEvaluate, type MlxArray } from "../../mlx/array.ts";
import { Scope } from "../../mlx/scope.ts";

/** Layers that begin together, behind the first, which begins alone, with its queries before the rest. */
const LAYERS = 2;
/** The device is never out of work where so many more have begun behind those that it computes. */
const MOST_BEGUN = 2;

/**
 * The host builds layers much faster than the device computes them, and what each makes stays in memory until then: that of all
 * layers, if the host did not wait. Memory that is first wanted takes the device long to come by, and there may be too little.
 */
export class BegunLayers {
  readonly #landOthers: (() => void) | undefined;
  #hasStarted = false;
  #built = 0;
  /** Of layers that have not begun. */
  #scopes: Scope[] = [];
  readonly #begun: { hidden: MlxArray; scopes: readonly Scope[] }[] = [];

  /** `landOthers`: reads the steps before, which the device is done with before it is with these layers. */
  constructor(landOthers?: () => void) {
    this.#landOthers = landOthers;
  }

  /** The queries of a layer: the device is at the first one's while the rest of it is built. */
  start(queries: MlxArray): void {
    if (this.#hasStarted) return;
    this.#hasStarted = true;
    asyncEvaluate(queries);
  }

  /** The hidden state behind the next layer. What else the layer makes is freed a few layers later, and so is this. */
  add(build: () => MlxArray): MlxArray {
    const scope = new Scope();
    this.#scopes.push(scope);
    let hidden: MlxArray;
    try {
      hidden = build();
      // A layer that computes nothing hands on what another has made.
      if (hidden.scope !== scope) scope.own(hidden);
    } finally {
      scope.close();
    }
    this.#built += 1;
    if (this.#built === 1 || this.#built % LAYERS === 0) this.#begin(hidden);
    return hidden;
  }

  [Symbol.dispose](): void {
    for (const { scopes } of this.#begun) for (const scope of scopes) scope.free();
    for (const scope of this.#scopes) scope.free();
  }

  #begin(hidden: MlxArray): void {
    asyncEvaluate(hidden);
    this.#begun.push({ hidden, scopes: this.#scopes });
    this.#scopes = [];
    if (this.#begun.length <= MOST_BEGUN) return;
    this.#landOthers?.();
    const first = this.#begun.shift()!;
    first.hidden.evaluate();
    for (const scope of first.scopes) scope.free();
  }
}
