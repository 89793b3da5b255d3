// Which tokens cached blocks hold, to tell where a prompt parts from them. It is kept for logs at debug level only.

/** Where a prompt parts from what is cached. */
export type PrefixMiss = {
  /** The first of its tokens that is not cached, counted from 0. */
  at: number;
  token: number;
  /** What the most similar cached prefix has in its place; undefined where that ends, or was evicted. */
  cached: number | undefined;
  /** Where it resumed: before that, where a snapshot was missing. */
  resumed: number;
};

export class CachedTokens {
  /** By the key of the block before. */
  readonly #blocks = new Map<string, Map<string, Uint32Array>>();
  readonly #most: number;
  #count = 0;

  /** `most`: blocks that there may be. */
  constructor(most: number) {
    this.#most = most;
  }

  add(before: string, key: string, tokens: Uint32Array): void {
    const siblings = this.#blocks.get(before) ?? new Map<string, Uint32Array>();
    if (siblings.has(key)) return;
    siblings.set(key, tokens.slice());
    this.#blocks.set(before, siblings);
    this.#count += 1;
  }

  /** Of the blocks behind one that are cached, how many tokens the most similar begins with, and the next. */
  nearest(
    before: string,
    tokens: Uint32Array,
    isCached: (key: string) => boolean,
  ): { common: number; next: number | undefined } {
    let best: { common: number; next: number | undefined } = { common: 0, next: undefined };
    for (const [key, others] of this.#blocks.get(before) ?? []) {
      if (!isCached(key)) continue;
      let common = 0;
      while (common < tokens.length && tokens[common] === others[common]) common++;
      if (best.next === undefined || common > best.common) best = { common, next: others[common] };
    }
    return best;
  }

  /** Forgets what is no longer cached, now and then. */
  sweep(isCached: (key: string) => boolean): void {
    if (this.#count <= 2 * this.#most) return;
    this.#count = 0;
    for (const [before, siblings] of this.#blocks) {
      for (const key of siblings.keys()) if (!isCached(key)) siblings.delete(key);
      if (siblings.size === 0) this.#blocks.delete(before);
      this.#count += siblings.size;
    }
  }
}
