// Launches the layers of a long step early, so that the device computes them while the host builds the next ones.
import type { Hidden } from "../../device/device.ts";
import { asyncEvaluate, type MlxArray } from "../../mlx/array.ts";
import { Scope } from "../../mlx/scope.ts";

/** Layers per launch. The first layer is launched alone, and its queries even before the rest of it. */
const LAYERS = 2;
/** Maximum launches in flight: enough that the device never idles. */
const MOST_BEGUN = 2;

/**
 * Builds and launches layers. The host waits so that it is at most a few layers ahead of the device: without waiting,
 * the intermediate arrays of all layers would be in memory at once, and allocating that memory is slow.
 */
export class BegunLayers {
  readonly #landOthers: (() => void) | undefined;
  #hasStarted = false;
  #built = 0;
  /** Scopes of the layers that were built since the last launch. */
  #scopes: Scope[] = [];
  readonly #begun: { hidden: MlxArray; scopes: readonly Scope[] }[] = [];

  /** `landOthers` reads the results of earlier steps, which the device finishes before these layers. */
  constructor(landOthers?: () => void) {
    this.#landOthers = landOthers;
  }

  /** Launches the first layer's queries, which the device computes while the rest of the layer is built. */
  start(queries: MlxArray): void {
    if (this.#hasStarted) return;
    this.#hasStarted = true;
    asyncEvaluate(queries);
  }

  /** Builds the next layer and returns its hidden state. The layer's arrays are freed a few layers later. */
  add(build: () => Hidden): Hidden {
    const scope = new Scope();
    this.#scopes.push(scope);
    let hidden: Hidden;
    try {
      hidden = build();
      // A layer that computes nothing returns another layer's array.
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
