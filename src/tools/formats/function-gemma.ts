// FunctionGemma: <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../block-parser.ts";
import { type Call, type CallDraft, newCallId, type Tool, type ToolFormat } from "../format.ts";
import {
  adjoiningCalls,
  choicesOf,
  isSchema,
  members,
  oneOf,
  propertySchema,
  separated,
} from "../grammar.ts";
import {
  type At,
  advance,
  list,
  member,
  NAME,
  type Notation,
  openCall,
  word,
} from "../literal-value.ts";
import { literal, need, pastBlanks, type Reading, until } from "../reading.ts";

const OPEN = "<start_function_call>";
const CLOSE = "<end_function_call>";
const ESCAPE = "<escape>";

export const functionGemma: ToolFormat = {
  name: "function-gemma",
  markers: [OPEN, CLOSE, ESCAPE],
  parser: (tools) => blockParser({ openers: [OPEN], read }, tools),
  grammar: (tools, options) => adjoiningCalls(tools.map(tagOf), OPEN, options),
  write: (calls) => calls.map(write).join(""),
  newCallId,
};

const notation: Notation = {
  quotes: "<",
  *string(at) {
    yield* literal(ESCAPE.slice(1));
    const text = yield* until(ESCAPE);
    yield* advance(at);
    return text;
  },
  bareKeys: true,
};

function* read(calls: CallDraft[]): Reading<void> {
  need(yield* pastBlanks(), "c");
  yield* literal("all:");
  const at: At = { char: yield* pastBlanks() };
  const name = yield* word(at, NAME);
  need(at.char, "{");
  const open = openCall(calls, name);
  yield* list(at, "}", function* () {
    open.add(yield* member(at, notation, 1));
  });
  open.close();
  need(yield* pastBlanks(), "<");
  yield* literal(CLOSE.slice(1));
}

function tagOf({ name, parameters }: Tool): TagFormat {
  const content = members(parameters, ",", memberOf(parameters));
  return { type: "tag", begin: `${OPEN}call:${name}{`, content, end: `}${CLOSE}` };
}

function memberOf(schema: Record<string, unknown>): (key: string) => TagFormat {
  return (key) => ({
    type: "tag",
    begin: `${key}:`,
    content: valueFormat(propertySchema(schema, key)),
    end: "",
  });
}

const anyValue: StructuralTagFormat = {
  type: "grammar",
  grammar: `root ::= string | number | "true" | "false" | "null" | list | object
string ::= "${ESCAPE}" [^<]* "${ESCAPE}"
number ::= "-"? [0-9]+ ("." [0-9]+)?
list ::= "[" (root ("," root)*)? "]"
object ::= "{" (member ("," member)*)? "}"
member ::= [a-zA-Z_] [a-zA-Z0-9_]* ":" root`,
};

function valueFormat(schema: Record<string, unknown>): StructuralTagFormat {
  const { type, items, properties } = schema;
  const choices = choicesOf(schema);
  if (choices) return oneOf(choices.map(literalOf));
  if (type === "string") {
    return { type: "tag", begin: ESCAPE, content: { type: "any_text" }, end: ESCAPE };
  }
  if (type === "number" || type === "integer" || type === "boolean" || type === "null") {
    return { type: "json_schema", json_schema: schema };
  }
  if (type === "array" && isSchema(items)) {
    const item: TagFormat = { type: "tag", begin: "", content: valueFormat(items), end: "" };
    const content = { ...separated([item], ",", true), at_least_one: false };
    return { type: "tag", begin: "[", content, end: "]" };
  }
  if (type === "object" && isSchema(properties)) {
    return { type: "tag", begin: "{", content: members(schema, ",", memberOf(schema)), end: "}" };
  }
  return anyValue;
}

function write({ name, arguments: given }: Call): string {
  return `${OPEN}call:${name}${literalOf(JSON.parse(given))}${CLOSE}`;
}

function literalOf(given: unknown): string {
  if (typeof given === "string") return `${ESCAPE}${given}${ESCAPE}`;
  if (Array.isArray(given)) return `[${given.map(literalOf).join(",")}]`;
  if (!isSchema(given)) return JSON.stringify(given);
  return `{${Object.entries(given)
    .map(([key, each]) => `${key}:${literalOf(each)}`)
    .join(",")}}`;
}
