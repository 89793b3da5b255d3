// Sorts combining marks into Unicode's canonical order. String.normalize() does so too, but in quadratic time: a run
// of ten thousand takes seconds.

/** Minimum length of a run that is sorted here; String.normalize() handles shorter runs quickly. */
const LONG_RUN = 64;
const LONG_RUNS = new RegExp(`\\p{M}{${LONG_RUN},}`, "gu");
/** Marks of the combining classes 1 and 230. */
const [OVERLAY, ABOVE] = ["\u0334", "\u0301"];

/** Sorts the marks of long runs. The result is canonically equivalent: it has the same normal forms as the text. */
export function withOrderedMarks(text: string): string {
  return text.replace(LONG_RUNS, (run) => ordered(run));
}

function ordered(run: string): string {
  const { kinds, size } = surveyed(new MarkReader(run));
  const reordered = kinds.map((code) => String.fromCodePoint(code)).filter(isReordered);
  // For each mark, the number of distinct marks that sort before it: equal for marks of one class.
  const rankOf = new Map(
    reordered.map((mark) => [
      mark.codePointAt(0)!,
      reordered.filter((other) => swaps(mark, other)).length,
    ]),
  );
  const units = new Uint16Array(size);
  const reader = new MarkReader(run);
  for (let at = 0; reader.mark !== END; reader.next()) {
    at = writeByRank(reader, rankOf, units, at);
    // A mark of class 0 stays in place, and other marks do not cross it.
    if (reader.mark !== END) at = write(reader.mark, units, at);
  }
  return new TextDecoder("utf-16le").decode(units);
}

const END = -1;

/** Reads the marks of a run, in canonical decomposition. */
class MarkReader {
  /** The current mark. */
  mark = END;
  readonly #run: string;
  readonly #partsOf: Map<number, readonly number[]>;
  #parts: readonly number[] = [];
  #part = 0;
  #at = 0;

  /** Starts at the first mark of a run, or copies another reader's position. */
  constructor(from: string | MarkReader) {
    if (typeof from === "string") {
      this.#run = from;
      this.#partsOf = new Map();
      this.next();
    } else {
      this.#run = from.#run;
      this.#partsOf = from.#partsOf;
      this.#parts = from.#parts;
      this.#part = from.#part;
      this.#at = from.#at;
      this.mark = from.mark;
    }
  }

  next(): void {
    if (this.#part === this.#parts.length) this.#nextParts();
    this.mark = this.#parts[this.#part++]!;
  }

  #nextParts(): void {
    const code = this.#run.codePointAt(this.#at) ?? END;
    this.#at += unitsOf(code);
    let parts = this.#partsOf.get(code);
    if (!parts) {
      parts = code === END ? [END] : partsOf(code);
      this.#partsOf.set(code, parts);
    }
    this.#parts = parts;
    this.#part = 0;
  }
}

function partsOf(code: number): number[] {
  const parts = String.fromCodePoint(code).normalize("NFD");
  return Array.from(parts, (part) => part.codePointAt(0)!);
}

/** Returns the distinct marks, and their total number of UTF-16 units. */
function surveyed(reader: MarkReader): { kinds: number[]; size: number } {
  const kinds = new Set<number>();
  let size = 0;
  for (; reader.mark !== END; reader.next()) {
    kinds.add(reader.mark);
    size += unitsOf(reader.mark);
  }
  return { kinds: [...kinds], size };
}

/** Writes marks sorted by rank (stable), up to the first mark without a rank. */
function writeByRank(
  reader: MarkReader,
  rankOf: ReadonlyMap<number, number>,
  units: Uint16Array,
  at: number,
): number {
  const again = new MarkReader(reader);
  const sizes = new Map<number, number>();
  let count = 0;
  for (let rank = rankOf.get(reader.mark); rank !== undefined; rank = rankOf.get(reader.mark)) {
    sizes.set(rank, (sizes.get(rank) ?? 0) + unitsOf(reader.mark));
    count += 1;
    reader.next();
  }
  const placeOf = new Map<number, number>();
  let end = at;
  for (const rank of [...sizes.keys()].sort((a, b) => a - b)) {
    placeOf.set(rank, end);
    end += sizes.get(rank)!;
  }
  for (; count > 0; count--) {
    const rank = rankOf.get(again.mark)!;
    placeOf.set(rank, write(again.mark, units, placeOf.get(rank)!));
    again.next();
  }
  return end;
}

function unitsOf(code: number): number {
  return code > 0xffff ? 2 : 1;
}

/** Writes a code point; returns the offset after it. */
function write(code: number, units: Uint16Array, at: number): number {
  if (code > 0xffff) {
    units[at] = 0xd800 + ((code - 0x10000) >> 10);
    units[at + 1] = 0xdc00 + ((code - 0x10000) & 0x3ff);
  } else units[at] = code;
  return at + unitsOf(code);
}

/** Whether canonical order puts `second` before `first`. */
function swaps(first: string, second: string): boolean {
  return (first + second).normalize("NFD") !== first + second;
}

/** Whether the mark takes part in sorting; marks of class 0 do not. */
function isReordered(mark: string): boolean {
  return swaps(mark, OVERLAY) || swaps(ABOVE, mark);
}
