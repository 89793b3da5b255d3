// Python semantics of template values where the library follows JavaScript or has nothing: the text of lists,
// mappings and booleans, filters that convert any value to text, numeric keys, and dict and str methods.
import { Environment, type Interpreter } from "@huggingface/jinja";

export type Value = ReturnType<Interpreter["evaluate"]>;

export function runtimeValue(value: unknown): Value {
  return new Environment().set("value", value);
}

// The library does not export its classes.
const ArrayValue = runtimeValue([]).constructor as new (items: readonly Value[]) => Value;

/** Filters that Python applies to the text of any value. */
const TEXT_FILTERS: ReadonlySet<string> = new Set([
  "trim",
  "upper",
  "lower",
  "title",
  "capitalize",
  "replace",
  "indent",
  "string",
]);
/** Filters that treat None and undefined as an empty list. */
const LIST_FILTERS: ReadonlySet<string> = new Set([
  "selectattr",
  "rejectattr",
  "select",
  "reject",
  "map",
  "join",
]);
const KEY_FILTERS: ReadonlySet<string> = new Set(["list", "first", "join", "sort", "unique"]);

/** Whether the filter must get the text of this value. */
export function takesText(filter: string, value: Value): boolean {
  return TEXT_FILTERS.has(filter) && value.type !== "StringValue";
}

/** Converts a filter's operand as Python does: None to an empty list, a mapping to its keys. */
export function filtered(filter: string, value: Value): Value {
  const isNothing = value.type === "NullValue" || value.type === "UndefinedValue";
  if (isNothing && LIST_FILTERS.has(filter)) return runtimeValue([]);
  if (value.type === "ObjectValue" && KEY_FILTERS.has(filter)) {
    return runtimeValue([...(value.value as Map<string, Value>).keys()]);
  }
  return value;
}

/** Converts a value to text as Python's str() does, except that undefined becomes an empty text. */
export function pythonText(value: Value): string {
  if (value.type === "UndefinedValue") return "";
  return value.type === "StringValue" ? String(value.value) : repr(value);
}

function repr(value: Value): string {
  const inside: unknown = value.value;
  switch (value.type) {
    case "StringValue":
      return quoted(inside);
    case "BooleanValue":
      return inside ? "True" : "False";
    case "NullValue":
    case "UndefinedValue":
      return "None";
    case "ArrayValue":
      return `[${(inside as Value[]).map(repr).join(", ")}]`;
    case "TupleValue": {
      const items = (inside as Value[]).map(repr);
      return items.length === 1 ? `(${items[0]},)` : `(${items.join(", ")})`;
    }
    case "ObjectValue": {
      const entries = Array.from(inside as Map<unknown, Value>);
      return `{${entries.map(([key, item]) => `${quoted(key)}: ${repr(item)}`).join(", ")}}`;
    }
    default:
      return value.toString();
  }
}

const ESCAPES: Readonly<Record<string, string>> = {
  "\\": "\\\\",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
};

/** Quotes a text as Python's repr() does; numbers, which may be keys, stay as they are. */
function quoted(text: unknown): string {
  if (typeof text !== "string") return String(text);
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replaceAll(/[\\\p{Cc}]/gu, (char) => {
    return ESCAPES[char] ?? `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`;
  });
  return quote + (quote === "'" ? escaped.replaceAll("'", "\\'") : escaped) + quote;
}

/**
 * Makes a mapping key of a number or any other value. The library accepts only texts as keys, so the value is
 * disguised as one; `asNumber` turns it back into a number at each use.
 */
export function keyOf(value: Value): Value {
  return Object.assign(runtimeValue(""), { value: value.value });
}

export function asNumber(value: Value): Value {
  const isNumber = value.type === "StringValue" && typeof value.value === "number";
  return isNumber ? runtimeValue(value.value) : value;
}

/** Returns the entries sorted by key if any key is a number; otherwise undefined. */
function sortedByKey(value: Value): Value | undefined {
  if (value.type !== "ObjectValue") return undefined;
  const entries = Array.from(value.value as Map<unknown, Value>);
  if (entries.every(([key]) => typeof key === "string")) return undefined;
  const sorted = entries.sort(([a], [b]) => Number(a) - Number(b));
  return new ArrayValue(sorted.map(([key, item]) => new ArrayValue([runtimeValue(key), item])));
}

function extreme(value: Value, sign: 1 | -1): Value | undefined {
  if (value.type !== "ArrayValue") return undefined;
  const items = value.value as readonly Value[];
  const insideOf = (item: Value) => item.value as number | string;
  const isHigher = (a: Value, b: Value) =>
    sign > 0 ? insideOf(a) > insideOf(b) : insideOf(a) < insideOf(b);
  return items.reduce((best, item) => (isHigher(item, best) ? item : best), items[0]!);
}

type Filter = (value: Value, args: readonly Value[]) => Value | undefined;

/** Filters that the library lacks or limits to other types; they return undefined to leave a value to the library. */
export const ownFilters: ReadonlyMap<string, Filter> = new Map<string, Filter>([
  ["min", (value) => extreme(value, -1)],
  ["max", (value) => extreme(value, 1)],
  ["dictsort", (value, args) => (args.length === 0 ? sortedByKey(value) : undefined)],
  [
    "format",
    (value, args) => {
      if (value.type !== "StringValue") return undefined;
      const left = args.values();
      return runtimeValue(
        String(value.value).replaceAll(/%([sd%])/g, (_, kind: string) =>
          kind === "%" ? "%" : pythonText(left.next().value ?? runtimeValue(undefined)),
        ),
      );
    },
  ],
]);

/** Dict methods hide keys of the same name: `parameters.items()` means the method, not the key "items". */
const DICT_METHODS: ReadonlySet<string> = new Set(["items", "keys", "values", "get"]);

/** A str method. Its arguments are JavaScript values; `spend` charges for the characters that it produces. */
type TextMethod = (
  text: string,
  args: readonly unknown[],
  spend: (chars: number) => void,
) => unknown;

/** Cost of each occurrence that `count` finds, as a number of produced characters. */
const FOUND_CHARS = 16;

const textMethods: ReadonlyMap<string, TextMethod> = new Map<string, TextMethod>([
  [
    "format",
    (text, args, spend) => {
      let next = 0;
      return text.replaceAll(/\{\{|\}\}|\{(\d*)\}/g, (found, index?: string) => {
        if (index === undefined) return found[0]!;
        const given = args[index === "" ? next++ : Number(index)];
        const made = typeof given === "object" ? "" : pythonText(runtimeValue(given));
        spend(made.length);
        return made;
      });
    },
  ],
  ["find", (text, [part]) => text.indexOf(String(part))],
  [
    "count",
    (text, [part], spend) => {
      const wanted = String(part);
      if (wanted === "") return text.length + 1;
      let count = 0;
      for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
        count += 1;
        spend(FOUND_CHARS);
      }
      return count;
    },
  ],
  ["isdigit", (text) => /^\p{Nd}+$/u.test(text)],
  [
    "removeprefix",
    (text, [part]) => (text.startsWith(String(part)) ? text.slice(String(part).length) : text),
  ],
  [
    "removesuffix",
    (text, [part]) =>
      part !== "" && text.endsWith(String(part)) ? text.slice(0, -String(part).length) : text,
  ],
]);

/** Returns the attribute as Python finds it: dict methods before keys, and str methods that the library lacks. */
export function attribute(
  object: Value,
  name: string,
  found: Value,
  spend: (chars: number) => void,
): Value {
  if (object.type === "ObjectValue" && DICT_METHODS.has(name)) return object.builtins.get(name)!;
  const method = textMethods.get(name);
  if (object.type !== "StringValue" || found.type !== "UndefinedValue" || !method) return found;
  return runtimeValue((...args: unknown[]) => method(String(object.value), args, spend));
}

/** Returns the nodes whose values are written to the output: all statements that are direct children of a block. */
export function writtenNodes(program: unknown): ReadonlySet<object> {
  const written = new Set<object>();
  const visit = (node: unknown): void => {
    if (typeof node !== "object" || node === null) return;
    const block = node as Record<string, unknown>;
    for (const name of ["body", "alternate", "defaultBlock"]) {
      const statements = block[name];
      if (!Array.isArray(statements)) continue;
      for (const statement of statements) {
        written.add(statement);
        visit(statement);
      }
    }
  };
  visit(program);
  return written;
}
