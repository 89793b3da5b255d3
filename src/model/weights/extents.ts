// How an axis of a model is divided among the ranks of a group. A layer says which of its axes are: each rank then loads
// its part of the matrices along that axis, and what a product makes of parts of its input is added up over the ranks.

/** A rank's part of an axis that has `of` in all. `copies`: how many ranks have it, where that is more than one. */
export type Slice = {
  readonly first: number;
  readonly count: number;
  readonly of: number;
  readonly copies?: number;
};

/** A whole axis, or the part of it that this rank has. */
export type Extent = number | Slice;

/** An axis that is one part behind the other. */
export type Extents = Extent | readonly Extent[];

export function partsOf(extents: Extents): readonly Extent[] {
  return typeof extents === "object" && "length" in extents ? extents : [extents];
}

/** How many of them this rank has. */
export function countOf(extent: Extent): number {
  return typeof extent === "number" ? extent : extent.count;
}

/** How many there are on all ranks. */
export function wholeOf(extent: Extent): number {
  return typeof extent === "number" ? extent : extent.of;
}

/** The same part, where each is so many. */
export function times(extent: Extent, each: number): Extent {
  if (typeof extent === "number") return extent * each;
  const { first, count, of, ...copies } = extent;
  return { first: first * each, count: count * each, of: of * each, ...copies };
}

/** The part of a rank, in multiples of `unit`: the first ranks have more where it is uneven; all where some had none. */
export function sliceOf(
  size: number,
  unit: number,
  { rank, size: ranks }: { rank: number; size: number },
): Extent {
  const units = size / unit;
  if (!Number.isInteger(units) || units < ranks) return size;
  const [first, end] = [rank, rank + 1].map((each) => Math.ceil((units * each) / ranks) * unit);
  return { first: first!, count: end! - first!, of: size };
}

/** The same, with as many on each rank but the last, which may have fewer; all where that had none. */
export function evenSliceOf(
  size: number,
  { rank, size: ranks }: { rank: number; size: number },
): Extent {
  const most = Math.ceil(size / ranks);
  if (most * (ranks - 1) >= size) return size;
  const first = most * rank;
  return { first, count: Math.min(most, size - first), of: size };
}

export function leastCommonMultiple(...numbers: readonly number[]): number {
  const divisor = (a: number, b: number): number => (b === 0 ? a : divisor(b, a % b));
  return numbers.reduce((a, b) => (a * b) / divisor(a, b), 1);
}
