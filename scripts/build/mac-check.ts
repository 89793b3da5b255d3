// Checks an executable for macOS and its libraries, as far as possible without a Mac.
import { MACOS_VERSION } from "../../ffi/pins.ts";
import { ownSymbols, symbols } from "../../ffi/symbols.ts";
import type { MachO } from "./mach-o.ts";

export type MacParts = { executable: MachO; libmlxc: MachO; libmlx: MachO };

/** Symbols of every libc++ that libmlx and Bun happen not to import. */
const OLD_LIBCXX = /basic_(ostream|streambuf)I/;

/** Returns the problems, one line each. */
export function macFaults(parts: MacParts): string[] {
  const { executable, libmlxc, libmlx } = parts;
  const faults: string[] = [];
  const check = (holds: boolean, fault: string) => {
    if (!holds) faults.push(fault);
  };

  for (const [name, { signature, macos, loads }] of Object.entries(parts)) {
    check(signature === "fits", `${name}: signature: ${signature}`);
    check(Number(macos) <= Number(MACOS_VERSION), `${name}: needs macOS ${macos}`);
    for (const path of loads) {
      const there = /^\/(usr\/lib|System\/Library)\//.test(path) || path === libmlx.id;
      check(there, `${name}: loads ${path}`);
    }
  }
  check(executable.sections.includes("__BUN,__bun"), "executable: no program in it");
  check(libmlxc.loads.includes(libmlx.id ?? ""), "libmlxc: does not load libmlx");
  check(libmlxc.rpaths.includes("@loader_path"), "libmlxc: does not look beside itself");

  // Bun and libmlx run on that macOS, so the symbols they import from libc++ exist.
  const asked = new Set([...executable.imports, ...libmlx.imports].map(({ name }) => name));
  for (const { name, library } of libmlxc.imports) {
    if (library === libmlx.id) check(libmlx.exports.has(name), `libmlxc: libmlx has no ${name}`);
    if (library) continue;
    check(asked.has(name) || OLD_LIBCXX.test(name), `libmlxc: libc++ may have no ${name}`);
  }
  for (const name of Object.keys({ ...symbols, ...ownSymbols })) {
    check(libmlxc.exports.has(`_${name}`), `libmlxc: no ${name} in it`);
  }
  return faults;
}
