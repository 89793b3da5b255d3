// Ends a stream of text at the first stop string. Text that may yet turn out to be the start of one
// is held back, and nothing else is.

export interface StopStep {
  /** What can be sent. */
  text: string;
  /** The stop string that ended the stream; it and what follows are not sent. */
  stopped?: string;
}

interface Pattern {
  stop: string;
  /** For each length of a matched prefix, the longest shorter prefix that also ends there. */
  fallback: Int32Array;
  matched: number;
}

export class StopStrings {
  readonly #patterns: Pattern[];
  #held = "";

  constructor(stops: readonly string[]) {
    if (stops.includes("")) throw new Error("an empty stop string would end every stream at once");
    this.#patterns = stops.map((text) => {
      // Half of a surrogate pair would cut a character in two.
      const stop = text.toWellFormed();
      return { stop, fallback: fallbackOf(stop), matched: 0 };
    });
  }

  push(text: string): StopStep {
    for (let i = 0; i < text.length; i++) {
      let found: Pattern | undefined;
      for (const pattern of this.#patterns) {
        advance(pattern, text[i]!);
        // Of those that end here, the longest began first.
        const whole = pattern.matched === pattern.stop.length;
        if (whole && (!found || pattern.stop.length > found.stop.length)) found = pattern;
      }
      if (!found) continue;
      const seen = this.#held + text.slice(0, i + 1);
      this.#held = "";
      return { text: seen.slice(0, seen.length - found.stop.length), stopped: found.stop };
    }
    const seen = this.#held + text;
    const held = this.#patterns.reduce((most, { matched }) => Math.max(most, matched), 0);
    this.#held = seen.slice(seen.length - held);
    return { text: seen.slice(0, seen.length - held) };
  }

  /** The stream has ended by itself: what was held back is text after all. */
  flush(): string {
    const held = this.#held;
    this.#held = "";
    for (const pattern of this.#patterns) pattern.matched = 0;
    return held;
  }
}

/** One step of Knuth, Morris and Pratt's automaton. */
function advance(pattern: Pattern, char: string): void {
  const { stop, fallback } = pattern;
  let matched = pattern.matched;
  while (matched > 0 && stop[matched] !== char) matched = fallback[matched]!;
  pattern.matched = stop[matched] === char ? matched + 1 : 0;
}

function fallbackOf(stop: string): Int32Array {
  const fallback = new Int32Array(stop.length + 1);
  let length = 0;
  for (let i = 1; i < stop.length; i++) {
    while (length > 0 && stop[i] !== stop[length]) length = fallback[length]!;
    if (stop[i] === stop[length]) length++;
    fallback[i + 1] = length;
  }
  return fallback;
}
