// Ownership of arrays. An array belongs to the scope that was open when it was created; closing the scope frees it.
// `keep` passes an array to the enclosing scope, or to the caller if there is none; `hold` takes it out of all
// scopes, as for weights. The holder of an array without a scope calls `free()`.
//
// Never await inside a scope, and evaluate after it closes: MLX reuses the buffers of freed arrays.

/** The members of an array that scopes use. */
type Owned = { scope: Scope | undefined; free(): void };
type Kept = Owned | readonly Owned[];

let current: Scope | undefined;

export class Scope {
  readonly #outer = current;
  readonly #arrays: Owned[] = [];

  constructor() {
    current = this;
  }

  /** Makes this scope the owner of a new array, or of another scope's array. */
  own(array: Owned): void {
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

  /** Makes the enclosing scope the owner of new arrays from now on. */
  close(): void {
    if (current !== this)
      throw new Error("scopes must close in the reverse order of their opening");
    current = this.#outer;
  }

  /** Frees the scope's arrays. Call `close` first. */
  free(): void {
    for (const array of this.#arrays) if (array.scope === this) array.free();
  }

  [Symbol.dispose](): void {
    this.close();
    this.free();
  }
}

/** Returns the scope that owns new arrays; undefined if none is open. */
export function openScope(): Scope | undefined {
  return current;
}

/** Runs work outside the open scopes, as if none were open. */
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

function list(arrays: Kept): readonly Owned[] {
  return "free" in arrays ? [arrays] : arrays;
}
