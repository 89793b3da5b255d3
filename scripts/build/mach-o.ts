// Reads a Mach-O file for arm64 like dyld: its libraries, search paths and symbols, and whether its code signature
// matches. Cross-builds have no macOS to check with.

export type Import = {
  name: string;
  /** The library that must export it; if unset, all loaded ones are searched. */
  library?: string;
};

export type MachO = {
  /** The install name of a library. */
  id?: string;
  loads: string[];
  rpaths: string[];
  /** Minimum macOS version. */
  macos?: string;
  sections: string[];
  imports: Import[];
  exports: Set<string>;
  signature: "none" | "fits" | "does not fit";
};

/** Load commands, named as in <mach-o/loader.h>. */
const LC_SYMTAB = 0x2;
const LC_LOAD_DYLIB = 0xc;
const LC_ID_DYLIB = 0xd;
const LC_SEGMENT_64 = 0x19;
const LC_CODE_SIGNATURE = 0x1d;
const LC_BUILD_VERSION = 0x32;
const LC_LOAD_WEAK_DYLIB = 0x80000018;
const LC_RPATH = 0x8000001c;

export function readMachO(file: Buffer): MachO {
  if (file.readUInt32LE(0) !== 0xfeedfacf || file.readUInt32LE(4) !== 0x0100000c) {
    throw new Error("not a Mach-O file for arm64");
  }
  const found: MachO = {
    loads: [],
    rpaths: [],
    sections: [],
    imports: [],
    exports: new Set(),
    signature: "none",
  };
  let symbols: Buffer | undefined;
  let offset = 32;
  for (let left = file.readUInt32LE(16); left > 0; left--) {
    const command = file.subarray(offset, offset + file.readUInt32LE(offset + 4));
    offset += command.length;
    const path = () => text(command, command.readUInt32LE(8));
    const type = command.readUInt32LE(0);
    if (type === LC_LOAD_DYLIB || type === LC_LOAD_WEAK_DYLIB) found.loads.push(path());
    else if (type === LC_ID_DYLIB) found.id = path();
    else if (type === LC_RPATH) found.rpaths.push(path());
    else if (type === LC_BUILD_VERSION) found.macos = version(command.readUInt32LE(12));
    else if (type === LC_SEGMENT_64) found.sections.push(...sections(command));
    else if (type === LC_SYMTAB) symbols = command;
    else if (type === LC_CODE_SIGNATURE) {
      found.signature = signatureFits(file, command.readUInt32LE(8)) ? "fits" : "does not fit";
    }
  }
  if (symbols) readSymbols(file, symbols, found);
  return found;
}

function text(bytes: Buffer, start: number): string {
  return bytes.toString("utf8", start, bytes.indexOf(0, start));
}

function version(packed: number): string {
  return `${packed >>> 16}.${(packed >>> 8) & 0xff}`;
}

function sections(segment: Buffer): string[] {
  const names: string[] = [];
  for (let at = 72; at < segment.length; at += 80) {
    const [section, owner] = [segment.subarray(at, at + 16), segment.subarray(at + 16, at + 32)];
    names.push([owner, section].map((name) => name.toString().replace(/\0+$/, "")).join());
  }
  return names;
}

function readSymbols(file: Buffer, command: Buffer, into: MachO): void {
  const [table, count, strings] = [8, 12, 16].map((at) => command.readUInt32LE(at)) as [
    number,
    number,
    number,
  ];
  for (let at = table; at < table + count * 16; at += 16) {
    const type = file[at + 4]!;
    // Skips debugging entries and local symbols.
    if (type & 0xe0 || !(type & 0x01) || type & 0x10) continue;
    const name = text(file, strings + file.readUInt32LE(at));
    if ((type & 0x0e) !== 0) {
      into.exports.add(name);
      continue;
    }
    const library = into.loads[file[at + 7]! - 1];
    into.imports.push(library === undefined ? { name } : { name, library });
  }
}

/** Whether every page has its signed hash. */
function signatureFits(file: Buffer, start: number): boolean {
  const blob = file.subarray(start);
  const directory = codeDirectory(blob);
  if (!directory) return false;
  const [hashes, pages, limit] = [16, 28, 32].map((at) => directory.readUInt32BE(at)) as [
    number,
    number,
    number,
  ];
  const [hashBytes, hashType, pageBytes] = [directory[36]!, directory[37]!, 2 ** directory[39]!];
  // The signature covers everything before it, by SHA-256.
  if (hashType !== 2 || limit !== start || pages !== Math.ceil(limit / pageBytes)) return false;
  for (let page = 0; page < pages; page++) {
    const content = file.subarray(page * pageBytes, Math.min((page + 1) * pageBytes, limit));
    const hash = new Bun.CryptoHasher("sha256").update(content).digest();
    const signed = directory.subarray(hashes + page * hashBytes, hashes + (page + 1) * hashBytes);
    if (!hash.equals(signed)) return false;
  }
  return true;
}

function codeDirectory(blob: Buffer): Buffer | undefined {
  if (blob.readUInt32BE(0) !== 0xfade0cc0) return undefined;
  for (let i = 0; i < blob.readUInt32BE(8); i++) {
    const part = blob.subarray(blob.readUInt32BE(16 + i * 8));
    if (part.readUInt32BE(0) === 0xfade0c02) return part;
  }
  return undefined;
}
