// Divides an axis of a model among ranks. Layers choose the axes; each rank loads its part of the matrices along
// these axes, and partial products are summed over the ranks.

/** A rank's part of an axis of size `of`. `copies`: number of ranks that have this part, if several. */
export type Slice = {
  readonly first: number;
  readonly count: number;
  readonly of: number;
  readonly copies?: number;
};

/** A whole axis, or this rank's part of it. */
export type Extent = number | Slice;

/** An axis, or several that are concatenated. */
export type Extents = Extent | readonly Extent[];

export function partsOf(extents: Extents): readonly Extent[] {
  return typeof extents === "object" && "length" in extents ? extents : [extents];
}

/** Returns the size of this rank's part. */
export function countOf(extent: Extent): number {
  return typeof extent === "number" ? extent : extent.count;
}

/** Returns the size on all ranks together. */
export function wholeOf(extent: Extent): number {
  return typeof extent === "number" ? extent : extent.of;
}

export function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((a, b) => a + b, 0);
}

/** Converts an axis, or a rank's part of it, to one with `each` features per element. */
export function times(extent: Extent, each: number): Extent {
  if (typeof extent === "number") return extent * each;
  const { first, count, of, ...copies } = extent;
  return { first: first * each, count: count * each, of: of * each, ...copies };
}

/**
 * Returns a rank's part of an axis, in multiples of `unit`; lower ranks may have one unit more than others. Returns
 * the whole axis if a rank would get none.
 */
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

/** Returns one of equal parts (the last may be smaller), or the whole axis if the last rank would get none. */
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
