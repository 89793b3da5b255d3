// Reads mlx-c's headers, and ours among them, and compares them with ffi/symbols.ts: a function that changed its arguments
// would otherwise be called with the old ones.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { cudaSymbols, ownSymbols, symbols } from "../ffi/symbols.ts";

export type Prototype = { returns: string; params: string[] };
export type Headers = {
  functions: Map<string, Prototype>;
  /** Fields of each struct, and constants of each enum, in order. */
  structs: Map<string, string[]>;
  enums: Map<string, string[]>;
};

export function readHeaders(folder: string): Headers {
  const headers: Headers = { functions: new Map(), structs: new Map(), enums: new Map() };
  for (const name of readdirSync(folder)) {
    if (name.endsWith(".h")) readHeader(readFileSync(join(folder, name), "utf8"), headers);
  }
  return headers;
}

function readHeader(source: string, headers: Headers): void {
  const text = source
    .replace(/\/\*.*?\*\//gs, "")
    .replace(/\/\/.*|^\s*#.*(\\\n.*)*/gm, "")
    .replace(/\s+/g, " ");
  for (const [, fields = "", name = ""] of text.matchAll(
    /typedef struct \w+ \{([^}]*)\} (\w+);/g,
  )) {
    headers.structs.set(name, list(fields, ";"));
  }
  for (const [, items = "", name = ""] of text.matchAll(/typedef enum \w+ \{([^}]*)\} (\w+);/g)) {
    headers.enums.set(name, list(items, ","));
  }
  const prototype = /([\w ]+?\**) ?\b(_?mlx_\w+) ?\(((?:[^()]|\([^()]*\))*)\) ?;/g;
  for (const [, returns = "", name = "", params = ""] of text.matchAll(prototype)) {
    headers.functions.set(name, { returns: returns.trim(), params: parameters(params) });
  }
}

function list(text: string, separator: string): string[] {
  return text
    .split(separator)
    .map((part) => part.trim())
    .filter(Boolean);
}

/** The types of the parameters, their names left out. */
function parameters(text: string): string[] {
  // A comma inside a function pointer's own parameters separates nothing.
  return (
    list(
      text.replace(/\([^()]*\)/g, (inner) => inner.replaceAll(",", "\0")),
      ",",
    )
      .map((param) => param.replaceAll("\0", ","))
      .filter((param) => param !== "void")
      .map((param) =>
        param.includes("(*")
          ? param.replace(/\(\*\w+\)/, "(*)")
          : param.replace(/(?<=[\w*] ?)\b\w+$/, "").trim() || param,
      )
      // `const` before a handle passed by value says nothing to the caller.
      .map((param) => param.replace(/^const (mlx_\w+)$/, "$1"))
  );
}

/** One line, as it stands above an entry of ffi/symbols.ts. */
export function prototypeText(name: string, { returns, params }: Prototype): string {
  return `${returns} ${name}(${params.join(", ") || "void"})`;
}

/** How a C type passes through the FFI. */
function ffiType(type: string, structs: Headers["structs"], returned: boolean): string {
  const plain = type.replace(/\bconst\b/g, "").trim();
  const isHandle = structs.get(plain)?.join() === "void* ctx";
  if (isHandle || type.includes("(*)") || plain === "mlx_error_handler_func") return "ptr";
  if (plain.endsWith("*")) return returned || type === "void*" ? "ptr" : "buffer";
  if (plain.startsWith("mlx_optional_") && isOptional(structs.get(plain))) return "u64";
  const scalars: Record<string, string> = {
    void: "void",
    bool: "bool",
    int: "i32",
    float: "f32",
    double: "f64",
    uint64_t: "u64",
    size_t: returned ? "size" : "u64",
    mlx_dtype: "i32",
    mlx_device_type: "i32",
  };
  return scalars[plain] ?? `no FFI type for ${type}`;
}

/** Four bytes and a flag: eight bytes that pass as one word, a float beside a flag too. */
function isOptional(fields: string[] | undefined): boolean {
  return /^(int|float|mlx_dtype) value,bool has_value$/.test(fields?.join() ?? "");
}

/** Every entry of the symbol table that the headers contradict, as one line each. */
export function headerDifferences(
  folder: string,
  table: SymbolTable = { ...symbols, ...ownSymbols, ...cudaSymbols },
): string[] {
  const { functions, structs } = readHeaders(folder);
  return Object.entries(table).flatMap(([name, { args, returns }]) => {
    const prototype = functions.get(name);
    if (!prototype) return [`${name} is not in the headers`];
    const expected = [
      ...prototype.params.map((type) => ffiType(type, structs, false)),
      ffiType(prototype.returns, structs, true),
    ].join(", ");
    const found = [...args, typeof returns === "number" ? "size" : returns].join(", ");
    if (expected === found) return [];
    return [`${prototypeText(name, prototype)} is called with ${found}`];
  });
}

type SymbolTable = Readonly<
  Record<string, { readonly args: readonly string[]; readonly returns: string | number }>
>;
