import { expect, test } from "bun:test";
import { evenly, layerRanges } from "../../src/model/stages.ts";

const spans = (count: number, memory: readonly number[]) =>
  layerRanges(count, { memory }).map(({ first, end }) => [first, end]);

test("ranks with as much memory have as many layers", () => {
  expect(layerRanges(4, evenly(2))).toEqual([
    { first: 0, end: 2 },
    { first: 2, end: 4 },
  ]);
  // The first, which has the vocabulary too, has no more than others.
  expect(spans(7, [1, 1, 1])).toEqual([
    [0, 2],
    [2, 4],
    [4, 7],
  ]);
});

test("a rank with more memory has more layers, and every rank has one", () => {
  expect(spans(40, [192, 64])).toEqual([
    [0, 30],
    [30, 40],
  ]);
  expect(spans(4, [1000, 1, 1])).toEqual([
    [0, 2],
    [2, 3],
    [3, 4],
  ]);
  expect(spans(4, [1, 1, 1000])).toEqual([
    [0, 1],
    [1, 2],
    [2, 4],
  ]);
});

test("fewer layers than ranks are refused", () => {
  expect(() => layerRanges(2, evenly(3))).toThrow("2 layers for 3 ranks");
});

test.each([
  [[{ first: 0, end: 4 }], "0-3"],
  [
    [
      { first: 0, end: 2 },
      { first: 3, end: 6 },
    ],
    "0-1,3-5",
  ],
  [
    [
      { first: 0, end: 6 },
      { first: 6, end: 6 },
    ],
    "0-5,6-5",
  ],
])("ranges that are not all layers are refused with the numbers", (ranges, given) => {
  expect(() => layerRanges(6, { ranges })).toThrow(`layers 0-5, and --layers says ${given}`);
});
