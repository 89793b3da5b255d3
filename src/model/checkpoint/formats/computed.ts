// Makes tensors that are computed row by row as they are read, from a file's tensors in another layout. Buffers are
// reused for every piece, because garbage that is not collected yet occupies memory too.
import { dequantize } from "../../../files/gguf-quants.ts";
import { LoadError } from "../../../files/load-error.ts";
import type { StoredTensor } from "../stored/tensor.ts";

/** Maximum bytes computed at a time. */
const PIECE_BYTES = 2 ** 20;

/** Bytes of a matrix that are read at a time when it is read by columns. */
const BAND_BYTES = 2 ** 22;

/** A reusable buffer; each call overwrites the previous contents. */
export class Scratch {
  #buffer = new ArrayBuffer(0);

  bytes(length: number): Uint8Array<ArrayBuffer> {
    if (this.#buffer.byteLength < length) this.#buffer = new ArrayBuffer(length);
    return new Uint8Array(this.#buffer, 0, length);
  }

  numbers(length: number): Float32Array<ArrayBuffer> {
    return new Float32Array(this.bytes(4 * length).buffer, 0, length);
  }

  words(length: number): Uint32Array<ArrayBuffer> {
    return new Uint32Array(this.bytes(4 * length).buffer, 0, length);
  }
}

type Computed<T> = {
  name: string;
  shape: readonly number[];
  /** Fills `target` with `count` rows, from row `first` on. */
  fill(target: T, first: number, count: number): void;
};

export function computedNumbers({ fill, ...made }: Computed<Float32Array>): StoredTensor {
  return computed("F32", {
    ...made,
    fill: ({ buffer, byteLength }, first, count) =>
      fill(new Float32Array(buffer, 0, byteLength / 4), first, count),
  });
}

export function computedWords({ fill, ...made }: Computed<Uint32Array>): StoredTensor {
  return computed("U32", {
    ...made,
    fill: ({ buffer, byteLength }, first, count) =>
      fill(new Uint32Array(buffer, 0, byteLength / 4), first, count),
  });
}

const piece = new Scratch();

/** Makes a tensor of 4-byte elements. `fill` must not read another such tensor, because all share one buffer. */
function computed(
  format: "F32" | "U32",
  { name, shape, fill }: Computed<Uint8Array<ArrayBuffer>>,
): StoredTensor {
  const rowBytes = 4 * shape.at(-1)!;
  const rows = shape.slice(0, -1).reduce((a, b) => a * b, 1);
  const step = Math.max(1, Math.floor(PIECE_BYTES / rowBytes));
  const read = (offset: number, target: Uint8Array) => {
    for (let done = 0; done < target.length; ) {
      const first = Math.floor((offset + done) / rowBytes);
      // Bytes to skip in the first row: a read may begin and end within a row.
      const within = (offset + done) % rowBytes;
      const wanted = Math.ceil((within + target.length - done) / rowBytes);
      const count = Math.min(step, wanted);
      const made = piece.bytes(count * rowBytes);
      fill(made, first, count);
      const part = made.subarray(within, within + target.length - done);
      target.set(part, done);
      done += part.length;
    }
  };
  return { name, shape, format, bytes: rows * rowBytes, read };
}

export type Band = { readonly words: Uint32Array; readonly first: number; readonly count: number };

const bandBytes = new Scratch();
let band: (Band & { of: StoredTensor }) | undefined;

/**
 * Reads columns of a matrix of words (rows, columns), together with the columns after them that fit BAND_BYTES. The
 * word at (row, column) is words[row * count + column - first]. Keeps the last band, because reads continue with the
 * next columns.
 */
export function bandOf(stored: StoredTensor, first: number, count: number): Band {
  const isInside =
    band?.of === stored && first >= band.first && first + count <= band.first + band.count;
  if (band && isInside) return band;
  const [rows, columns] = stored.shape as [number, number];
  const width = Math.min(columns - first, Math.max(count, Math.floor(BAND_BYTES / (4 * rows))));
  const bytes = bandBytes.bytes(4 * rows * width);
  band = undefined;
  for (let row = 0; row < rows; row++) {
    const line = bytes.subarray(4 * row * width, 4 * (row + 1) * width);
    stored.read(4 * (row * columns + first), line);
  }
  band = { of: stored, first, count: width, words: new Uint32Array(bytes.buffer, 0, rows * width) };
  return band;
}

/** Reads all words of a small tensor. */
export function wordsOf(stored: StoredTensor, scratch: Scratch): Uint32Array {
  const bytes = scratch.bytes(stored.bytes);
  stored.read(0, bytes);
  return new Uint32Array(bytes.buffer, 0, stored.bytes / 4);
}

const floats = ["F32", "F16", "BF16"] as const;

/** Reads elements from `first` on into `target`, as numbers. */
export function readNumbers(
  stored: StoredTensor,
  first: number,
  target: Float32Array,
  scratch: Scratch,
): void {
  const format = floats.find((known) => known === stored.format);
  if (!format) {
    throw new LoadError(
      `${stored.name}: expected ${floats.join(", ")} numbers, found ${stored.format}`,
    );
  }
  const item = format === "F32" ? 4 : 2;
  const bytes = scratch.bytes(item * target.length);
  stored.read(item * first, bytes);
  dequantize(format, bytes, target);
}

/** Reads field `index` of a bit stream, from word `start` on, lowest bits first. */
export function fieldAt(words: Uint32Array, start: number, index: number, bits: number): number {
  const at = start + ((index * bits) >>> 5);
  const shift = (index * bits) & 31;
  const low = words[at]! >>> shift;
  const value = shift + bits > 32 ? low | (words[at + 1]! << (32 - shift)) : low;
  return value & (2 ** bits - 1);
}

/** Writes a field of a bit stream; the field's bits must be 0 before. */
export function putField(
  words: Uint32Array,
  start: number,
  index: number,
  bits: number,
  value: number,
): void {
  const at = start + ((index * bits) >>> 5);
  const shift = (index * bits) & 31;
  words[at] = words[at]! | (value << shift);
  if (shift + bits > 32) words[at + 1] = words[at + 1]! | (value >>> (32 - shift));
}

const columnsMade = new Scratch();
const columnLine = new Scratch();
const columnBytes = new Scratch();

/** Reads `count` columns of a matrix (groups, outputs), from `first` on, as rows: (count, groups). */
export function columnNumbers(stored: StoredTensor, first: number, count: number): Float32Array {
  const [groups, outputs] = stored.shape as [number, number];
  const made = columnsMade.numbers(count * groups);
  const line = columnLine.numbers(count);
  for (let group = 0; group < groups; group++) {
    readNumbers(stored, group * outputs + first, line, columnBytes);
    for (let i = 0; i < count; i++) made[i * groups + group] = line[i]!;
  }
  return made;
}
