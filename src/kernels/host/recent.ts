// An LRU cache of native objects, which frees those it evicts. Two generations, young and old, make a hit as cheap as
// one map lookup: once the young generation holds half of the limit, it replaces the old one, and old entries that
// were not used since are freed.

export class Recent<K, V extends { free(): void }> {
  readonly #half: number;
  #young = new Map<K, V>();
  #old = new Map<K, V>();

  /** `most`: maximum number of entries, far above what one launch uses, so that no entry is evicted while in use. */
  constructor(most: number) {
    this.#half = Math.ceil(most / 2);
  }

  get(key: K, make: () => V): V {
    const found = this.#young.get(key);
    if (found) return found;
    const value = this.#old.get(key) ?? make();
    this.#old.delete(key);
    if (this.#young.size === this.#half) {
      for (const each of this.#old.values()) each.free();
      this.#old = this.#young;
      this.#young = new Map();
    }
    this.#young.set(key, value);
    return value;
  }

  free(): void {
    for (const each of [...this.#young.values(), ...this.#old.values()]) each.free();
  }
}
