// Who frees an array. An array belongs to the scope that was open when it was made; closing the scope
// frees it. `keep` hands one to the enclosing scope, or to the caller for good where there is none;
// `hold` hands one to the caller for good from wherever it is, as for weights. What nobody's scope
// owns is freed by its owner with `free()`.
//
// Never await inside a scope, and evaluate after it closes: MLX reuses the buffers of arrays that
// nobody holds any more.
import type { MlxArray } from "./array.ts";

type Kept = MlxArray | readonly MlxArray[];

let current: Scope | undefined;

export class Scope {
  readonly #outer = current;
  readonly #arrays: MlxArray[] = [];

  constructor() {
    current = this;
  }

  /** For the constructor of MlxArray: this scope frees the array, unless it is kept. */
  own(array: MlxArray): void {
    array.scope = this;
    this.#arrays.push(array);
  }

  keep<T extends Kept>(kept: T): T {
    for (const array of list(kept)) {
      if (array.scope !== this) continue;
      array.scope = undefined;
      this.#outer?.own(array);
    }
    return kept;
  }

  [Symbol.dispose](): void {
    if (current !== this)
      throw new Error("scopes must close in the reverse order of their opening");
    current = this.#outer;
    for (const array of this.#arrays) if (array.scope === this) array.free();
  }
}

/** The scope that owns what is made now. */
export function openScope(): Scope | undefined {
  return current;
}

/** Does something that has nothing to do with the scopes that are open. */
export function apart(work: () => void): void {
  const open = current;
  current = undefined;
  try {
    work();
  } finally {
    current = open;
  }
}

/** Takes arrays out of their scopes: the caller frees them. */
export function hold<T extends Kept>(held: T): T {
  for (const array of list(held)) array.scope = undefined;
  return held;
}

function list(arrays: Kept): readonly MlxArray[] {
  return "handle" in arrays ? [arrays] : arrays;
}
