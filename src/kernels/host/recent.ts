// A cache of native objects that frees the least recently used. Two generations make a hit as cheap
// as one look-up: once the young one holds half of the limit it replaces the old one, whose entries
// are freed unless they were used since.

export class Recent<K, V extends { free(): void }> {
  readonly #half: number;
  #young = new Map<K, V>();
  #old = new Map<K, V>();

  /** Maximum number of entries. Far above what a launch uses, so that none of its own is evicted. */
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
