import { describe, expect, test } from "bun:test";
import { truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defaultModelPath } from "../../ffi/native.ts";
import { type GgufValue, openTensorData, readGguf } from "../../src/files/gguf.ts";
import { LoadError } from "../../src/files/load-error.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const folder = temporaryFolder();

// The format, written down a second time: little-endian numbers, texts behind their length.
const u8 = (value: number) => Buffer.from([value]);
const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: bigint | number) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
const text = (value: string) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const entry = (key: string, type: number, ...value: Buffer[]) =>
  Buffer.concat([text(key), u32(type), ...value]);
const [U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64] = Array(13).keys();

type TensorFields = {
  name?: string;
  dimensions?: (number | bigint)[];
  type?: number;
  offset?: number | bigint;
};

function tensor({ name = "w", dimensions = [8], type = 0, offset = 0 }: TensorFields = {}): Buffer {
  const sizes = dimensions.map(u64);
  return Buffer.concat([text(name), u32(dimensions.length), ...sizes, u32(type), u64(offset)]);
}

type Fields = {
  version?: number;
  metadata?: Buffer[];
  metadataCount?: bigint;
  tensors?: Buffer[];
  tensorCount?: bigint;
  alignment?: number;
  data?: number;
};

function gguf({
  version = 3,
  metadata = [],
  metadataCount = BigInt(metadata.length),
  tensors = [],
  tensorCount = BigInt(tensors.length),
  alignment = 32,
  data = 64,
}: Fields): Buffer {
  const start = [Buffer.from("GGUF"), u32(version), u64(tensorCount), u64(metadataCount)];
  const header = Buffer.concat([...start, ...metadata, ...tensors]);
  return Buffer.concat([
    header,
    Buffer.alloc(-header.length & (alignment - 1)),
    Buffer.alloc(data),
  ]);
}

function write(bytes: Uint8Array): string {
  const path = join(folder, "model.gguf");
  writeFileSync(path, bytes);
  return path;
}

describe("readGguf", () => {
  test("reads metadata of every type", () => {
    const metadata = [
      entry("u8", U8!, u8(200)),
      entry("i8", I8!, u8(200)),
      entry("u16", U16!, u8(1), u8(255)),
      entry("i16", I16!, u8(1), u8(255)),
      entry("u32", U32!, u32(4e9)),
      entry("i32", I32!, u32(4e9)),
      entry("f32", F32!, u32(0x3fc00000)),
      entry("f64", F64!, u64(0x3ff8000000000000n)),
      entry("bool", BOOL!, u8(1)),
      entry("text", TEXT!, text("grüße\n")),
      entry("u64", U64!, u64(2n ** 53n - 1n)),
      entry("large u64", U64!, u64(2n ** 64n - 1n)),
      entry("i64", I64!, u64(2n ** 64n - 7n)),
      entry("i32s", ARRAY!, u32(I32!), u64(2), u32(1), u32(0xffffffff)),
      entry("bools", ARRAY!, u32(BOOL!), u64(2), u8(1), u8(0)),
      entry("texts", ARRAY!, u32(TEXT!), u64(2), text("a"), text("")),
      entry("nested", ARRAY!, u32(ARRAY!), u64(1), u32(U8!), u64(2), u8(3), u8(4)),
    ];
    const read = readGguf(write(gguf({ metadata, data: 0 })));
    expect(read).toEqual({
      version: 3,
      alignment: 32,
      tensors: new Map(),
      metadata: new Map<string, GgufValue>([
        ["u8", 200],
        ["i8", -56],
        ["u16", 0xff01],
        ["i16", -255],
        ["u32", 4e9],
        ["i32", 4e9 - 2 ** 32],
        ["f32", 1.5],
        ["f64", 1.5],
        ["bool", true],
        ["text", "grüße\n"],
        ["u64", 2 ** 53 - 1],
        ["large u64", 2n ** 64n - 1n],
        ["i64", -7],
        ["i32s", Int32Array.of(1, -1)],
        ["bools", [true, false]],
        ["texts", ["a", ""]],
        ["nested", [Uint8Array.of(3, 4)]],
      ]),
    });
  });

  test.each([2, 3])(
    "places the tensors of version %d, with shapes in row-major order",
    (version) => {
      const tensors = [
        tensor({ name: "b", dimensions: [64, 3, 2], type: 2, offset: 64 }),
        tensor({ name: "a", dimensions: [9], offset: 0 }),
      ];
      const metadata = [entry("general.alignment", U32!, u32(64))];
      const data = 64 + 2 * 3 * 2 * 18;
      const path = write(gguf({ version, metadata, tensors, alignment: 64, data }));
      // 24 bytes of start, 33 of metadata, 49 and 33 of tensors; then aligned.
      expect(readGguf(path).tensors).toEqual(
        new Map([
          ["b", { name: "b", type: "Q4_0", shape: [2, 3, 64], offset: 192 + 64, bytes: 216 }],
          ["a", { name: "a", type: "F32", shape: [9], offset: 192, bytes: 36 }],
        ]),
      );
    },
  );

  test("knows the code and block of every type that the reference knows", async () => {
    const golden: Record<string, [code: number, items: number, bytes: number]> = await Bun.file(
      join(import.meta.dir, "../golden/gguf/types.json"),
    ).json();
    for (const [name, [type, items, bytes]] of Object.entries(golden)) {
      const tensors = [tensor({ dimensions: [items], type })];
      const read = readGguf(write(gguf({ tensors, data: 512 }))).tensors.get("w")!;
      expect([read.type as string, read.bytes]).toEqual([name, bytes]);
    }
  });

  test("reads only the header, and bytes past 4 GiB", () => {
    const size = 6 * 2 ** 30;
    const offset = size - 64;
    const path = write(gguf({ tensors: [tensor({ offset })] }));
    truncateSync(path, size + 128);
    const before = process.memoryUsage.rss();
    const found = readGguf(path).tensors.get("w")!;
    expect(found.offset).toBeGreaterThan(4 * 2 ** 30);
    using file = openTensorData(path);
    const bytes = new Uint8Array(found.bytes).fill(1);
    file.read(found.offset, bytes);
    expect(bytes).toEqual(new Uint8Array(32));
    expect(process.memoryUsage.rss() - before).toBeLessThan(50e6);
  });

  test("reads the default model as the reference does", async () => {
    const golden = await Bun.file(join(import.meta.dir, "../golden/gguf/smollm2.json")).json();
    const { version, metadata, tensors } = readGguf(defaultModelPath());
    const summary = [...tensors.values()].map(({ name, type, shape, offset, bytes }) => [
      name,
      `${type} ${shape.join("x")} at ${offset}, ${bytes} bytes`,
    ]);
    const digest = (value: string) => new Bun.CryptoHasher("sha256").update(value).digest("hex");
    const values = [...metadata].map(([key, value]) => {
      if (typeof value !== "object") return [key, value];
      return [
        key,
        { length: value.length, sha256: digest(JSON.stringify([...(value as Iterable<unknown>)])) },
      ];
    });
    expect(version).toBe(3);
    expect(Object.fromEntries(summary)).toEqual(golden.tensors);
    expect(Object.fromEntries(values)).toEqual(golden.metadata);
    expect(metadata.get("llama.block_count")).toBe(30);
    const types = Object.groupBy(tensors.values(), ({ type }) => type);
    const counts = [types.Q4_1?.length, types.F32?.length, types.Q8_0?.length];
    expect([tensors.size, ...counts]).toEqual([272, 210, 61, 1]);
  });
});

describe("readGguf refuses", () => {
  const huge = 2n ** 60n;
  const nested = (depth: number): Buffer =>
    depth === 0
      ? Buffer.concat([u32(U8!), u64(0)])
      : Buffer.concat([u32(ARRAY!), u64(1), nested(depth - 1)]);
  const withTensor = (fields: TensorFields) => gguf({ tensors: [tensor(fields)] });
  const meta = (type: number, ...value: Buffer[]) =>
    gguf({ metadata: [entry("key", type, ...value)] });
  const aligned = (type: number, value: Buffer) =>
    gguf({ metadata: [entry("general.alignment", type, value)] });

  const cases: [string, Buffer, RegExp][] = [
    ["another format", Buffer.from("GGML plus some bytes"), /not a GGUF file/],
    ["version 1", gguf({ version: 1 }), /expected GGUF version 2 or 3, .* found 1$/],
    ["a big-endian file", gguf({ version: 3 << 24 }), /found a big-endian file/],
    ["2^60 tensors", gguf({ tensorCount: huge }), /expected 1152921504606847000 tensors/],
    ["2^60 keys", gguf({ metadataCount: huge }), /expected 1152921504606847000 metadata entries/],
    ["2^60 bytes of text", meta(TEXT!, u64(huge)), /expected a header of 1152921504606847000/],
    ["2^60 texts", meta(ARRAY!, u32(TEXT!), u64(huge)), /expected 1152921504606847000 texts/],
    ["2^60 arrays", meta(ARRAY!, u32(ARRAY!), u64(huge)), /expected 1152921504606847000 arrays/],
    ["2^60 numbers", meta(ARRAY!, u32(U8!), u64(huge)), /expected a header of 1152921504606847000/],
    ["2^60 booleans", meta(ARRAY!, u32(BOOL!), u64(huge)), /expected a header of/],
    ["deeply nested arrays", meta(ARRAY!, nested(4)), /nested more than 4 deep/],
    ["a value of an unknown type", meta(13, u64(0)), /unknown type 13 of a metadata value/],
    [
      "a key twice",
      gguf({ metadata: [entry("k", U8!, u8(1)), entry("k", U8!, u8(2))] }),
      /"k" occurs twice/,
    ],
    ["alignment 0", aligned(U32!, u32(0)), /power of two, found 0/],
    ["alignment 24", aligned(U32!, u32(24)), /power of two, found 24/],
    ["alignment 0.5", aligned(F32!, u32(0x3f000000)), /power of two, found 0.5/],
    ["alignment as a text", aligned(TEXT!, text("32")), /to be a number, found string/],
    ["no dimensions", withTensor({ dimensions: [] }), /"w": expected 1 to 4 dimensions, found 0/],
    ["99 dimensions", withTensor({ dimensions: Array(99).fill(1) }), /dimensions, found 99/],
    ["a dimension of 0", withTensor({ dimensions: [4, 0] }), /dimensions of 1 to .*, found 0 x 4/],
    ["a dimension over int32", withTensor({ dimensions: [2 ** 31] }), /found 2147483648/],
    ["too many items", withTensor({ dimensions: Array(4).fill(2 ** 30) }), /too many/],
    ["a type that is no more", withTensor({ type: 4 }), /"w": unknown type 4/],
    [
      "rows with half a block",
      withTensor({ dimensions: [48, 2], type: 8 }),
      /multiple of 32 for Q8_0, found 48/,
    ],
    ["an unaligned offset", withTensor({ offset: 8 }), /multiple of 32, found 8/],
    [
      "a tensor past the end",
      withTensor({ offset: 64 }),
      /the download is incomplete: expected a file of 160 bytes or more, found 128; /,
    ],
    ["an offset of 2^60", withTensor({ offset: huge }), /or more, found 128/],
    ["a tensor twice", gguf({ tensors: [tensor(), tensor({ offset: 32 })] }), /"w" occurs twice/],
    [
      "tensors that overlap",
      gguf({ tensors: [tensor({ dimensions: [9] }), tensor({ name: "v", offset: 32 })] }),
      /"v": its bytes at 32 overlap the previous tensor, which ends at 36/,
    ],
  ];

  test.each(cases)("%s", (_, bytes, message) => {
    const path = write(bytes);
    const read = () => readGguf(path);
    expect(read).toThrow(LoadError);
    expect(read).toThrow(message);
  });

  test("a file cut off anywhere", () => {
    const whole = gguf({ metadata: [entry("k", TEXT!, text("v"))], tensors: [tensor()], data: 32 });
    expect(readGguf(write(whole)).tensors.size).toBe(1);
    for (let length = 0; length < whole.length; length++) {
      const path = write(whole.subarray(0, length));
      expect(() => readGguf(path)).toThrow(LoadError);
      expect(() => readGguf(path)).toThrow(
        new RegExp(`: the download is incomplete: .* found ${length}; download it again$`),
      );
    }
  });

  test("a header over 100 MB, before it is read", () => {
    const path = write(meta(TEXT!, u64(200e6)));
    truncateSync(path, 2 ** 30);
    const before = process.memoryUsage.rss();
    expect(() => readGguf(path)).toThrow(/the limit is 100000000/);
    expect(process.memoryUsage.rss() - before).toBeLessThan(50e6);
  });

  test("a folder, and a file that is not there", () => {
    expect(() => readGguf(folder)).toThrow(new LoadError(`${folder}: not a file`));
    const missing = join(folder, "missing");
    expect(() => readGguf(missing)).toThrow(new LoadError(`${missing}: cannot be read (ENOENT)`));
  });
});

test("reading past the end of a file is a LoadError", () => {
  using file = openTensorData(write(Buffer.alloc(10)));
  expect(() => file.read(4, new Uint8Array(8))).toThrow(/expected 12 bytes or more, found 10/);
});

test("an error stays on one short line, whatever the name of the tensor", () => {
  const name = "x\n".repeat(1000);
  const path = write(gguf({ tensors: [tensor({ name, type: 4 })] }));
  expect(() => readGguf(path)).toThrow(/^[^\n]{1,400}$/);
});
