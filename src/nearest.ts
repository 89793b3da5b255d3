// Suggests the known name that is closest to a misspelled one.

/** The name with the smallest edit distance, if that is at most a third of the word. */
export function nearest(word: string, names: Iterable<string>): string | undefined {
  let best: string | undefined;
  let fewest = Math.floor(word.length / 3) + 1;
  for (const name of names) {
    const changes = changesBetween(word, name);
    if (changes < fewest) [best, fewest] = [name, changes];
  }
  return best;
}

/** Levenshtein distance, computed one row of the table at a time. */
function changesBetween(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (const [index, letter] of [...from].entries()) {
    const next = [index + 1];
    for (let column = 1; column <= to.length; column++) {
      const replaced = row[column - 1]! + (letter === to[column - 1] ? 0 : 1);
      next.push(Math.min(replaced, row[column]! + 1, next[column - 1]! + 1));
    }
    row = next;
  }
  return row[to.length]!;
}
