// Parses literals of programming languages (lists, objects, strings, numbers, names) into JSON. Notations
// differ in their strings and in the keys of objects.
import type { CallDraft } from "./format.ts";
import { isBlank, Mismatch, need, pastBlanks, type Reading } from "./reading.ts";

/** Position of the parser: the first character that is not consumed yet. */
export type At = { char: string };

export type Notation = {
  /** Quotes that may start a string. */
  quotes: string;
  /** Reads a string from `at`, and advances to the next non-blank character. */
  string(at: At): Reading<string>;
  /** Whether keys of objects may be unquoted. */
  bareKeys: boolean;
};

/** Maximum nesting: each level makes every character inside it more expensive to read. */
const MAX_DEPTH = 64;
const NUMBER = /^([+-]?)(\d*)(?:\.(\d*))?([eE][+-]?\d+)?$/;
const NAMES: ReadonlyMap<string, string> = new Map([
  ["True", "true"],
  ["true", "true"],
  ["False", "false"],
  ["false", "false"],
  ["None", "null"],
  ["null", "null"],
]);

/** Reads a value and returns it as JSON text; advances to the next non-blank character. */
export function* value(at: At, notation: Notation, depth = 0): Reading<string> {
  if (depth > MAX_DEPTH) throw new Mismatch();
  if (notation.quotes.includes(at.char)) return JSON.stringify(yield* notation.string(at));
  if (at.char === "[") {
    const items = yield* list(at, "]", () => value(at, notation, depth + 1));
    yield* advance(at);
    return `[${items.join(", ")}]`;
  }
  if (at.char === "{") {
    const members = yield* list(at, "}", () => member(at, notation, depth + 1));
    yield* advance(at);
    return jsonOf(members);
  }
  return scalarOf(yield* word(at, /[\w.+-]/));
}

/** Reads comma-separated items up to `close`, which is the current character afterwards. */
export function* list<T>(at: At, close: string, item: () => Reading<T>): Reading<T[]> {
  const items: T[] = [];
  yield* advance(at);
  while (at.char !== close) {
    items.push(yield* item());
    if (at.char === ",") yield* advance(at);
    else need(at.char, close);
  }
  return items;
}

export type Member = readonly [key: string, json: string];

export function* member(at: At, notation: Notation, depth: number): Reading<Member> {
  const isQuoted = notation.quotes.includes(at.char);
  if (!isQuoted && !notation.bareKeys) throw new Mismatch();
  const key = isQuoted ? yield* notation.string(at) : yield* word(at, NAME);
  need(at.char, ":");
  yield* advance(at);
  return [key, yield* value(at, notation, depth)];
}

/** Characters of the names of arguments and functions. */
export const NAME = /[^\s()[\]{}<>=:,"']/;

export const isName = (text: string) =>
  text !== "" && Array.from(text).every((char) => NAME.test(char));

/** Reads one or more characters that match `kind`; advances to the next non-blank character. */
export function* word(at: At, kind: RegExp): Reading<string> {
  let text = "";
  while (kind.test(at.char)) {
    text += at.char;
    at.char = yield;
  }
  if (text === "") throw new Mismatch();
  if (isBlank(at.char)) yield* advance(at);
  return text;
}

export function* advance(at: At): Reading<void> {
  at.char = yield* pastBlanks();
}

/** Returns a JSON object of the members. Of two with the same key, the later one wins. */
function jsonOf(members: Iterable<Member>): string {
  return `{${Array.from(new Map(members), jsonMember).join(", ")}}`;
}

function jsonMember([key, json]: Member): string {
  return `${JSON.stringify(key)}: ${json}`;
}

/**
 * Adds a call whose arguments are read one at a time; `close` ends the object of its arguments. Of two arguments with
 * the same name the first one wins, because it may have been sent already.
 */
export function openCall(calls: CallDraft[], name: string) {
  const keys = new Set<string>();
  const call: CallDraft = { name, arguments: "{" };
  calls.push(call);
  return {
    add(member: Member): void {
      const [key] = member;
      if (!keys.has(key)) call.arguments += `${keys.size > 0 ? ", " : ""}${jsonMember(member)}`;
      keys.add(key);
    },
    close(): void {
      call.arguments += "}";
    },
  };
}

function scalarOf(text: string): string {
  const name = NAMES.get(text);
  if (name !== undefined) return name;
  const [, sign, whole = "", fraction, exponent = ""] = NUMBER.exec(text) ?? [];
  if (sign === undefined || whole + (fraction ?? "") === "" || /^0\d/.test(whole)) {
    throw new Mismatch();
  }
  // JSON requires digits on both sides of the point.
  const point = fraction === undefined ? "" : `.${fraction || "0"}`;
  return `${sign === "-" ? "-" : ""}${whole || "0"}${point}${exponent}`;
}
