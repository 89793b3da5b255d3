// Assembles or reorders tensors. Nothing is copied before it is read.
import type { StoredTensor } from "./tensor.ts";

/** Bytes read at a time by `everySecond`, which keeps half of them. */
const PIECE_BYTES = 2 ** 20;

/** Stacks tensors of one shape along a new first axis. */
export function stacked(name: string, parts: readonly StoredTensor[]): StoredTensor {
  const shape = [parts.length, ...parts[0]!.shape];
  return inTurn(name, parts, shape, parts[0]!.bytes);
}

/** Concatenates matrices (E, out, in) of one format along the outputs, per expert. */
export function joinedExperts(name: string, parts: readonly StoredTensor[]): StoredTensor {
  const [experts, outputs, ...rest] = parts[0]!.shape as [number, number, ...number[]];
  const shape = [experts, parts.length * outputs, ...rest];
  return inTurn(name, parts, shape, parts[0]!.bytes / experts);
}

/** Makes a tensor that takes `run` bytes from each part in turn. */
function inTurn(
  name: string,
  parts: readonly StoredTensor[],
  shape: readonly number[],
  run: number,
): StoredTensor {
  const { format, bytes } = parts[0]!;
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const index = Math.floor((offset + done) / run);
      const within = (offset + done) % run;
      const length = Math.min(run - within, target.length - done);
      const before = Math.floor(index / parts.length) * run;
      parts[index % parts.length]!.read(before + within, target.subarray(done, done + length));
      done += length;
    }
  };
  return { name, shape, format, bytes: bytes * parts.length, read };
}

/** Concatenates matrices of one format along the rows. */
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

/** Takes every second element along an axis, from element `first` on. */
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
    const step = Math.max(1, Math.floor(PIECE_BYTES / (2 * unit)));
    const end = offset + target.length;
    for (let row = Math.floor(offset / unit); row * unit < end; row += step) {
      const rows = Math.min(step, Math.ceil(end / unit) - row);
      const piece = new Uint8Array(2 * rows * unit);
      stored.read(2 * row * unit, piece);
      for (let i = 0; i < rows; i++) {
        // Copies only the requested bytes of this row: a read may begin and end within a row.
        const at = (row + i) * unit;
        const [from, to] = [Math.max(at, offset), Math.min(at + unit, end)];
        const source = (2 * i + first) * unit - at;
        target.set(piece.subarray(source + from, source + to), from - offset);
      }
    }
  };
  return { ...stored, name, shape, bytes: stored.bytes / 2, read };
}

/**
 * Concatenates runs of rows of `stored`. `rows` is its number of rows, counted over all leading axes; `shape` is the
 * result's shape.
 */
export function runsOf(
  name: string,
  stored: StoredTensor,
  { rows, runs, shape }: { rows: number; runs: readonly RowRun[]; shape: readonly number[] },
): StoredTensor {
  const unit = stored.bytes / rows;
  const begins = starts(runs.map(({ count }) => count * unit));
  const read = (offset: number, target: Uint8Array) => {
    let index = begins.findLastIndex((begin) => begin <= offset);
    for (let done = 0; done < target.length; index++) {
      const { first, count } = runs[index]!;
      const within = offset + done - begins[index]!;
      const length = Math.min(count * unit - within, target.length - done);
      stored.read(first * unit + within, target.subarray(done, done + length));
      done += length;
    }
  };
  const bytes = runs.reduce((sum, { count }) => sum + count * unit, 0);
  return { ...stored, name, shape, bytes, read };
}

/** Concatenates runs of rows, numbered in our order, from a file that may store rows in another order. */
export function orderedRuns(
  stored: StoredTensor,
  { rows, runs, shape }: { rows: number; runs: readonly RowRun[]; shape: readonly number[] },
): StoredTensor {
  const { rowOrder, name } = stored;
  if (!rowOrder) return runsOf(name, stored, { rows, runs, shape });
  const places = new Int32Array(rows);
  for (let row = 0; row < rows; row++) places[rowOrder(row)] = row;
  const single = runs.flatMap(({ first, count }) =>
    Array.from(places.subarray(first, first + count), (row) => ({ first: row, count: 1 })),
  );
  return { ...runsOf(name, stored, { rows, runs: single, shape }), rowOrder: undefined };
}

/** Concatenates runs of columns of each row. Runs count weights, not packed words; `of`: weights per row. */
export function columnsOf(
  stored: StoredTensor,
  { runs, of }: { runs: readonly RowRun[]; of: number },
): StoredTensor {
  const { shape, bytes } = stored;
  const columns = shape.at(-1)!;
  const rows = shape.reduce((a, b) => a * b, 1) / columns;
  const rowBytes = bytes / rows;
  const bytesOf = (count: number) => (count * rowBytes) / of;
  const begins = starts(runs.map(({ count }) => bytesOf(count)));
  const count = runs.reduce((sum, run) => sum + run.count, 0);
  const length = bytesOf(count);
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const [row, within] = [Math.floor((offset + done) / length), (offset + done) % length];
      const index = begins.findLastIndex((begin) => begin <= within);
      const [run, skipped] = [runs[index]!, within - begins[index]!];
      const some = Math.min(bytesOf(run.count) - skipped, target.length - done);
      const from = row * rowBytes + bytesOf(run.first) + skipped;
      stored.read(from, target.subarray(done, done + some));
      done += some;
    }
  };
  return {
    ...stored,
    shape: [...shape.slice(0, -1), (columns * count) / of],
    bytes: rows * length,
    read,
  };
}

/** Returns runs of columns whose input is in the run (first, count). `order` lists the input of each column. */
export function columnsThatTake(order: Uint32Array, { first, count }: RowRun): RowRun[] {
  const runs: RowRun[] = [];
  for (const [column, input] of order.entries()) {
    if (input < first || input >= first + count) continue;
    const last = runs.at(-1);
    if (last && last.first + last.count === column) last.count += 1;
    else runs.push({ first: column, count: 1 });
  }
  return runs;
}

/**
 * Transposes matrices (count, rows, columns): every `step`th column of a run becomes a row, (count, picked columns,
 * rows).
 */
export function transposed(
  name: string,
  stored: StoredTensor,
  { step = 1, ...picked }: RowRun & { step?: number },
): StoredTensor {
  const [matrices, rows, columns] = stored.shape as [number, number, number];
  const unit = stored.bytes / (matrices * rows * columns);
  const lineBytes = rows * unit;
  /** Returns `count` columns, from `column` on, each as contiguous bytes. */
  const lines = (matrix: number, column: number, count: number) => {
    const made = new Uint8Array(count * lineBytes);
    const piece = new Uint8Array(((count - 1) * step + 1) * unit);
    const first = picked.first + column * step;
    for (let row = 0; row < rows; row++) {
      stored.read(((matrix * rows + row) * columns + first) * unit, piece);
      for (let i = 0; i < count * unit; i++) {
        const [line, within] = [Math.floor(i / unit), i % unit];
        made[line * lineBytes + row * unit + within] = piece[line * step * unit + within]!;
      }
    }
    return made;
  };
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const line = Math.floor((offset + done) / lineBytes);
      const within = (offset + done) % lineBytes;
      const [matrix, column] = [Math.floor(line / picked.count), line % picked.count];
      const wanted = Math.ceil((within + target.length - done) / lineBytes);
      const made = lines(matrix, column, Math.min(wanted, picked.count - column));
      const part = made.subarray(within, within + target.length - done);
      target.set(part, done);
      done += part.length;
    }
  };
  const shape = [matrices, picked.count, rows];
  return { ...stored, name, shape, bytes: (stored.bytes / columns) * picked.count, read };
}

export type RowRun = { first: number; count: number };

/** Reads blocks of 16 bytes (..., blocks, 16) as words (..., blocks * 4). */
export function asWords(name: string, stored: StoredTensor): StoredTensor {
  const blocks = stored.shape.at(-2)!;
  return { ...stored, name, shape: [...stored.shape.slice(0, -2), blocks * 4], format: "U32" };
}
