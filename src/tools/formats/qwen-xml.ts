// Qwen 3 Coder:
// <tool_call>
// <function=get_weather>
// <parameter=city>
// Paris
// </parameter>
// </function>
// </tool_call>
// Values are untyped: only the tool's schema tells the string 5 from the number 5.
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../block-parser.ts";
import { type Call, type CallDraft, newCallId, type Tool, type ToolFormat } from "../format.ts";
import {
  callSequence,
  choicesOf,
  isSchema,
  nothing,
  oneOf,
  optional,
  propertiesOf,
  propertySchema,
} from "../grammar.ts";
import { openCall, value } from "../literal-value.ts";
import { python } from "../python-call.ts";
import { literal, Mismatch, need, pastBlanks, type Reading, until } from "../reading.ts";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";
const FUNCTION = "<function=";
const PARAMETER_END = "</parameter>";

export const qwenXml: ToolFormat = {
  name: "qwen-xml",
  markers: [OPEN, CLOSE],
  parser(tools) {
    const read = (calls: CallDraft[], opener: string) =>
      opener === OPEN ? readBlock(calls, tools) : readFunction(calls, tools);
    // The model sometimes omits <tool_call> but still writes </tool_call>.
    return blockParser({ openers: [OPEN, FUNCTION], closers: [CLOSE], read }, tools);
  },
  grammar: (tools, options) =>
    callSequence(tools.map(tagOf), { trigger: OPEN, separator: "\n" }, options),
  write: (calls) => calls.map(write).join("\n"),
  newCallId,
};

function* readBlock(calls: CallDraft[], tools: readonly Tool[]): Reading<void> {
  need(yield* pastBlanks(), "<");
  yield* literal(FUNCTION.slice(1));
  yield* readFunction(calls, tools);
  need(yield* pastBlanks(), "<");
  yield* literal(CLOSE.slice(1));
}

function* readFunction(calls: CallDraft[], tools: readonly Tool[]): Reading<void> {
  const name = yield* readName();
  const parameters = tools.find((tool) => tool.name === name)?.parameters ?? {};
  const open = openCall(calls, name);
  for (;;) {
    need(yield* pastBlanks(), "<");
    const char = yield;
    if (char === "/") break;
    need(char, "p");
    yield* literal("arameter=");
    const key = yield* readName();
    const text = yield* until(PARAMETER_END);
    open.add([key, jsonOfText(text.replace(/^\n/, "").replace(/\n$/, ""), parameters, key)]);
  }
  yield* literal("function>");
  open.close();
}

function* readName(): Reading<string> {
  let name = "";
  for (;;) {
    const char = yield;
    if (char === ">" && name !== "") return name;
    if (/[\s<>]/.test(char)) throw new Mismatch();
    name += char;
  }
}

function jsonOfText(text: string, parameters: Record<string, unknown>, key: string): string {
  const types = typesOf(propertySchema(parameters, key));
  const mayBeString = types?.has("string") ?? false;
  const json = mayBeString && types?.size === 1 ? undefined : jsonIn(text);
  if (json === undefined) return JSON.stringify(text);
  const type = typeOf(JSON.parse(json));
  const isString = mayBeString && (type === "string" || !types?.has(type));
  return isString ? JSON.stringify(text) : json;
}

/** The text as JSON, if it is JSON or a Python literal. */
function jsonIn(text: string): string | undefined {
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

/** The types that a value may have; undefined if the schema does not say. */
function typesOf(schema: Record<string, unknown>): ReadonlySet<JsonType> | undefined {
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

/** xgrammar's built-in format does not allow multi-line strings and fails on empty schemas. */
function tagOf(tool: Tool): TagFormat {
  const { required, others } = propertiesOf(tool.parameters);
  const elements = [
    ...required.map((key) => parameterTag(tool, key)),
    ...others.map((key) => optional(parameterTag(tool, key))),
  ];
  return {
    type: "tag",
    begin: `${OPEN}\n${FUNCTION}${tool.name}>`,
    content: elements.length > 0 ? { type: "sequence", elements } : nothing,
    end: `\n</function>\n${CLOSE}`,
  };
}

function parameterTag(tool: Tool, key: string): TagFormat {
  const schema = propertySchema(tool.parameters, key);
  const begin = `\n<parameter=${key}>\n`;
  const choices = choicesOf(schema);
  // The parser accepts a string's end with or without a newline before it.
  if (!choices && (typesOf(schema)?.has("string") ?? true)) {
    return { type: "tag", begin, content: { type: "any_text" }, end: PARAMETER_END };
  }
  const content: StructuralTagFormat = choices
    ? oneOf(choices.map(textOf))
    : { type: "json_schema", json_schema: schema };
  return { type: "tag", begin, content, end: `\n${PARAMETER_END}` };
}

function textOf(given: unknown): string {
  return typeof given === "string" ? given : JSON.stringify(given);
}

function write({ name, arguments: given }: Call): string {
  const parameters = Object.entries(JSON.parse(given)).map(
    ([key, each]) => `<parameter=${key}>\n${textOf(each)}\n${PARAMETER_END}\n`,
  );
  return `${OPEN}\n${FUNCTION}${name}>\n${parameters.join("")}</function>\n${CLOSE}`;
}
