// Suggests the known name that is closest to a misspelled one.

/** Returns the name with the smallest edit distance; undefined if that is more than a third of the word's length. */
export function nearest(word: string, names: Iterable<string>): string | undefined {
  let best: string | undefined;
  let fewest = Math.floor(word.length / 3) + 1;
  for (const name of names) {
    const changes = changesBetween(word, name);
    if (changes < fewest) [best, fewest] = [name, changes];
  }
  return best;
}

/** Computes the Levenshtein distance, row by row; two swapped letters count as one change. */
function changesBetween(from: string, to: string): number {
  let above: number[] = [];
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let index = 0; index < from.length; index++) {
    const next = [index + 1];
    for (let column = 1; column <= to.length; column++) {
      const replaced = row[column - 1]! + (from[index] === to[column - 1] ? 0 : 1);
      const isSwapped = from[index] === to[column - 2] && from[index - 1] === to[column - 1];
      const swapped = isSwapped ? above[column - 2]! + 1 : replaced;
      next.push(Math.min(replaced, swapped, row[column]! + 1, next[column - 1]! + 1));
    }
    [above, row] = [row, next];
  }
  return row[to.length]!;
}
