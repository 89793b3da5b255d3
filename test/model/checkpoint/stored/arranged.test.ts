import { describe, expect, test } from "bun:test";
import {
  everySecond,
  joinedExperts,
  stacked,
} from "../../../../src/model/checkpoint/stored/arrangement.ts";
import type { StoredTensor } from "../../../../src/model/checkpoint/stored/tensor.ts";

/** A tensor whose bytes count on from `first`. */
function counted(shape: readonly number[], first: number): StoredTensor {
  const bytes = Uint8Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => first + i);
  const read = (offset: number, target: Uint8Array) => {
    expect(offset + target.length).toBeLessThanOrEqual(bytes.length);
    target.set(bytes.subarray(offset, offset + target.length));
  };
  return { name: "w", shape, format: "U8", bytes: bytes.length, read };
}

function rowsOf(bytes: readonly number[], width: number): number[][] {
  return Array.from({ length: bytes.length / width }, (_, i) =>
    bytes.slice(i * width, (i + 1) * width),
  );
}

/** All bytes, which are the same in whatever parts they are read. */
function bytesOf(stored: StoredTensor): number[] {
  const read = (from: number, to: number) => {
    const target = new Uint8Array(to - from);
    stored.read(from, target);
    return Array.from(target);
  };
  const whole = read(0, stored.bytes);
  for (let from = 0; from < stored.bytes; from++) {
    for (let to = from + 1; to <= stored.bytes; to++) {
      expect(read(from, to)).toEqual(whole.slice(from, to));
    }
  }
  return whole;
}

describe("a tensor arranged of others, read from anywhere to anywhere", () => {
  test("stacks them", () => {
    const made = stacked("s", [counted([2, 3], 0), counted([2, 3], 100)]);
    expect(made.shape).toEqual([2, 2, 3]);
    expect(rowsOf(bytesOf(made), 6)).toEqual([
      [0, 1, 2, 3, 4, 5],
      [100, 101, 102, 103, 104, 105],
    ]);
  });

  test("joins them expert by expert", () => {
    const made = joinedExperts("j", [counted([2, 2, 3], 0), counted([2, 2, 3], 100)]);
    expect([made.name, made.shape]).toEqual(["j", [2, 4, 3]]);
    expect(rowsOf(bytesOf(made), 6)).toEqual([
      [0, 1, 2, 3, 4, 5],
      [100, 101, 102, 103, 104, 105],
      [6, 7, 8, 9, 10, 11],
      [106, 107, 108, 109, 110, 111],
    ]);
  });

  test("takes every second row", () => {
    const source = counted([2, 4, 3], 0);
    const made = everySecond("e", source, 1, 1);
    expect(made.shape).toEqual([2, 2, 3]);
    expect(rowsOf(bytesOf(made), 3)).toEqual([
      [3, 4, 5],
      [9, 10, 11],
      [15, 16, 17],
      [21, 22, 23],
    ]);
    expect(bytesOf(everySecond("e", source, 1, 0)).slice(0, 6)).toEqual([0, 1, 2, 6, 7, 8]);
  });
});
