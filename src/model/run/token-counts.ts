// Counts each token of a sequence, for penalties. Counts only a step's new tokens, not the whole sequence again.

export class TokenCounts {
  readonly #promptLength: number;
  /** Index of each token in `#tokens` and `#counts`. */
  readonly #at = new Map<number, number>();
  #tokens = new Int32Array(64);
  #counts = new Float32Array(64);
  #counted = 0;

  constructor(promptLength: number) {
    this.#promptLength = promptLength;
  }

  /** Number of distinct tokens. */
  get size(): number {
    return this.#at.size;
  }

  /** Each distinct token once. */
  get tokens(): Int32Array {
    return this.#tokens.subarray(0, this.size);
  }

  /** Occurrences of each of `tokens` in the output: 0 for tokens of the prompt alone. */
  get outputCounts(): Float32Array {
    return this.#counts.subarray(0, this.size);
  }

  /** Counts the tokens added since the last call; a sequence only grows. */
  update(sequence: Uint32Array): void {
    for (; this.#counted < sequence.length; this.#counted++) {
      const at = this.#find(sequence[this.#counted]!);
      if (this.#counted >= this.#promptLength) this.#counts[at]! += 1;
    }
  }

  #find(token: number): number {
    const found = this.#at.get(token);
    if (found !== undefined) return found;
    const at = this.size;
    if (at === this.#tokens.length) this.#grow();
    this.#at.set(token, at);
    this.#tokens[at] = token;
    return at;
  }

  #grow(): void {
    const [tokens, counts] = [this.#tokens, this.#counts];
    this.#tokens = new Int32Array(tokens.length * 2);
    this.#counts = new Float32Array(counts.length * 2);
    this.#tokens.set(tokens);
    this.#counts.set(counts);
  }
}
