// Calls written as Python: get_weather(city="Paris", days=3).
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import type { Call, CallDraft, Tool } from "./format.ts";
import { members, propertySchema } from "./grammar.ts";
import {
  type At,
  advance,
  list,
  type Member,
  NAME,
  type Notation,
  openCall,
  value,
  word,
} from "./literal-value.ts";
import { literal, Mismatch, need, pastBlanks, type Reading } from "./reading.ts";

export const python: Notation = { quotes: "\"'", string, bareKeys: false };

/** Reads a list of calls, whose first character is `first`. */
export function* pythonList(calls: CallDraft[], first: string): Reading<void> {
  need(first, "[");
  const at = { char: first };
  yield* list(at, "]", () => call(calls, at));
}

/** Reads calls in a sequence or in a list, up to `close`. */
export function* pythonBlock(calls: CallDraft[], close: string): Reading<void> {
  const at = { char: yield* pastBlanks() };
  if (at.char === "[") {
    yield* list(at, "]", () => call(calls, at));
    yield* advance(at);
  } else while (at.char !== close[0]) yield* call(calls, at);
  need(at.char, close[0]!);
  yield* literal(close.slice(1));
}

function* call(calls: CallDraft[], at: At): Reading<void> {
  const name = yield* word(at, NAME);
  need(at.char, "(");
  const open = openCall(calls, name);
  yield* list(at, ")", function* () {
    open.add(yield* argument(at));
  });
  open.close();
  yield* advance(at);
}

function* argument(at: At): Reading<Member> {
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
    // An escape of JSON, harmless in Python.
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
  // Python leaves unknown escapes as they are.
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

/** Returns the grammar of a call. Arguments are constrained to JSON, which the parser also accepts. */
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
