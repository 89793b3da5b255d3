// Finds code that Metal forbids but C++ for OpenCL allows, in the AST that clang prints.

/** Threadgroup memory of every Apple GPU. */
export const MOST_SHARED_BYTES = 32 * 1024;

/** Element sizes; T is at most a float. */
const bytes: Record<string, number> = {
  ...{ T: 4, float: 4, half: 2, int: 4, uint: 4 },
  ...{ Four: 16, "typename Vector::Pack": 16, Entry: 8 },
};

const nodes = /-((?:Function|Var|ParmVar|Field)Decl|DeclRefExpr|(?:CStyle|CXX)\w*CastExpr) (.*)/g;

export type Reading = { faults: Set<string>; sharedBytes: number };

export function readTree(tree: string): Reading {
  const faults = new Set<string>();
  const shared = new Map<string, number>();
  const calls = new Map<string, Set<string>>();
  let within = "";
  for (const [, kind = "", rest = ""] of tree.matchAll(nodes)) {
    // The desugared type follows an alias.
    const [, name = "", type = ""] = /(\S+) (?:'[^']*':)?'([^']*)'/.exec(rest) ?? [];
    if (kind === "FunctionDecl") {
      within = `${name} ${type}`;
    } else if (kind === "DeclRefExpr") {
      const [, called, calledType] = / Function 0x\w+ '([^']*)' '([^']*)'/.exec(rest) ?? [];
      const known = calls.get(within) ?? new Set();
      if (called) calls.set(within, known.add(`${called} ${calledType}`));
    } else if (type.includes("__generic")) {
      // OpenCL has a generic address space; Metal does not.
      const what = kind.endsWith("CastExpr") ? "a cast" : name;
      if (!isImplicit(kind, name, rest)) faults.add(`${what} is without an address space`);
    } else if (kind === "VarDecl") {
      if (!type.startsWith("__local ") || type.includes("*")) continue;
      const [, element = "", lengths = ""] = /^__local (.+?)((?:\[\d+\])*)$/.exec(type) ?? [];
      const size = bytes[element];
      if (!size) throw new Error(`${name}: add the size of ${element}`);
      const elements = Array.from(lengths.matchAll(/\d+/g), Number).reduce((a, b) => a * b, 1);
      shared.set(within, (shared.get(within) ?? 0) + elements * size);
    }
  }
  const reaches = (from: string, goal: string, seen = new Set<string>()): boolean =>
    Array.from(calls.get(from) ?? []).some(
      (next) => next === goal || (!seen.has(next) && reaches(next, goal, seen.add(next))),
    );
  for (const each of calls.keys()) if (reaches(each, each)) faults.add(`${each}: recursion`);
  const sharedBytes = Math.max(0, ...shared.values());
  if (sharedBytes > MOST_SHARED_BYTES) {
    faults.add(`${sharedBytes} bytes of threadgroup memory are more than ${MOST_SHARED_BYTES}`);
  }
  return { faults, sharedBytes };
}

/** Compiler-generated copies: unnamed arguments, and casts to rvalue references. */
function isImplicit(kind: string, name: string, rest: string): boolean {
  if (kind.endsWith("CastExpr")) return rest.includes("' xvalue ");
  return name === "used" || name.startsWith("col:");
}
