import { describe, expect, test } from "bun:test";
import {
  columnsOf,
  orderedRuns,
  runsOf,
  transposed,
} from "../../../../src/model/checkpoint/stored/arrangement.ts";
import type { StoredTensor } from "../../../../src/model/checkpoint/stored/tensor.ts";

/** Numbers of two bytes that say where they stand: 0, 1, 2 and so on. */
function counted(...shape: number[]): StoredTensor {
  const numbers = Uint16Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => i);
  const all = new Uint8Array(numbers.buffer);
  const read = (offset: number, target: Uint8Array) =>
    target.set(all.subarray(offset, offset + target.length));
  return { name: "stored", shape, format: "F16", bytes: all.length, read };
}

/** The whole tensor, read so many bytes at a time. */
function numbersOf({ bytes, read }: StoredTensor, piece: number): number[] {
  const all = new Uint8Array(bytes);
  for (let at = 0; at < bytes; at += piece) read(at, all.subarray(at, at + piece));
  return [...new Uint16Array(all.buffer)];
}

describe.each([2, 4, 10, 22, 1000])("read %i bytes at a time", (piece) => {
  test("columns become rows, in each matrix by itself", () => {
    const made = transposed("made", counted(2, 3, 5), { first: 0, count: 5 });
    expect([made.name, made.shape, made.bytes]).toEqual(["made", [2, 5, 3], 60]);
    const first = [0, 5, 10, 1, 6, 11, 2, 7, 12, 3, 8, 13, 4, 9, 14];
    expect(numbersOf(made, piece)).toEqual([...first, ...first.map((x) => x + 15)]);
  });

  test("some columns become rows", () => {
    const made = transposed("made", counted(2, 3, 4), { first: 1, count: 2 });
    expect([made.shape, made.bytes]).toEqual([[2, 2, 3], 24]);
    expect(numbersOf(made, piece)).toEqual([1, 5, 9, 2, 6, 10, 13, 17, 21, 14, 18, 22]);
  });

  test("one column in two becomes a row", () => {
    const made = transposed("made", counted(2, 3, 4), { first: 1, count: 2, step: 2 });
    expect([made.shape, made.bytes]).toEqual([[2, 2, 3], 24]);
    expect(numbersOf(made, piece)).toEqual([1, 5, 9, 3, 7, 11, 13, 17, 21, 15, 19, 23]);
  });

  test("columns are cut out of every row, of each matrix", () => {
    const made = columnsOf(counted(2, 2, 4), { runs: [{ first: 1, count: 2 }], of: 4 });
    expect([made.shape, made.bytes]).toEqual([[2, 2, 2], 16]);
    expect(numbersOf(made, piece)).toEqual([1, 2, 5, 6, 9, 10, 13, 14]);
  });

  test("columns are counted as before they were quantized", () => {
    const made = columnsOf(counted(2, 4), { runs: [{ first: 32, count: 32 }], of: 128 });
    expect([made.shape, numbersOf(made, piece)]).toEqual([
      [2, 1],
      [1, 5],
    ]);
  });

  test("columns come in runs", () => {
    const runs = [
      { first: 0, count: 1 },
      { first: 2, count: 2 },
    ];
    const made = columnsOf(counted(2, 5), { runs, of: 5 });
    expect([made.shape, made.bytes]).toEqual([[2, 3], 12]);
    expect(numbersOf(made, piece)).toEqual([0, 2, 3, 5, 7, 8]);
  });

  test("rows are cut out in our order, whatever the file's is", () => {
    // The file's row 0 is our row 3.
    const stored = { ...counted(4, 2), rowOrder: (row: number) => 3 - row };
    const made = orderedRuns(stored, { rows: 4, runs: [{ first: 1, count: 2 }], shape: [2, 2] });
    expect([made.shape, made.rowOrder]).toEqual([[2, 2], undefined]);
    expect(numbersOf(made, piece)).toEqual([4, 5, 2, 3]);
  });

  test("rows come in runs", () => {
    const runs = [
      { first: 3, count: 1 },
      { first: 0, count: 2 },
      { first: 2, count: 1 },
    ];
    const made = runsOf("made", counted(4, 3), { rows: 4, runs, shape: [4, 3] });
    expect(numbersOf(made, piece)).toEqual([9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
  });
});
