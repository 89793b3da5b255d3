// Mach-O files of a few hundred bytes, laid out as <mach-o/loader.h> says.
import { expect, test } from "bun:test";
import { readMachO } from "../../../scripts/build/mach-o.ts";

const PAGE_BITS = 8;

function bytes(length: number, fields: Record<number, number>): Buffer {
  const buffer = Buffer.alloc(length);
  for (const [at, value] of Object.entries(fields)) buffer.writeUInt32LE(value, Number(at));
  return buffer;
}

function command(type: number, body: Buffer): Buffer {
  return Buffer.concat([bytes(8, { 0: type, 4: 8 + body.length }), body]);
}

/** A command with a name at its end, `offset` bytes from its start. */
function named(type: number, offset: number, name: string): Buffer {
  const body = Buffer.alloc(Math.ceil((offset - 8 + name.length + 1) / 8) * 8);
  body.writeUInt32LE(offset, 0);
  body.write(name, offset - 8);
  return command(type, body);
}

function segment(owner: string, section: string): Buffer {
  const body = Buffer.alloc(72 - 8 + 80);
  body.write(owner, 0);
  body.writeUInt32LE(1, 56);
  body.write(section, 64);
  body.write(owner, 80);
  return command(0x19, body);
}

type Symbol = { name: string; type: number; library: number };

function symbolTable(symbols: Symbol[]): { table: Buffer; strings: Buffer } {
  const names = symbols.map(({ name }) => `${name}\0`);
  const table = symbols.map(({ type, library }, i) => {
    const entry = bytes(16, { 0: 1 + names.slice(0, i).join("").length });
    entry[4] = type;
    entry[7] = library;
    return entry;
  });
  return { table: Buffer.concat(table), strings: Buffer.from(`\0${names.join("")}`) };
}

/** The signature of all that comes before it. */
function signature(signed: Buffer): Buffer {
  const hashes: Buffer[] = [];
  for (let at = 0; at < signed.length; at += 1 << PAGE_BITS) {
    const page = signed.subarray(at, at + (1 << PAGE_BITS));
    hashes.push(new Bun.CryptoHasher("sha256").update(page).digest());
  }
  const directory = Buffer.alloc(44);
  const fields = { 0: 0xfade0c02, 16: 44, 28: hashes.length, 32: signed.length };
  for (const [at, value] of Object.entries(fields)) directory.writeUInt32BE(value, Number(at));
  directory.set([32, 2, 0, PAGE_BITS], 36);
  const head = Buffer.alloc(20);
  head.writeUInt32BE(0xfade0cc0, 0);
  head.writeUInt32BE(1, 8);
  head.writeUInt32BE(20, 16);
  return Buffer.concat([head, directory, ...hashes]);
}

function library({ signed = true } = {}): Buffer {
  const { table, strings } = symbolTable([
    { name: "_mlx_add", type: 0x0f, library: 0 },
    { name: "_hidden", type: 0x1f, library: 0 },
    { name: "_local", type: 0x0e, library: 0 },
    { name: "_debug", type: 0x64, library: 0 },
    { name: "_add", type: 0x01, library: 2 },
    { name: "_looked_up", type: 0x01, library: 0xfe },
  ]);
  const commands = (end: number) => [
    segment("__TEXT", "__text"),
    named(0xd, 24, "@rpath/libmlxc.dylib"),
    named(0xc, 24, "/usr/lib/libSystem.B.dylib"),
    named(0x80000018, 24, "@rpath/libmlx.dylib"),
    named(0x8000001c, 12, "@loader_path"),
    command(0x32, bytes(16, { 0: 1, 4: 0x000e0200 })),
    command(0x2, bytes(16, { 0: end, 4: 6, 8: end + table.length, 12: strings.length })),
    ...(signed ? [command(0x1d, bytes(8, { 0: end + table.length + strings.length }))] : []),
  ];
  const length = 32 + Buffer.concat(commands(0)).length;
  const body = Buffer.concat(commands(length));
  const sizes = { 16: commands(0).length, 20: body.length };
  const head = bytes(32, { 0: 0xfeedfacf, 4: 0x0100000c, 12: 6, ...sizes });
  const file = Buffer.concat([head, body, table, strings]);
  return signed ? Buffer.concat([file, signature(file)]) : file;
}

test("a file is read as dyld would read it", () => {
  expect(readMachO(library())).toEqual({
    id: "@rpath/libmlxc.dylib",
    loads: ["/usr/lib/libSystem.B.dylib", "@rpath/libmlx.dylib"],
    rpaths: ["@loader_path"],
    macos: "14.2",
    sections: ["__TEXT,__text"],
    imports: [{ name: "_add", library: "@rpath/libmlx.dylib" }, { name: "_looked_up" }],
    exports: new Set(["_mlx_add"]),
    signature: "fits",
  });
});

test("a byte changed after signing is noticed, on the first page and on the last", () => {
  const whole = library();
  const signed = library({ signed: false }).length;
  for (const at of [12, signed]) {
    const changed = Buffer.from(whole);
    changed[at]! ^= 0x80;
    expect(readMachO(changed).signature).toBe("does not fit");
  }
});

test("a signature that covers only a part does not fit", () => {
  const file = library();
  const at = file.indexOf(Buffer.from([0xfa, 0xde, 0x0c, 0x02]));
  file.writeUInt32BE(256, at + 32);
  file.writeUInt32BE(1, at + 28);
  expect(readMachO(file).signature).toBe("does not fit");
});

test("a file without a signature has none", () => {
  expect(readMachO(library({ signed: false })).signature).toBe("none");
});

test("a file of another kind is refused", () => {
  expect(() => readMachO(Buffer.alloc(64))).toThrow("not a Mach-O file for arm64");
});
