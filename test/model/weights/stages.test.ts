import { expect, test } from "bun:test";
import { evenly, layerRanges } from "../../../src/model/weights/stages.ts";

const spans = (count: number, memory: readonly number[], vocabulary = 0) =>
  layerRanges(count, { memory }, vocabulary).map(({ first, end }) => [first, end]);

test("ranks with as much memory have as many layers", () => {
  expect(layerRanges(4, evenly(2), 0)).toEqual([
    { first: 0, end: 2 },
    { first: 2, end: 4 },
  ]);
  expect(spans(7, [1, 1])).toEqual([
    [0, 3],
    [3, 7],
  ]);
});

test("the first rank, which has the vocabulary too, has fewer, but one", () => {
  expect(spans(12, [1, 1, 1], 3)).toEqual([
    [0, 2],
    [2, 7],
    [7, 12],
  ]);
  expect(spans(30, [3, 1], 8)).toEqual([
    [0, 20],
    [20, 30],
  ]);
  expect(spans(9, [1, 1, 1], 20)).toEqual([
    [0, 1],
    [1, 5],
    [5, 9],
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
  expect(() => layerRanges(2, evenly(3), 0)).toThrow("2 layers for 3 ranks");
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
  expect(() => layerRanges(6, { ranges }, 0)).toThrow(`layers 0-5, but --layers gives ${given}`);
});
