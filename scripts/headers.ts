// Compares the headers of mlx-c and ffi/ with ffi/symbols.ts: a changed function would otherwise be called with the old
// arguments.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { scalars } from "../ffi/prototype.ts";
import { cudaPrototypes, ownPrototypes, prototypes } from "../ffi/symbols.ts";

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

/** The parameter types, without names. */
function parameters(text: string): string[] {
  // A comma inside a function pointer's parameters is no separator.
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
      // `const` on a handle passed by value is irrelevant to the caller.
      .map((param) => param.replace(/^const (mlx_\w+)$/, "$1"))
  );
}

/** One line, in the format of ffi/symbols.ts. */
export function prototypeText(name: string, { returns, params }: Prototype): string {
  return `${returns} ${name}(${params.join(", ") || "void"})`;
}

/** Whether a C type has the FFI representation that ffi/prototype.ts infers from its name. */
function passesAsNamed(type: string, structs: Headers["structs"]): boolean {
  const isPointer = type.includes("*") || type === "mlx_error_handler_func";
  if (isPointer || type in scalars) return true;
  const fields = structs.get(type)?.join() ?? "";
  // Four bytes (also a float) and a flag are passed together as one 8-byte word.
  if (type.startsWith("mlx_optional_"))
    return /^(int|float|mlx_dtype) value,bool has_value$/.test(fields);
  return fields === "void* ctx";
}

/** One line per function of ffi/symbols.ts that differs from the headers. */
export function headerDifferences(folder: string): string[] {
  const { functions, structs } = readHeaders(folder);
  return [...prototypes, ...ownPrototypes, ...cudaPrototypes].flatMap((declared) => {
    const name = /\w+(?=\()/.exec(declared)![0];
    const prototype = functions.get(name);
    if (!prototype) return [`${name} is not in the headers`];
    const types = [prototype.returns, ...prototype.params];
    const odd = types.filter((type) => !passesAsNamed(type, structs));
    if (odd.length > 0) return [`${name}: no FFI type for ${odd.join(", ")}`];
    const text = prototypeText(name, prototype);
    return text === declared ? [] : [`${text} is declared as ${declared}`];
  });
}
