import { describe, expect, test } from "bun:test";
import { mkdirSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { LoadError } from "../../src/files/load-error.ts";
import { readSafetensors, readSafetensorsIndex } from "../../src/files/safetensors.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const root = temporaryFolder();

function safetensors(header: unknown, data: number, length?: bigint): Buffer {
  const text = Buffer.from(typeof header === "string" ? header : JSON.stringify(header));
  const prefix = BigUint64Array.of(length ?? BigInt(text.length));
  return Buffer.concat([Buffer.from(prefix.buffer), text, Buffer.alloc(data)]);
}

function write(bytes: Uint8Array): string {
  const path = join(root, "one.safetensors");
  writeFileSync(path, bytes);
  return path;
}

/** An entry of `items` bytes that starts at `begin`. */
const bytesAt = (begin: number, items: number) => {
  return { dtype: "U8", shape: [items], data_offsets: [begin, begin + items] };
};

describe("readSafetensors", () => {
  test("reads tensors in the order of the file, and metadata", () => {
    const header = {
      __metadata__: { format: "mlx" },
      "b.weight": { dtype: "BF16", shape: [2, 3], data_offsets: [4, 16] },
      scalar: { dtype: "F32", shape: [], data_offsets: [0, 4] },
      empty: { dtype: "I64", shape: [0, 5], data_offsets: [4, 4] },
    };
    const start = 8 + JSON.stringify(header).length;
    expect(readSafetensors(write(safetensors(header, 16)))).toEqual({
      metadata: new Map([["format", "mlx"]]),
      tensors: new Map([
        ["scalar", { name: "scalar", dtype: "F32", shape: [], offset: start, bytes: 4 }],
        ["empty", { name: "empty", dtype: "I64", shape: [0, 5], offset: start + 4, bytes: 0 }],
        [
          "b.weight",
          { name: "b.weight", dtype: "BF16", shape: [2, 3], offset: start + 4, bytes: 12 },
        ],
      ]),
    });
  });

  test("reads a header that is padded, and names with quotes, colons and escapes", () => {
    const name = 'a:"b\\":"\\';
    const path = write(safetensors(`${JSON.stringify({ [name]: bytesAt(0, 3) })}   `, 3));
    expect([...readSafetensors(path).tensors.keys()]).toEqual([name]);
    const proto = write(safetensors(`{"__proto__":${JSON.stringify(bytesAt(0, 3))}}`, 3));
    expect([...readSafetensors(proto).tensors.keys()]).toEqual(["__proto__"]);
  });

  const w = (fields: object, data = 4) => safetensors({ w: { ...bytesAt(0, 4), ...fields } }, data);
  const entry = JSON.stringify(bytesAt(0, 4));
  const two = (at: number) => safetensors({ v: bytesAt(0, 4), w: bytesAt(at, 4) }, at + 4);
  const big = 2 ** 31 - 1;
  const refused: [string, Buffer, RegExp][] = [
    ["a file of 7 bytes", Buffer.alloc(7), /not a safetensors file/],
    [
      "a header of 2^63 bytes",
      safetensors({}, 0, 2n ** 63n),
      /at most 2 bytes, found 9223372036854776000/,
    ],
    ["a header longer than the file", safetensors({}, 5, 8n), /at most 7 bytes, found 8/],
    ["a header that is no JSON", safetensors("{", 0), /expected its header to be a JSON object/],
    ["a header that is a list", safetensors([], 0), /expected its header to be a JSON object/],
    [
      "a name that is not UTF-8",
      safetensors({ ÿ: bytesAt(0, 4) }, 4).fill(0xff, 10, 12),
      /to be a JSON object/,
    ],
    [
      "a tensor twice",
      safetensors(`{"w":${entry},"w":${entry}}`, 4),
      /key of the header occurs twice/,
    ],
    ["a field twice", safetensors(`{"w":{"dtype":"F32",${entry.slice(1)}}`, 4), /occurs twice/],
    ["a number as metadata", safetensors({ __metadata__: { a: 1 } }, 0), /to contain only strings/],
    ["metadata that is a list", safetensors({ __metadata__: ["a"] }, 0), /to contain only strings/],
    ["an entry that is no object", safetensors({ w: [1] }, 0), /"w": expected an object/],
    ["an entry with another field", w({ x: 1 }), /shape and data_offsets, found "x"/],
    ["an unknown dtype", w({ dtype: "F7" }), /"w": unknown dtype "F7"/],
    ["a dtype that every object has", w({ dtype: "toString" }), /unknown dtype "toString"/],
    ["a dtype that is no text", w({ dtype: { toString: 1 } }), /unknown dtype object/],
    ["a shape that is no list", w({ shape: 4 }), /expected shape to be a list/],
    ["a negative dimension", w({ shape: [-2, -2] }), /expected shape to be a list/],
    ["half a dimension", w({ shape: [0.5, 8] }), /expected shape to be a list/],
    ["9 dimensions", w({ shape: [4, 1, 1, 1, 1, 1, 1, 1, 1] }), /list of up to 8 sizes/],
    [
      "a dimension over int32",
      w({ shape: [2 ** 31, 0], data_offsets: [0, 0] }, 0),
      /2147483648 x 0 is too large/,
    ],
    ["an overflow before its 0", w({ shape: [big, big, 0], data_offsets: [0, 0] }, 0), /too large/],
    ["one offset", w({ data_offsets: [4] }), /expected two data_offsets/],
    ["three offsets", w({ data_offsets: [0, 4, 4] }), /expected two data_offsets/],
    ["offsets that go back", w({ data_offsets: [4, 0] }), /expected 4 bytes for U8 4, found -4/],
    ["fewer bytes than the shape", w({ dtype: "F32" }), /expected 16 bytes for F32 4, found 4/],
    ["a tensor past the end", w({}, 3), /expected a file of \d+ bytes, found \d+/],
    ["bytes that belong to no tensor", w({}, 5), /expected a file of \d+ bytes, found \d+/],
    ["overlapping tensors", two(2), /"w": expected its bytes at/],
    ["a hole between tensors", two(5), /"w": expected its bytes at/],
    ["a hole before the first", safetensors({ v: bytesAt(1, 4) }, 5), /"v": expected its bytes at/],
  ];

  test.each(refused)("refuses %s", (_, bytes, message) => {
    const path = write(bytes);
    const read = () => readSafetensors(path);
    expect(read).toThrow(LoadError);
    expect(read).toThrow(message);
  });

  test("refuses a file cut off anywhere", () => {
    const whole = safetensors({ w: bytesAt(0, 4) }, 4);
    expect(readSafetensors(write(whole)).tensors.size).toBe(1);
    for (let length = 0; length < whole.length; length++) {
      const path = write(whole.subarray(0, length));
      expect(() => readSafetensors(path)).toThrow(LoadError);
    }
  });

  test("refuses a header over 100 MB, before it is read", () => {
    const path = write(safetensors({}, 0, 100_000_001n));
    truncateSync(path, 2 ** 30);
    const before = process.memoryUsage.rss();
    expect(() => readSafetensors(path)).toThrow(/at most 100000000 bytes, found 100000001/);
    expect(process.memoryUsage.rss() - before).toBeLessThan(50e6);
  });

  test("refuses JSON that is nested a million deep", () => {
    const deep = "[".repeat(1e6) + "]".repeat(1e6);
    for (const field of ["dtype", "shape", "data_offsets"]) {
      const path = write(safetensors(`{"w":{"${field}":${deep}}}`, 0));
      expect(() => readSafetensors(path)).toThrow(LoadError);
    }
  });
});

describe("readSafetensorsIndex", () => {
  let folders = 0;

  /** A folder with these files: bytes, or an object as JSON. */
  function folderOf(files: Record<string, Uint8Array | object>): string {
    const folder = join(root, String(folders++));
    mkdirSync(folder);
    for (const [name, content] of Object.entries(files)) {
      const bytes = content instanceof Uint8Array ? content : JSON.stringify(content);
      writeFileSync(join(folder, name), bytes);
    }
    return folder;
  }

  const index = (weightMap: unknown) => ({
    "model.safetensors.index.json": { metadata: { total_size: 8 }, weight_map: weightMap },
  });
  const shard = (...names: string[]) =>
    safetensors(
      Object.fromEntries(names.map((name, i) => [name, bytesAt(4 * i, 4)])),
      4 * names.length,
    );

  test("reads a single file", () => {
    const folder = folderOf({ "model.safetensors": shard("a", "b") });
    const file = join(folder, "model.safetensors");
    const read = readSafetensorsIndex(folder);
    expect(read.files).toEqual([file]);
    expect([...read.tensors].map(([name, tensor]) => [name, tensor.file])).toEqual([
      ["a", file],
      ["b", file],
    ]);
  });

  test("finds each tensor in the shard that the index names", () => {
    const folder = folderOf({
      ...index({ b: "2.safetensors", a: "1.safetensors" }),
      "1.safetensors": shard("a", "b"),
      "2.safetensors": shard("x", "b"),
    });
    const [first, second] = [join(folder, "1.safetensors"), join(folder, "2.safetensors")];
    const read = readSafetensorsIndex(folder);
    expect(read.files).toEqual([second, first]);
    const { tensors } = readSafetensors(second);
    expect(read.tensors.get("b")).toEqual({ ...tensors.get("b")!, file: second });
    expect(read.tensors.get("a")!.file).toBe(first);
    expect(read.tensors.size).toBe(2);
  });

  const noFileName = /expected a .safetensors file name/;
  const refused: [string, Record<string, Uint8Array | object>, RegExp][] = [
    [
      "an empty folder",
      {},
      /expected model.safetensors or model.safetensors.index.json, found neither/,
    ],
    ["an index without a map", index([]), /expected weight_map to be an object/],
    [
      "an index that is no JSON",
      { "model.safetensors.index.json": Buffer.from("{") },
      /to be a JSON object/,
    ],
    [
      "../ in the index",
      index({ a: "../one.safetensors" }),
      /name for "a", found "..\/one.safetensors"/,
    ],
    ["an absolute path", index({ a: join(root, "1.safetensors") }), noFileName],
    ["a path into a subfolder", index({ a: "sub/one.safetensors" }), noFileName],
    ["a backslash", index({ a: "..\\one.safetensors" }), noFileName],
    ["a line break", index({ a: "one\n.safetensors" }), noFileName],
    ["another kind of file", index({ a: "config.json" }), noFileName],
    ["a number for a name", index({ a: 1 }), /file name for "a", found number/],
    [
      "a shard that is missing",
      index({ a: "1.safetensors" }),
      /it names "1.safetensors", which does not exist/,
    ],
    [
      "a tensor that is not in its shard",
      { ...index({ a: "1.safetensors" }), "1.safetensors": shard("b") },
      /expected "a" in "1.safetensors", found none/,
    ],
    [
      "a shard with a broken header",
      { ...index({ a: "1.safetensors" }), "1.safetensors": Buffer.alloc(9) },
      /1.safetensors: expected its header/,
    ],
  ];

  test.each(refused)("refuses %s", (_, files, message) => {
    writeFileSync(join(root, "one.safetensors"), shard("a"));
    const folder = folderOf(files);
    const read = () => readSafetensorsIndex(folder);
    expect(read).toThrow(LoadError);
    expect(read).toThrow(message);
  });

  test("refuses an index over 100 MB, before it is read", () => {
    const folder = folderOf(index({}));
    truncateSync(join(folder, "model.safetensors.index.json"), 100_000_001);
    expect(() => readSafetensorsIndex(folder)).toThrow(/at most 100000000 bytes, found 100000001/);
  });

  test("refuses links to outside of the folder, of every file that it reads", () => {
    const outside = folderOf({ ...index({ a: "1.safetensors" }), "1.safetensors": shard("a") });
    const link = (folder: string, name: string, to: string) => {
      symlinkSync(join(outside, to), join(folder, name));
      return folder;
    };
    const folders = [
      link(folderOf({}), "model.safetensors", "1.safetensors"),
      link(folderOf(index({ a: "1.safetensors" })), "1.safetensors", "1.safetensors"),
      link(folderOf({}), "model.safetensors.index.json", "model.safetensors.index.json"),
    ];
    for (const folder of folders) {
      expect(() => readSafetensorsIndex(folder)).toThrow(/is a link to a place outside the folder/);
    }
  });

  test("follows links inside of the folder, and a link to the folder", () => {
    const folder = folderOf({ "1.safetensors": shard("a") });
    symlinkSync("1.safetensors", join(folder, "model.safetensors"));
    const link = join(root, "link");
    symlinkSync(folder, link);
    expect(readSafetensorsIndex(link).tensors.size).toBe(1);
  });

  test("follows the links of Hugging Face's cache", () => {
    const repository = folderOf({});
    const snapshot = join(repository, "snapshots", "4f1c");
    mkdirSync(snapshot, { recursive: true });
    mkdirSync(join(repository, "blobs"));
    writeFileSync(join(repository, "blobs", "9a8b"), shard("a"));
    symlinkSync("../../blobs/9a8b", join(snapshot, "model.safetensors"));
    expect(readSafetensorsIndex(snapshot).tensors.size).toBe(1);
  });
});
