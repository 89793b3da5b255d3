// Evaluates two alternatives that were measured in alternation.

/**
 * The relative difference of every second number to the mean of its neighbours, which cancels slow drift.
 */
export function changes(inTurns: readonly number[]): number[] {
  const found: number[] = [];
  for (let i = 1; i + 1 < inTurns.length; i += 2)
    found.push((2 * inTurns[i]!) / (inTurns[i - 1]! + inTurns[i + 1]!) - 1);
  return found;
}

/** The median and its distribution-free 95% confidence interval. */
export function told(all: readonly number[]): string {
  const sorted = all.toSorted((a, b) => a - b);
  const low = Math.max(0, Math.floor(all.length / 2 - 0.98 * Math.sqrt(all.length)));
  const percent = (part: number) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)}%`;
  return `${percent(median(all))} (${percent(sorted[low]!)} to ${percent(sorted.at(-1 - low)!)})`;
}

export function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1]!;
}
