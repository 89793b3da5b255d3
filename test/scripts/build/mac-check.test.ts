import { expect, test } from "bun:test";
import { ownSymbols, symbols } from "../../../ffi/symbols.ts";
import { type MacParts, macFaults } from "../../../scripts/build/mac-check.ts";
import type { MachO } from "../../../scripts/build/mach-o.ts";

const none: MachO = {
  loads: ["/usr/lib/libSystem.B.dylib"],
  rpaths: [],
  macos: "14.0",
  sections: [],
  imports: [],
  exports: new Set(),
  signature: "fits",
};

const throws = [{ name: "_throw" }];

/** Parts that fit together. */
function parts(): MacParts {
  return structuredClone({
    executable: { ...none, macos: "13.0", sections: ["__BUN,__bun"], imports: [{ name: "_new" }] },
    libmlxc: {
      ...none,
      id: "@rpath/libmlxc.dylib",
      loads: ["/usr/lib/libSystem.B.dylib", "@rpath/libmlx.dylib"],
      rpaths: ["@loader_path"],
      imports: [
        { name: "_add", library: "@rpath/libmlx.dylib" },
        { name: "_write", library: "/usr/lib/libSystem.B.dylib" },
        { name: "_new" },
        { name: "_throw" },
        { name: "__ZNSt3__115basic_streambufIcNS_11char_traitsIcEEE5uflowEv" },
      ],
      exports: new Set(Object.keys({ ...symbols, ...ownSymbols }).map((name) => `_${name}`)),
    },
    libmlx: { ...none, id: "@rpath/libmlx.dylib", imports: throws, exports: new Set(["_add"]) },
  });
}

test("parts that fit together have no faults", () => {
  expect(macFaults(parts())).toEqual([]);
});

const faults: Record<string, (parts: MacParts) => void> = {
  "executable: signature: none": ({ executable }) => {
    executable.signature = "none";
  },
  "libmlx: signature: does not fit": ({ libmlx }) => {
    libmlx.signature = "does not fit";
  },
  "libmlxc: needs macOS 26.0": ({ libmlxc }) => {
    libmlxc.macos = "26.0";
  },
  "libmlxc: needs macOS undefined": ({ libmlxc }) => {
    delete libmlxc.macos;
  },
  "libmlxc: loads /opt/lib/libc++.dylib": ({ libmlxc }) => {
    libmlxc.loads.push("/opt/lib/libc++.dylib");
  },
  "executable: no program in it": ({ executable }) => {
    executable.sections = [];
  },
  "libmlxc: does not load libmlx": ({ libmlxc }) => {
    libmlxc.loads.pop();
  },
  "libmlxc: does not look beside itself": ({ libmlxc }) => {
    libmlxc.rpaths = [];
  },
  "libmlxc: libmlx has no _add": ({ libmlx }) => {
    libmlx.exports.clear();
  },
  "libmlxc: libc++ may have no _new": ({ executable }) => {
    executable.imports = [];
  },
  "libmlxc: no mlx_set_error_handler in it": ({ libmlxc }) => {
    libmlxc.exports.delete("_mlx_set_error_handler");
  },
};

test.each(Object.entries(faults))("a fault is named: %s", (line, damage) => {
  const damaged = parts();
  damage(damaged);
  expect(macFaults(damaged)).toEqual([line]);
});
