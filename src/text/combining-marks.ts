// Puts combining marks in Unicode's canonical order. String.normalize() does so too, but takes quadratic time for a
// long run of them: seconds for some ten thousand.
import { TokenIdBuffer } from "./token-ids.ts";

/** So many that String.normalize() takes little time for them. */
const LONG_RUN = 64;
const LONG_RUNS = new RegExp(`\\p{M}{${LONG_RUN},}`, "gu");
/** Marks of the classes 1 and 230. */
const [OVERLAY, ABOVE] = ["\u0334", "\u0301"];

/** The same text to Unicode: its normal forms are those of the text. */
export function withOrderedMarks(text: string): string {
  return text.replace(LONG_RUNS, (run) => ordered(run));
}

function ordered(run: string): string {
  const marks = decomposed(run);
  const kinds = kindsOf(marks).map((code) => String.fromCodePoint(code));
  const reordered = kinds.filter(isReordered);
  // How many of the kinds go before each: equal for those of one class.
  const rankOf = new Map(
    reordered.map((mark) => [
      mark.codePointAt(0)!,
      reordered.filter((other) => swaps(mark, other)).length,
    ]),
  );
  for (let start = 0; start < marks.length; ) {
    let end = start;
    while (end < marks.length && rankOf.has(marks[end]!)) end++;
    sortByRank(marks.subarray(start, end), rankOf);
    // A mark of class 0 stays where it is, and those around it do not pass it.
    start = end + 1;
  }
  return textOf(marks);
}

/** The marks of a run, those that consist of several taken apart. */
function decomposed(run: string): Uint32Array {
  const partsOf = new Map<number, number[]>();
  // Most of them stay one.
  const marks = new TokenIdBuffer(2 * run.length);
  for (let at = 0; at < run.length; ) {
    const code = run.codePointAt(at)!;
    at += code > 0xffff ? 2 : 1;
    let parts = partsOf.get(code);
    if (!parts) {
      const text = String.fromCodePoint(code).normalize("NFD");
      parts = Array.from(text, (part) => part.codePointAt(0)!);
      partsOf.set(code, parts);
    }
    for (let i = 0; i < parts.length; i++) marks.push(parts[i]!);
  }
  return marks.take();
}

function kindsOf(marks: Uint32Array): number[] {
  const kinds = new Set<number>();
  for (let i = 0; i < marks.length; i++) kinds.add(marks[i]!);
  return [...kinds];
}

/** In place; marks of one rank keep their order. */
function sortByRank(marks: Uint32Array, rankOf: ReadonlyMap<number, number>): void {
  const counts = new Map<number, number>();
  for (let i = 0; i < marks.length; i++) {
    const rank = rankOf.get(marks[i]!)!;
    counts.set(rank, (counts.get(rank) ?? 0) + 1);
  }
  if (counts.size < 2) return;
  const placeOf = new Map<number, number>();
  let place = 0;
  for (const rank of [...counts.keys()].sort((a, b) => a - b)) {
    placeOf.set(rank, place);
    place += counts.get(rank)!;
  }
  const before = marks.slice();
  for (let i = 0; i < before.length; i++) {
    const rank = rankOf.get(before[i]!)!;
    const at = placeOf.get(rank)!;
    marks[at] = before[i]!;
    placeOf.set(rank, at + 1);
  }
}

function textOf(codes: Uint32Array): string {
  const units = new Uint16Array(2 * codes.length);
  let length = 0;
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i]!;
    if (code > 0xffff) {
      units[length++] = 0xd800 + ((code - 0x10000) >> 10);
      units[length++] = 0xdc00 + ((code - 0x10000) & 0x3ff);
    } else units[length++] = code;
  }
  return new TextDecoder("utf-16le").decode(units.subarray(0, length));
}

/** Whether `second` goes before `first` where it follows it. */
function swaps(first: string, second: string): boolean {
  return (first + second).normalize("NFD") !== first + second;
}

/** Marks of class 0 are not. */
function isReordered(mark: string): boolean {
  return swaps(mark, OVERLAY) || swaps(ABOVE, mark);
}
