import { describe, expect, test } from "bun:test";
import {
  countOf,
  type Extent,
  evenSliceOf,
  leastCommonMultiple,
  sliceOf,
  times,
} from "../../../src/model/weights/extents.ts";

const onRanks = (size: number, part: (group: { rank: number; size: number }) => Extent) =>
  Array.from({ length: size }, (_, rank) => part({ rank, size }));

/** First and count of each rank's part; all of it where it is whole. */
const partsOf = (extents: readonly Extent[]) =>
  extents.map((each) => (typeof each === "number" ? "all" : [each.first, each.count]));

describe("the parts of ranks", () => {
  test("are alike where an axis divides evenly, and have units that stay together", () => {
    expect(partsOf(onRanks(2, (group) => sliceOf(128, 64, group)))).toEqual([
      [0, 64],
      [64, 64],
    ]);
  });

  test("follow each other without gaps, the first ones larger", () => {
    for (const [size, unit, ranks] of [
      [1536, 32, 5],
      [9, 3, 2],
      [7, 1, 3],
    ] as const) {
      const parts = onRanks(ranks, (group) => sliceOf(size, unit, group));
      let at = 0;
      for (const part of parts) {
        expect(part).toMatchObject({ first: at, of: size });
        expect(countOf(part) % unit).toBe(0);
        at += countOf(part);
      }
      expect(at).toBe(size);
      expect(countOf(parts[0]!)).toBe(Math.max(...parts.map(countOf)));
    }
  });

  test("are whole where a rank would have none, or where units do not fit", () => {
    expect(partsOf(onRanks(3, (group) => sliceOf(64, 32, group)))).toEqual(["all", "all", "all"]);
    expect(partsOf(onRanks(2, (group) => sliceOf(96, 64, group)))).toEqual(["all", "all"]);
  });

  test("of a vocabulary have one size, but for the last", () => {
    expect(partsOf(onRanks(3, (group) => evenSliceOf(10, group)))).toEqual([
      [0, 4],
      [4, 4],
      [8, 2],
    ]);
    expect(partsOf(onRanks(4, (group) => evenSliceOf(4, group)))).toHaveLength(4);
    // The last of five ranks would have none of 6.
    expect(partsOf(onRanks(5, (group) => evenSliceOf(6, group)))[0]).toBe("all");
  });

  test("grow with what each of them is", () => {
    expect(times(3, 16)).toBe(48);
    const wider = times({ first: 1, count: 2, of: 4, copies: 2 }, 16);
    expect(wider).toEqual({ first: 16, count: 32, of: 64, copies: 2 });
    expect(leastCommonMultiple(32, 48)).toBe(96);
  });
});
