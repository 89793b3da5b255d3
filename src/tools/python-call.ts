// Calls that are written as Python: get_weather(city="Paris", days=3).
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import type { Call, Tool } from "./format.ts";
import { members, propertySchema } from "./grammar.ts";
import {
  type At,
  advance,
  jsonOf,
  list,
  NAME,
  type Notation,
  value,
  word,
} from "./literal-value.ts";
import { literal, Mismatch, need, pastBlanks, type Reading } from "./reading.ts";

export const python: Notation = { quotes: "\"'", string, bareKeys: false };

/** A list of calls that begins with this character. */
export function* pythonList(first: string): Reading<Call[]> {
  need(first, "[");
  const at = { char: first };
  return yield* list(at, "]", () => call(at));
}

/** Calls one after the other, or a list of them, up to `close`. */
export function* pythonBlock(close: string): Reading<Call[]> {
  const at = { char: yield* pastBlanks() };
  const calls: Call[] = [];
  if (at.char === "[") {
    calls.push(...(yield* list(at, "]", () => call(at))));
    yield* advance(at);
  } else while (at.char !== close[0]) calls.push(yield* call(at));
  need(at.char, close[0]!);
  yield* literal(close.slice(1));
  return calls;
}

function* call(at: At): Reading<Call> {
  const name = yield* word(at, NAME);
  need(at.char, "(");
  const given = yield* list(at, ")", () => argument(at));
  yield* advance(at);
  return { name, arguments: jsonOf(given) };
}

function* argument(at: At): Reading<[string, string]> {
  const key = yield* word(at, NAME);
  need(at.char, "=");
  yield* advance(at);
  return [key, yield* value(at, python)];
}

const ESCAPES: ReadonlyMap<string, string> = new Map(
  Object.entries({
    n: "\n",
    t: "\t",
    r: "\r",
    b: "\b",
    f: "\f",
    v: "\v",
    a: "\x07",
    "0": "\0",
    // JSON's, and no harm in Python.
    "/": "/",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
  }),
);
const HEX_DIGITS: ReadonlyMap<string, number> = new Map(Object.entries({ x: 2, u: 4, U: 8 }));

function* string(at: At): Reading<string> {
  const quote = at.char;
  let text = "";
  for (;;) {
    const char = yield;
    if (char === quote) break;
    if (char === "\n" || char === "\r") throw new Mismatch();
    text += char === "\\" ? yield* escape() : char;
  }
  yield* advance(at);
  return text;
}

function* escape(): Reading<string> {
  const char = yield;
  const digits = HEX_DIGITS.get(char);
  // Python leaves alone what it does not know.
  if (digits === undefined) return ESCAPES.get(char) ?? `\\${char}`;
  let hex = "";
  while (hex.length < digits) {
    const digit = yield;
    if (!/[\da-fA-F]/.test(digit)) throw new Mismatch();
    hex += digit;
  }
  const code = Number.parseInt(hex, 16);
  if (code > 0x10ffff) throw new Mismatch();
  return String.fromCodePoint(code);
}

/** The values of arguments are held to JSON, which is read as well. */
export function pythonTag(tool: Tool): TagFormat {
  const content: StructuralTagFormat = members(tool.parameters, ", ", (key) => ({
    type: "tag",
    begin: `${key}=`,
    content: { type: "json_schema", json_schema: propertySchema(tool.parameters, key) },
    end: "",
  }));
  return { type: "tag", begin: `${tool.name}(`, content, end: ")" };
}

export function writePython({ name, arguments: given }: Call): string {
  const members = Object.entries(JSON.parse(given));
  return `${name}(${members.map(([key, each]) => `${key}=${JSON.stringify(each)}`).join(", ")})`;
}
