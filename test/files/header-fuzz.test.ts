// Thousands of broken headers, the same in every run. Each is refused by a LoadError, or is read as
// tensors that all lie inside the file; in bounded time and memory.
import { expect, test } from "bun:test";
import { copyFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readGguf } from "../../src/files/gguf.ts";
import { readGgufModel } from "../../src/files/gguf-parts.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { readSafetensors } from "../../src/files/safetensors.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const MAX_CASE_MS = 1000;
const MAX_EXTRA_BYTES = 50e6;

const folder = temporaryFolder();

type Placed = { readonly offset: number; readonly bytes: number };
type Read = (path: string) => { readonly tensors: ReadonlyMap<string, Placed> };

/** How many of the files were read, and how many refused; throws where one was neither. */
function readAll(read: Read, files: Iterable<Uint8Array>): { read: number; refused: number } {
  const path = join(folder, "file");
  const counts = { read: 0, refused: 0 };
  Bun.gc(true);
  const memory = process.memoryUsage.rss();
  for (const file of files) {
    writeFileSync(path, file);
    const start = performance.now();
    const tensors = tensorsOf(read, path);
    const took = performance.now() - start;
    const inside = (tensors ?? []).every(
      ({ offset, bytes }) => offset >= 0 && bytes >= 0 && offset + bytes <= file.length,
    );
    const extra = process.memoryUsage.rss() - memory;
    if (!inside || took > MAX_CASE_MS || extra > MAX_EXTRA_BYTES) {
      throw new Error(`${took} ms, ${extra} bytes, ${JSON.stringify(tensors)}: ${file.toHex()}`);
    }
    if (tensors) counts.read++;
    else counts.refused++;
  }
  return counts;
}

function tensorsOf(read: Read, path: string): Placed[] | undefined {
  try {
    return [...read(path).tensors.values()];
  } catch (error) {
    if (error instanceof LoadError && !error.message.includes("\n")) return undefined;
    throw error;
  }
}

/** xorshift32: numbers below `limit`, the same for the same seed. */
function randomFrom(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % limit;
  };
}

function* bitFlips(file: Buffer, headerBytes: number, count: number): Generator<Buffer> {
  const random = randomFrom(0x5eed);
  for (let i = 0; i < count; i++) {
    const copy = Buffer.from(file);
    for (let flips = 1 + random(4); flips > 0; flips--) {
      const at = random(headerBytes);
      copy[at] = copy[at]! ^ (1 << random(8));
    }
    yield copy;
  }
}

function* truncations(file: Buffer): Generator<Buffer> {
  for (let length = 0; length < file.length; length++) yield file.subarray(0, length);
}

const POWERS = [31n, 53n, 60n].map((bits) => 2n ** bits);
const EXTREMES = [0n, 1n, 99n, ...POWERS, 2n ** 32n - 1n, 2n ** 63n - 1n, 2n ** 64n - 1n];

/** Every field of the header, whatever it is, as each extreme: 4 and 8 bytes at every position. */
function* extremeFields(file: Buffer, headerBytes: number): Generator<Buffer> {
  for (const value of EXTREMES) {
    for (let at = 0; at < headerBytes; at++) {
      const wide = Buffer.from(file);
      wide.writeBigUInt64LE(value, at);
      yield wide;
      const narrow = Buffer.from(file);
      narrow.writeUInt32LE(Number(BigInt.asUintN(32, value)), at);
      yield narrow;
    }
  }
}

const u16 = (value: number) => Buffer.from(Uint16Array.of(value).buffer);
const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: number) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
const text = (value: string) => Buffer.concat([u64(value.length), Buffer.from(value)]);

function smallGguf(): { file: Buffer; headerBytes: number } {
  const header = Buffer.concat([
    ...[Buffer.from("GGUF"), u32(3), u64(3), u64(5)],
    ...[text("general.alignment"), u32(4), u32(32)],
    ...[text("name"), u32(8), text("small")],
    ...[text("texts"), u32(9), u32(8), u64(2), text("a"), text("b")],
    ...[text("numbers"), u32(9), u32(5), u64(3), u32(1), u32(2), u32(3)],
    ...[text("nested"), u32(9), u32(9), u64(1), u32(7), u64(1), Buffer.of(1)],
    ...[text("norm"), u32(1), u64(8), u32(0), u64(0)],
    ...[text("q"), u32(2), u64(32), u64(2), u32(8), u64(32)],
    ...[text("k"), u32(2), u64(256), u64(1), u32(12), u64(128)],
  ]);
  const data = Buffer.alloc((-header.length & 31) + 128 + 144);
  return { file: Buffer.concat([header, data]), headerBytes: header.length };
}

/** One of two parts, with tensors of an IQ and of a TQ type. */
function smallPart(part: number): { file: Buffer; headerBytes: number } {
  const header = Buffer.concat([
    ...[Buffer.from("GGUF"), u32(3), u64(2), u64(3)],
    ...[text("split.no"), u32(2), u16(part)],
    ...[text("split.count"), u32(2), u16(2)],
    ...[text("split.tensors.count"), u32(5), u32(4)],
    ...[text(`iq${part}`), u32(2), u64(256), u64(1), u32(16), u64(0)],
    ...[text(`tq${part}`), u32(2), u64(256), u64(1), u32(34), u64(96)],
  ]);
  const data = Buffer.alloc((-header.length & 31) + 96 + 54);
  return { file: Buffer.concat([header, data]), headerBytes: header.length };
}

const firstPart = join(folder, "model-00001-of-00002.gguf");

/** Reads two parts, of which the file is one. */
function withOther(part: number): Read {
  const paths = [firstPart, join(folder, "model-00002-of-00002.gguf")] as const;
  writeFileSync(paths[1 - part]!, smallPart(1 - part).file);
  return (path) => {
    copyFileSync(path, paths[part]!);
    const { tensors } = readGgufModel(firstPart);
    return { tensors: new Map([...tensors].filter(([, { file }]) => file === paths[part])) };
  };
}

function safetensors(header: string): Buffer {
  const prefix = Buffer.from(BigUint64Array.of(BigInt(header.length)).buffer);
  return Buffer.concat([prefix, Buffer.from(header), Buffer.alloc(64)]);
}

const smallHeader = JSON.stringify({
  __metadata__: { format: "pt" },
  norm: { dtype: "F32", shape: [4], data_offsets: [0, 16] },
  w: { dtype: "BF16", shape: [2, 8], data_offsets: [16, 48] },
  q: { dtype: "U8", shape: [1, 4, 4], data_offsets: [48, 64] },
});

/** Every value of the header in turn as something else. */
function* otherValues(header: string): Generator<Buffer> {
  const extremes = EXTREMES.map(String);
  const others = ["-1", "0.5", "1e999", "null", "true", '"x"', "[]", "{}", "[".repeat(10_000)];
  for (const kind of [/\d+/g, /"\w+"/g, /\[[^\]]*\]/g, /\{[^{}]*\}/g]) {
    for (const { index, 0: value } of header.matchAll(kind)) {
      for (const other of [...extremes, ...others]) {
        yield safetensors(header.slice(0, index) + other + header.slice(index + value.length));
      }
    }
  }
}

test("the small files are read", () => {
  expect(readAll(readGguf, [smallGguf().file])).toEqual({ read: 1, refused: 0 });
  expect(readAll(readSafetensors, [safetensors(smallHeader)])).toEqual({ read: 1, refused: 0 });
});

test("a GGUF header with flipped bits is refused or harmless", () => {
  const { file, headerBytes } = smallGguf();
  const counts = readAll(readGguf, bitFlips(file, headerBytes, 1000));
  expect(counts.refused).toBeGreaterThan(500);
});

test("a GGUF header with an extreme number anywhere is refused or harmless", () => {
  const { file, headerBytes } = smallGguf();
  const counts = readAll(readGguf, extremeFields(file, headerBytes));
  expect(counts.refused).toBeGreaterThan(2000);
});

test("a GGUF file cut off anywhere is refused", () => {
  expect(readAll(readGguf, truncations(smallGguf().file)).read).toBe(0);
});

test("a safetensors header with flipped bits is refused or harmless", () => {
  const file = safetensors(smallHeader);
  const counts = readAll(readSafetensors, bitFlips(file, 8 + smallHeader.length, 1000));
  expect(counts.refused).toBeGreaterThan(500);
});

test("a safetensors header of an extreme length is refused", () => {
  const files = EXTREMES.map((length) => {
    const file = safetensors(smallHeader);
    file.writeBigUInt64LE(length);
    return file;
  });
  expect(readAll(readSafetensors, files).read).toBe(0);
});

test("a safetensors header with another value anywhere is refused or harmless", () => {
  const counts = readAll(readSafetensors, otherValues(smallHeader));
  expect(counts.refused).toBeGreaterThan(300);
});

test("a safetensors file cut off anywhere is refused", () => {
  expect(readAll(readSafetensors, truncations(safetensors(smallHeader))).read).toBe(0);
});

test.each([0, 1])("part %i of a GGUF file that is broken is refused or harmless", (part) => {
  const { file, headerBytes } = smallPart(part);
  expect(readAll(withOther(part), [file])).toEqual({ read: 1, refused: 0 });
  const flipped = readAll(withOther(part), bitFlips(file, headerBytes, 300));
  expect(flipped.refused).toBeGreaterThan(200);
  const extreme = readAll(withOther(part), extremeFields(file, headerBytes));
  expect(extreme.refused).toBeGreaterThan(2000);
  expect(readAll(withOther(part), truncations(file)).read).toBe(0);
});
