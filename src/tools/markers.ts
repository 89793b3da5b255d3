// Finds marks in text that comes a character at a time, with the automaton of Knuth, Morris and Pratt.

type Pattern = {
  mark: string;
  /** For each length of a matched prefix, the longest shorter prefix that also ends there. */
  fallback: Int32Array;
  matched: number;
};

export class Markers {
  readonly #patterns: Pattern[];

  constructor(marks: readonly string[]) {
    this.#patterns = marks.map((mark) => ({ mark, fallback: fallbackOf(mark), matched: 0 }));
  }

  /** The mark that this character completes; the search then begins anew. */
  take(char: string): string | undefined {
    for (const pattern of this.#patterns) advance(pattern, char);
    const found = this.#patterns.find(({ mark, matched }) => matched === mark.length);
    if (found) for (const pattern of this.#patterns) pattern.matched = 0;
    return found?.mark;
  }

  /** How many of the last characters may yet become a mark. */
  get held(): number {
    return this.#patterns.reduce((most, { matched }) => Math.max(most, matched), 0);
  }
}

function advance(pattern: Pattern, char: string): void {
  const { mark, fallback } = pattern;
  let matched = pattern.matched;
  while (matched > 0 && mark[matched] !== char) matched = fallback[matched]!;
  pattern.matched = mark[matched] === char ? matched + 1 : 0;
}

function fallbackOf(mark: string): Int32Array {
  const fallback = new Int32Array(mark.length + 1);
  let length = 0;
  for (let i = 1; i < mark.length; i++) {
    while (length > 0 && mark[i] !== mark[length]) length = fallback[length]!;
    if (mark[i] === mark[length]) length++;
    fallback[i + 1] = length;
  }
  return fallback;
}
