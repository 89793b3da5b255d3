// Puts combining marks in Unicode's canonical order. String.normalize() does so too, but takes quadratic time for a
// long run of them: seconds for some ten thousand.

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
  const kinds = [...new Set(marks)];
  const reordered = kinds.filter(isReordered);
  // How many of the kinds go before each: equal for those of one class.
  const rankOf = new Map(
    reordered.map((mark) => [mark, reordered.filter((other) => swaps(mark, other)).length]),
  );
  const sorted: string[] = [];
  for (let start = 0; start < marks.length; ) {
    let end = start;
    while (end < marks.length && rankOf.has(marks[end]!)) end++;
    const stretch = marks.slice(start, end).sort((a, b) => rankOf.get(a)! - rankOf.get(b)!);
    for (const mark of stretch) sorted.push(mark);
    // A mark of class 0 stays where it is, and those around it do not pass it.
    if (end < marks.length) sorted.push(marks[end]!);
    start = end + 1;
  }
  return sorted.join("");
}

/** The marks of a run, those that consist of several taken apart. */
function decomposed(run: string): string[] {
  const partsOf = new Map<string, string[]>();
  const marks: string[] = [];
  for (const mark of run) {
    let parts = partsOf.get(mark);
    if (!parts) {
      parts = Array.from(mark.normalize("NFD"));
      partsOf.set(mark, parts);
    }
    for (const part of parts) marks.push(part);
  }
  return marks;
}

/** Whether `second` goes before `first` where it follows it. */
function swaps(first: string, second: string): boolean {
  return (first + second).normalize("NFD") !== first + second;
}

/** Marks of class 0 are not. */
function isReordered(mark: string): boolean {
  return swaps(mark, OVERLAY) || swaps(ABOVE, mark);
}
