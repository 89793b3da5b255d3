// Reads the header of a GGUF file (versions 2 and 3, little-endian): metadata and the positions of tensors. The file
// is untrusted: counts and lengths are checked against the remaining bytes before any allocation, and every tensor
// must lie inside the file.
import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";
import { LoadError, quoted } from "./load-error.ts";

/** Tensor types: their code in the file, and the items and bytes of a block. */
const types = {
  F32: { code: 0, items: 1, bytes: 4 },
  F16: { code: 1, items: 1, bytes: 2 },
  Q4_0: { code: 2, items: 32, bytes: 18 },
  Q4_1: { code: 3, items: 32, bytes: 20 },
  Q5_0: { code: 6, items: 32, bytes: 22 },
  Q5_1: { code: 7, items: 32, bytes: 24 },
  Q8_0: { code: 8, items: 32, bytes: 34 },
  Q8_1: { code: 9, items: 32, bytes: 40 },
  Q2_K: { code: 10, items: 256, bytes: 84 },
  Q3_K: { code: 11, items: 256, bytes: 110 },
  Q4_K: { code: 12, items: 256, bytes: 144 },
  Q5_K: { code: 13, items: 256, bytes: 176 },
  Q6_K: { code: 14, items: 256, bytes: 210 },
  Q8_K: { code: 15, items: 256, bytes: 292 },
  IQ2_XXS: { code: 16, items: 256, bytes: 66 },
  IQ2_XS: { code: 17, items: 256, bytes: 74 },
  IQ3_XXS: { code: 18, items: 256, bytes: 98 },
  IQ1_S: { code: 19, items: 256, bytes: 50 },
  IQ4_NL: { code: 20, items: 32, bytes: 18 },
  IQ3_S: { code: 21, items: 256, bytes: 110 },
  IQ2_S: { code: 22, items: 256, bytes: 82 },
  IQ4_XS: { code: 23, items: 256, bytes: 136 },
  I8: { code: 24, items: 1, bytes: 1 },
  I16: { code: 25, items: 1, bytes: 2 },
  I32: { code: 26, items: 1, bytes: 4 },
  I64: { code: 27, items: 1, bytes: 8 },
  F64: { code: 28, items: 1, bytes: 8 },
  IQ1_M: { code: 29, items: 256, bytes: 56 },
  BF16: { code: 30, items: 1, bytes: 2 },
  TQ1_0: { code: 34, items: 256, bytes: 54 },
  TQ2_0: { code: 35, items: 256, bytes: 66 },
  MXFP4: { code: 39, items: 32, bytes: 17 },
  NVFP4: { code: 40, items: 64, bytes: 36 },
  Q1_0: { code: 41, items: 128, bytes: 18 },
} as const;

export type GgufType = keyof typeof types;

export type GgufNumbers =
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array
  | Float32Array
  | Float64Array
  | BigUint64Array
  | BigInt64Array;

export type GgufArray = GgufNumbers | readonly string[] | readonly boolean[] | readonly GgufArray[];

/** A value of the metadata. A 64-bit integer is a number if that is exact, otherwise a bigint. */
export type GgufValue = number | bigint | boolean | string | GgufArray;

export type GgufTensor = {
  readonly name: string;
  readonly type: GgufType;
  /** Dimensions in row-major order: the last one is contiguous. (ggml has the reverse order.) */
  readonly shape: readonly number[];
  /** Offset from the start of the file, in bytes. */
  readonly offset: number;
  readonly bytes: number;
};

export type Gguf = {
  readonly version: number;
  readonly alignment: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly tensors: ReadonlyMap<string, GgufTensor>;
};

export type TensorData = {
  /** Size of the file in bytes. */
  readonly size: number;
  /** Reads bytes from `offset` on, until `target` is full. */
  read(offset: number, target: Uint8Array): void;
  close(): void;
  [Symbol.dispose](): void;
};

const MAGIC = 0x46554747; // "GGUF"
const FIRST_READ_BYTES = 1 << 20;
/** Maximum bytes of a header; a vocabulary of 260,000 tokens with its merges takes 20 MB. */
const MAX_HEADER_BYTES = 100_000_000;
const MAX_ARRAY_DEPTH = 4;
const MAX_DIMENSIONS = 4;
/** Maximum size of a dimension, which MLX stores as int32. */
const MAX_DIMENSION = 2 ** 31 - 1;
const DEFAULT_ALIGNMENT = 32;
/** Maximum bytes per read, since Linux reads at most 2 GiB at once. */
const MAX_READ_BYTES = 2 ** 30;

/** Minimum bytes of a header entry of each kind: with an empty name and the smallest value. */
const MIN_BYTES = { text: 8, array: 12, entry: 13, tensor: 32 };

const BOOL = 7;
const TEXT = 8;
const ARRAY = 9;
const numberTypes = new Map(
  Object.entries({
    0: Uint8Array,
    1: Int8Array,
    2: Uint16Array,
    3: Int16Array,
    4: Uint32Array,
    5: Int32Array,
    6: Float32Array,
    10: BigUint64Array,
    11: BigInt64Array,
    12: Float64Array,
  }).map(([code, type]) => [Number(code), type]),
);

const typesByCode = new Map(
  (Object.keys(types) as GgufType[]).map((type) => [types[type].code as number, type]),
);

/** Returns the number of items and of bytes in a block of the type. */
export function blockOf(type: GgufType): { readonly items: number; readonly bytes: number } {
  return types[type];
}

export function readGguf(path: string): Gguf {
  using file = openTensorData(path);
  const header = new HeaderReader(path, file);
  if (header.u32() !== MAGIC) throw new LoadError(`${path}: not a GGUF file`);
  const version = header.u32();
  if (version !== 2 && version !== 3) {
    const found = version % 2 ** 16 === 0 ? "a big-endian file" : version;
    throw new LoadError(`${path}: expected GGUF version 2 or 3, little endian, found ${found}`);
  }
  const tensorCount = header.count("tensors", MIN_BYTES.tensor);
  const entryCount = header.count("metadata entries", MIN_BYTES.entry);
  const metadata = readMetadata(header, entryCount);
  const alignment = alignmentIn(path, metadata);
  const tensors = readTensors(header, tensorCount);
  const start = Math.ceil(header.position / alignment) * alignment;
  return {
    version,
    alignment,
    metadata,
    tensors: place(path, tensors, start, alignment, file.size),
  };
}

/**
 * Opens a model file for positional reads into memory that the caller reuses. A mapping would copy less, but its pages
 * would stay resident next to the converted weights until garbage collection, and a truncated file would raise SIGBUS
 * instead of an error.
 */
export function openTensorData(path: string): TensorData {
  const fd = openFile(path);
  const close = () => closeSync(fd);
  return {
    size: fstatSync(fd).size,
    read(offset, target) {
      for (let done = 0; done < target.length; ) {
        const length = Math.min(target.length - done, MAX_READ_BYTES);
        const read = readSync(fd, target, done, length, offset + done);
        if (read === 0) {
          const end = offset + target.length;
          throw new LoadError(`${path}: expected ${end} bytes or more, found ${offset + done}`);
        }
        done += read;
      }
    },
    close,
    [Symbol.dispose]: close,
  };
}

function openFile(path: string): number {
  try {
    // Checks the kind of file first, because opening a pipe would wait for a writer.
    if (statSync(path).isFile()) return openSync(path, "r");
  } catch (error) {
    throw new LoadError(`${path}: cannot be read (${(error as NodeJS.ErrnoException).code})`);
  }
  throw new LoadError(`${path}: not a file`);
}

/** Reads the header's values in order, never past the end of the file. */
class HeaderReader {
  readonly path: string;
  readonly #file: TensorData;
  readonly #limit: number;
  #bytes = Buffer.alloc(0);
  #position = 0;

  constructor(path: string, file: TensorData) {
    this.path = path;
    this.#file = file;
    this.#limit = Math.min(file.size, MAX_HEADER_BYTES);
  }

  get position(): number {
    return this.#position;
  }

  u32(): number {
    const at = this.#take(4);
    return this.#bytes.readUInt32LE(at);
  }

  /** Reads a 64-bit integer; inexact above 2^53, which exceeds every limit anyway. */
  u64(): number {
    const low = this.u32();
    return low + this.u32() * 2 ** 32;
  }

  /** Reads the number of following entries, each of at least `minBytes`; throws if the file is too short for them. */
  count(things: string, minBytes: number): number {
    const count = this.u64();
    const left = this.#limit - this.#position;
    if (count * minBytes > left) {
      this.#refuseCut(this.#position + count * minBytes);
      throw new LoadError(
        `${this.path}: expected ${count} ${things}, found ${left} bytes of header`,
      );
    }
    return count;
  }

  text(): string {
    const length = this.u64();
    const start = this.#take(length);
    return this.#bytes.toString("utf8", start, start + length);
  }

  value(type: number): GgufValue {
    if (type === TEXT) return this.text();
    if (type === ARRAY) return this.#array(1);
    if (type === BOOL) return this.#bytesCopy(1)[0] !== 0;
    const value = this.#numbers(type, 1)[0]!;
    return typeof value === "bigint" && Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  #array(depth: number): GgufArray {
    if (depth > MAX_ARRAY_DEPTH) {
      throw new LoadError(`${this.path}: arrays nested more than ${MAX_ARRAY_DEPTH} deep`);
    }
    const type = this.u32();
    if (type === TEXT) {
      return repeat(this.count("texts", MIN_BYTES.text), () => this.text());
    }
    if (type === ARRAY) {
      return repeat(this.count("arrays", MIN_BYTES.array), () => this.#array(depth + 1));
    }
    const count = this.u64();
    if (type === BOOL) return Array.from(this.#bytesCopy(count), (byte) => byte !== 0);
    return this.#numbers(type, count);
  }

  /** Reads an array of numbers without swapping bytes: all systems that run MLX are little-endian. */
  #numbers(type: number, count: number): GgufNumbers {
    const Numbers = numberTypes.get(type);
    if (!Numbers) throw new LoadError(`${this.path}: unknown type ${type} of a metadata value`);
    return new Numbers(this.#bytesCopy(count * Numbers.BYTES_PER_ELEMENT).buffer);
  }

  #bytesCopy(length: number): Uint8Array<ArrayBuffer> {
    const start = this.#take(length);
    return new Uint8Array(this.#bytes.subarray(start, start + length));
  }

  /** Returns the offset of the next `length` bytes in the buffer, which may be reallocated. */
  #take(length: number): number {
    const start = this.#position;
    if (start + length > this.#bytes.length) this.#load(start + length);
    this.#position = start + length;
    return start;
  }

  /** Throws that the file is incomplete if `end` is within the limit of a header; otherwise returns. */
  #refuseCut(end: number): void {
    if (end <= MAX_HEADER_BYTES) throw incomplete(this.path, end, this.#file.size);
  }

  #load(end: number): void {
    if (end > this.#limit) {
      this.#refuseCut(end);
      throw new LoadError(
        `${this.path}: expected a header of ${end} bytes or more, found a file of ` +
          `${this.#file.size} (and the limit is ${MAX_HEADER_BYTES})`,
      );
    }
    const loaded = this.#bytes.length;
    const wanted = Math.max(end, 2 * loaded, FIRST_READ_BYTES);
    const bytes = Buffer.alloc(Math.min(wanted, this.#limit));
    bytes.set(this.#bytes);
    this.#file.read(loaded, bytes.subarray(loaded));
    this.#bytes = bytes;
  }
}

function incomplete(path: string, wanted: number, size: number): LoadError {
  return new LoadError(
    `${path}: the download is incomplete: expected a file of ${wanted} bytes or more, found ${size}; ` +
      "download it again",
  );
}

function readMetadata(header: HeaderReader, count: number): Map<string, GgufValue> {
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < count; i++) {
    const key = header.text();
    if (metadata.has(key)) {
      throw new LoadError(`${header.path}: metadata ${quoted(key)} occurs twice`);
    }
    metadata.set(key, header.value(header.u32()));
  }
  return metadata;
}

function alignmentIn(path: string, metadata: ReadonlyMap<string, GgufValue>): number {
  const found = metadata.get("general.alignment") ?? DEFAULT_ALIGNMENT;
  if (typeof found !== "number") {
    throw new LoadError(
      `${path}: expected general.alignment to be a number, found ${typeof found}`,
    );
  }
  if (found < 1 || found > 2 ** 31 || !Number.isInteger(Math.log2(found))) {
    throw new LoadError(`${path}: expected general.alignment to be a power of two, found ${found}`);
  }
  return found;
}

/** Reads the tensors in the order of the file; their offsets are relative to the data section. */
function readTensors(header: HeaderReader, count: number): Map<string, GgufTensor> {
  const tensors = new Map<string, GgufTensor>();
  for (let i = 0; i < count; i++) {
    const tensor = readTensor(header);
    if (tensors.has(tensor.name)) {
      throw new LoadError(`${header.path}: tensor ${quoted(tensor.name)} occurs twice`);
    }
    tensors.set(tensor.name, tensor);
  }
  return tensors;
}

function readTensor(header: HeaderReader): GgufTensor {
  const name = header.text();
  const fail = (what: string) => new LoadError(`${header.path}: tensor ${quoted(name)}: ${what}`);
  const rank = header.u32();
  if (rank < 1 || rank > MAX_DIMENSIONS) {
    throw fail(`expected 1 to ${MAX_DIMENSIONS} dimensions, found ${rank}`);
  }
  const shape = repeat(rank, () => header.u64()).reverse();
  const items = shape.reduce((product, dimension) => product * dimension, 1);
  if (!shape.every((dimension) => dimension >= 1 && dimension <= MAX_DIMENSION)) {
    throw fail(`expected dimensions of 1 to ${MAX_DIMENSION}, found ${shape.join(" x ")}`);
  }
  if (!Number.isSafeInteger(items)) throw fail(`${shape.join(" x ")} items are too many`);

  const code = header.u32();
  const type = typesByCode.get(code);
  if (!type) throw fail(`unknown type ${code}`);
  const block = blockOf(type);
  const row = shape.at(-1)!;
  if (row % block.items !== 0) {
    throw fail(`expected rows of a multiple of ${block.items} for ${type}, found ${row}`);
  }
  const bytes = (items / block.items) * block.bytes;
  return { name, type, shape, offset: header.u64(), bytes };
}

/** Checks the positions of the tensors, and returns them with offsets from the start of the file. */
function place(
  path: string,
  tensors: ReadonlyMap<string, GgufTensor>,
  start: number,
  alignment: number,
  fileSize: number,
): Map<string, GgufTensor> {
  let end = 0;
  for (const { name, offset, bytes } of [...tensors.values()].sort((a, b) => a.offset - b.offset)) {
    const fail = (what: string) => new LoadError(`${path}: tensor ${quoted(name)}: ${what}`);
    if (offset % alignment !== 0) {
      throw fail(`expected an offset that is a multiple of ${alignment}, found ${offset}`);
    }
    if (start + offset + bytes > fileSize) {
      throw incomplete(path, start + offset + bytes, fileSize);
    }
    if (offset < end)
      throw fail(`its bytes at ${offset} overlap the previous tensor, which ends at ${end}`);
    end = offset + bytes;
  }
  return new Map(
    [...tensors].map(([name, tensor]) => [name, { ...tensor, offset: start + tensor.offset }]),
  );
}

function repeat<T>(count: number, make: () => T): T[] {
  const list: T[] = [];
  for (let i = 0; i < count; i++) list.push(make());
  return list;
}
