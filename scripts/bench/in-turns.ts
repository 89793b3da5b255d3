// Two ways of doing a thing, measured in turns: one, the other, and the one again.

/**
 * Every second number against the mean of the two beside it, as a part of it: whatever changes slowly besides, changes
 * evenly over three of them.
 */
export function changes(inTurns: readonly number[]): number[] {
  const found: number[] = [];
  for (let i = 1; i + 1 < inTurns.length; i += 2)
    found.push((2 * inTurns[i]!) / (inTurns[i - 1]! + inTurns[i + 1]!) - 1);
  return found;
}

/** The median, and between which changes it lies with 95% confidence whatever their distribution. */
export function told(all: readonly number[]): string {
  const sorted = all.toSorted((a, b) => a - b);
  const low = Math.max(0, Math.floor(all.length / 2 - 0.98 * Math.sqrt(all.length)));
  const percent = (part: number) => `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)}%`;
  return `${percent(median(all))} (${percent(sorted[low]!)} to ${percent(sorted.at(-1 - low)!)})`;
}

export function median(numbers: readonly number[]): number {
  return numbers.toSorted((a, b) => a - b)[numbers.length >> 1]!;
}
