// How often each token stands in a sequence, for penalties. It keeps up with the sequence token by token, so
// that a step costs what it adds and not the whole sequence again.

export class TokenCounts {
  readonly #promptLength: number;
  /** Token -> where it stands in the lists. */
  readonly #at = new Map<number, number>();
  #tokens = new Int32Array(64);
  #counts = new Float32Array(64);
  #counted = 0;

  constructor(promptLength: number) {
    this.#promptLength = promptLength;
  }

  /** How many different tokens there are. */
  get size(): number {
    return this.#at.size;
  }

  /** Each token once. */
  get tokens(): Int32Array {
    return this.#tokens.subarray(0, this.size);
  }

  /** How often each of `tokens` stands in the output: 0 for those of the prompt alone. */
  get outputCounts(): Float32Array {
    return this.#counts.subarray(0, this.size);
  }

  /** Counts what has come since; a sequence only grows. */
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
