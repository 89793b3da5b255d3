// Finds strings in text that arrives character by character, with one Knuth-Morris-Pratt automaton per string.

type Pattern = {
  text: string;
  /** KMP failure function: for each length of a matched prefix, the next shorter one that matches. */
  fallback: Int32Array;
  matched: number;
};

export class StringMatcher {
  readonly #patterns: Pattern[];

  constructor(texts: readonly string[]) {
    this.#patterns = texts.map((text) => ({ text, fallback: fallbackOf(text), matched: 0 }));
  }

  /** Adds a character; returns the longest string that it completes, if any, and then restarts the search. */
  take(char: string): string | undefined {
    let found: string | undefined;
    for (const pattern of this.#patterns) {
      advance(pattern, char);
      const { text, matched } = pattern;
      if (matched === text.length && text.length > (found?.length ?? 0)) found = text;
    }
    if (found !== undefined) this.reset();
    return found;
  }

  /** Length of the longest suffix of the text that may still become one of the strings. */
  get held(): number {
    return this.#patterns.reduce((most, { matched }) => Math.max(most, matched), 0);
  }

  reset(): void {
    for (const pattern of this.#patterns) pattern.matched = 0;
  }
}

function advance(pattern: Pattern, char: string): void {
  const { text, fallback } = pattern;
  let matched = pattern.matched;
  while (matched > 0 && text[matched] !== char) matched = fallback[matched]!;
  pattern.matched = text[matched] === char ? matched + 1 : 0;
}

function fallbackOf(text: string): Int32Array {
  const fallback = new Int32Array(text.length + 1);
  let length = 0;
  for (let i = 1; i < text.length; i++) {
    while (length > 0 && text[i] !== text[length]) length = fallback[length]!;
    if (text[i] === text[length]) length++;
    fallback[i + 1] = length;
  }
  return fallback;
}
