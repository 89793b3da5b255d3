// Tensors that a file holds in pieces, or in another order than MLX computes with, as the tensors that
// we ask for. Nothing is copied before it is read.
import type { StoredTensor } from "./checkpoint.ts";

/** What is read at a time to pick rows from it. */
const PIECE_BYTES = 2 ** 20;

/** Tensors of one shape as one with an axis more. */
export function stacked(name: string, parts: readonly StoredTensor[]): StoredTensor {
  const { shape, format, bytes } = parts[0]!;
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const within = (offset + done) % bytes;
      const length = Math.min(bytes - within, target.length - done);
      const part = parts[Math.floor((offset + done) / bytes)]!;
      part.read(within, target.subarray(done, done + length));
      done += length;
    }
  };
  return { name, shape: [parts.length, ...shape], format, bytes: bytes * parts.length, read };
}

/** Matrices of one format below each other. */
export function joined(name: string, parts: readonly StoredTensor[]): StoredTensor {
  const [first] = parts as [StoredTensor];
  const rows = parts.map(({ shape }) => shape[0]!);
  const begins = starts(rows);
  const offsets = starts(parts.map(({ bytes }) => bytes));
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const at = offset + done;
      const index = offsets.findLastIndex((begin) => begin <= at);
      const within = at - offsets[index]!;
      const length = Math.min(parts[index]!.bytes - within, target.length - done);
      parts[index]!.read(within, target.subarray(done, done + length));
      done += length;
    }
  };
  const rowOrder = (row: number) => {
    const index = begins.findLastIndex((begin) => begin <= row);
    const within = row - begins[index]!;
    return begins[index]! + (parts[index]!.rowOrder?.(within) ?? within);
  };
  return {
    ...first,
    name,
    shape: [rows.reduce((a, b) => a + b), ...first.shape.slice(1)],
    bytes: parts.reduce((sum, { bytes }) => sum + bytes, 0),
    read,
    rowOrder: parts.some((part) => part.rowOrder) ? rowOrder : undefined,
  };
}

function starts(sizes: readonly number[]): number[] {
  let at = 0;
  return sizes.map((size) => {
    at += size;
    return at - size;
  });
}

/** Every second one along an axis, from `first` on. */
export function everySecond(
  name: string,
  stored: StoredTensor,
  axis: number,
  first: 0 | 1,
): StoredTensor {
  const shape = stored.shape.map((size, at) => (at === axis ? size / 2 : size));
  const count = stored.shape.slice(0, axis + 1).reduce((a, b) => a * b);
  const unit = stored.bytes / count;
  const read = (offset: number, target: Uint8Array) => {
    const step = Math.max(1, Math.floor(PIECE_BYTES / (2 * unit))) * unit;
    // Readers ask for whole units.
    for (let done = 0; done < target.length; done += step) {
      const piece = new Uint8Array(2 * Math.min(step, target.length - done));
      stored.read(2 * (offset + done), piece);
      for (let at = 0; 2 * at < piece.length; at += unit) {
        const from = 2 * at + first * unit;
        target.set(piece.subarray(from, from + unit), done + at);
      }
    }
  };
  return { ...stored, name, shape, bytes: stored.bytes / 2, read };
}

/** Some rows of a tensor, run after run. Its first axes make so many rows; those that are left have this shape. */
export function runsOf(
  name: string,
  stored: StoredTensor,
  { rows, runs, shape }: { rows: number; runs: readonly RowRun[]; shape: readonly number[] },
): StoredTensor {
  const unit = stored.bytes / rows;
  const begins = starts(runs.map(({ count }) => count * unit));
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const at = offset + done;
      const index = begins.findLastIndex((begin) => begin <= at);
      const { first, count } = runs[index]!;
      const within = at - begins[index]!;
      const length = Math.min(count * unit - within, target.length - done);
      stored.read(first * unit + within, target.subarray(done, done + length));
      done += length;
    }
  };
  const bytes = runs.reduce((sum, { count }) => sum + count * unit, 0);
  return { ...stored, name, shape, bytes, read };
}

export type RowRun = { first: number; count: number };

/** Bytes in blocks of 16, (..., blocks, 16), as words: (..., blocks * 4). */
export function asWords(name: string, stored: StoredTensor): StoredTensor {
  const blocks = stored.shape.at(-2)!;
  return { ...stored, name, shape: [...stored.shape.slice(0, -2), blocks * 4], format: "U32" };
}
