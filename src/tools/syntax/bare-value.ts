// Arguments written as bare text between tags: only the tool's schema tells the string 5 from the number 5.
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { StringMatcher } from "../../text/string-matcher.ts";
import type { Tool } from "./format.ts";
import {
  choicesOf,
  isSchema,
  nothing,
  oneOf,
  optional,
  propertiesOf,
  propertySchema,
} from "./grammar.ts";
import { JsonScanner } from "./json-call.ts";
import { value } from "./literal-value.ts";
import { python } from "./python-call.ts";
import { Mismatch, type Reading } from "./reading.ts";

type Schema = Record<string, unknown>;

/** Returns the schema of a tool's arguments; empty if there is no such tool. */
export function parametersOf(tools: readonly Tool[], name: string): Schema {
  return tools.find((tool) => tool.name === name)?.parameters ?? {};
}

/** Whether an argument cannot be a string. */
export function isJsonOnly(parameters: Schema, key: string): boolean {
  return typesOf(propertySchema(parameters, key))?.has("string") === false;
}

/** Reads an argument up to `end`, and consumes `end` too. If the argument is JSON, its strings may contain `end`. */
export function* argumentText(end: string, isJson: boolean): Reading<string> {
  const matcher = new StringMatcher([end]);
  let scanner = isJson ? new JsonScanner() : undefined;
  let text = "";
  for (;;) {
    const char = yield;
    text += char;
    const isEnd = matcher.take(char) !== undefined;
    if (isEnd && !scanner?.isInString) return text.slice(0, -end.length);
    try {
      if (scanner?.take(char)) scanner = undefined;
    } catch (error) {
      if (!(error instanceof Mismatch)) throw error;
      scanner = undefined;
    }
  }
}

/** Returns an argument as JSON: a string, unless the text is JSON of a type that its schema allows. */
export function jsonOfText(text: string, parameters: Schema, key: string): string {
  const types = typesOf(propertySchema(parameters, key));
  const mayBeString = types?.has("string") ?? false;
  const json = mayBeString && types?.size === 1 ? undefined : jsonIn(text);
  if (json === undefined) return JSON.stringify(text);
  const type = typeOf(JSON.parse(json));
  const isString = mayBeString && (type === "string" || !types?.has(type));
  return isString ? JSON.stringify(text) : json;
}

/** Returns the text as JSON if it is JSON or a Python literal; otherwise undefined. */
export function jsonIn(text: string): string | undefined {
  const trimmed = text.trim();
  try {
    JSON.parse(trimmed);
    return trimmed;
  } catch {
    return pythonIn(trimmed);
  }
}

function pythonIn(text: string): string | undefined {
  const at = { char: text.slice(0, 1) };
  const reading = value(at, python);
  try {
    reading.next();
    for (const char of `${text.slice(1)}\0`) {
      const { done, value: json } = reading.next(char);
      if (done) return at.char === "\0" ? json : undefined;
    }
  } catch (error) {
    if (!(error instanceof Mismatch)) throw error;
  }
  return undefined;
}

type JsonType = "string" | "number" | "boolean" | "null" | "array" | "object";

function typeOf(json: unknown): JsonType {
  if (json === null) return "null";
  return Array.isArray(json) ? "array" : (typeof json as JsonType);
}

/** Returns the possible types of a value; undefined if the schema does not restrict them. */
export function typesOf(schema: Schema): ReadonlySet<JsonType> | undefined {
  const only = choicesOf(schema);
  if (only) return new Set(only.map(typeOf));
  if (schema.type !== undefined) {
    const names = [schema.type].flat();
    return new Set(names.map((name) => (name === "integer" ? "number" : (name as JsonType))));
  }
  const choices = schema.anyOf ?? schema.oneOf;
  if (!Array.isArray(choices)) return undefined;
  const types = choices.map((choice) => (isSchema(choice) ? typesOf(choice) : undefined));
  if (types.includes(undefined)) return undefined;
  return new Set(types.flatMap((each) => [...each!]));
}

/** Returns the grammar of parameters: all required ones in order, then any of the others. */
export function parameterSequence(
  { parameters }: Tool,
  format: (key: string, schema: Schema) => StructuralTagFormat,
): StructuralTagFormat {
  const { required, others } = propertiesOf(parameters);
  const one = (key: string) => format(key, propertySchema(parameters, key));
  const elements = [...required.map(one), ...others.map((key) => optional(one(key)))];
  return elements.length > 0 ? { type: "sequence", elements } : nothing;
}

/** Returns the grammar of a value between two texts. Values other than strings have `margin` before `end`. */
export function bareValue(
  schema: Schema,
  { begin, end, margin = "" }: { begin: string; end: string; margin?: string },
): TagFormat {
  const choices = choicesOf(schema);
  if (!choices && (typesOf(schema)?.has("string") ?? true)) {
    const { pattern } = schema;
    // Enforces a pattern only if it has both anchors: any other pattern may match a part of the text.
    const content: StructuralTagFormat =
      typeof pattern === "string" && /^\^.*\$$/s.test(pattern)
        ? { type: "regex", pattern }
        : { type: "any_text" };
    return { type: "tag", begin, content, end };
  }
  const content: StructuralTagFormat = choices
    ? oneOf(choices.map(textOf))
    : { type: "json_schema", json_schema: schema };
  return { type: "tag", begin, content, end: margin + end };
}

export function textOf(given: unknown): string {
  return typeof given === "string" ? given : JSON.stringify(given);
}
