// Remembers the tokens of cached blocks, to explain where a prompt diverges from them. Kept at log level debug only.

/** Where a prompt diverges from the prefix cache. */
export type PrefixMiss = {
  /** Index of the prompt's first token that is not cached. */
  at: number;
  token: number;
  /** Token at that index in the most similar cached prefix; undefined if that prefix ends there or was evicted. */
  cached: number | undefined;
  /** Position at which computation resumed: before `at` if a snapshot was missing. */
  resumed: number;
};

export class CachedTokens {
  /** Tokens of each block, by its parent's key, then by its own key. */
  readonly #blocks = new Map<string, Map<string, Uint32Array>>();
  readonly #most: number;
  #count = 0;

  /** `most`: maximum number of cached blocks. */
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

  /** Among the cached blocks after block `before`, finds the longest match with `tokens`, and the token after it. */
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

  /** Forgets evicted blocks, but only once more than twice the maximum is stored, to amortize the cost. */
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
