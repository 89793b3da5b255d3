// FunctionGemma and Gemma 4, with other tokens around the same syntax:
// <start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>
// <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type Call,
  type CallDraft,
  newCallId,
  type Tool,
  type ToolFormat,
} from "../syntax/format.ts";
import {
  adjoiningCalls,
  choicesOf,
  isSchema,
  members,
  oneOf,
  propertySchema,
  separated,
} from "../syntax/grammar.ts";
import {
  type At,
  advance,
  list,
  member,
  NAME,
  type Notation,
  openCall,
  word,
} from "../syntax/literal-value.ts";
import { literal, marker, need, pastBlanks, type Reading, until } from "../syntax/reading.ts";

type Tokens = { open: string; close: string /** Around strings. */; quote: string };

export const functionGemma = gemmaFormat("function-gemma", {
  open: "<start_function_call>",
  close: "<end_function_call>",
  quote: "<escape>",
});

export const gemma4: ToolFormat = {
  ...gemmaFormat("gemma-4", { open: "<|tool_call>", close: "<tool_call|>", quote: '<|"|>' }),
  thought: { open: "<|channel>thought", close: "<channel|>", tokens: ["<|channel>", "<channel|>"] },
};

function gemmaFormat(name: string, tokens: Tokens): ToolFormat {
  const { open, close, quote } = tokens;
  const notation = notationOf(quote);
  return {
    name,
    markers: [open, close, quote],
    parser: blockParser({ openers: [open], read: (calls) => read(calls, notation, close) }),
    grammar: (tools, options) =>
      adjoiningCalls(
        tools.map((tool) => tagOf(tool, tokens)),
        open,
        options,
      ),
    write: (calls) => calls.map((call) => write(call, tokens)).join(""),
    newCallId,
  };
}

function notationOf(quote: string): Notation {
  return {
    quotes: quote.slice(0, 1),
    *string(at) {
      yield* literal(quote.slice(1));
      const text = yield* until(quote);
      yield* advance(at);
      return text;
    },
    bareKeys: true,
  };
}

function* read(calls: CallDraft[], notation: Notation, close: string): Reading<void> {
  yield* marker(yield* pastBlanks(), "call:");
  const at: At = { char: yield* pastBlanks() };
  const name = yield* word(at, NAME);
  need(at.char, "{");
  const open = openCall(calls, name);
  yield* list(at, "}", function* () {
    open.add(yield* member(at, notation, 1));
  });
  open.close();
  yield* marker(yield* pastBlanks(), close);
}

function tagOf({ name, parameters }: Tool, { open, close, quote }: Tokens): TagFormat {
  const content = members(parameters, ",", memberOf(parameters, quote));
  return { type: "tag", begin: `${open}call:${name}{`, content, end: `}${close}` };
}

function memberOf(schema: Record<string, unknown>, quote: string): (key: string) => TagFormat {
  return (key) => ({
    type: "tag",
    begin: `${key}:`,
    content: valueFormat(propertySchema(schema, key), quote),
    end: "",
  });
}

function anyValue(quote: string): StructuralTagFormat {
  const mark = JSON.stringify(quote);
  return {
    type: "grammar",
    grammar: `root ::= string | number | "true" | "false" | "null" | list | object
string ::= ${mark} [^<]* ${mark}
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
list ::= "[" (root ("," root)*)? "]"
object ::= "{" (member ("," member)*)? "}"
member ::= [a-zA-Z_] [a-zA-Z0-9_]* ":" root`,
  };
}

function valueFormat(schema: Record<string, unknown>, quote: string): StructuralTagFormat {
  const { type, items, properties } = schema;
  const choices = choicesOf(schema);
  if (choices) return oneOf(choices.map((choice) => literalOf(choice, quote)));
  if (type === "string") {
    return { type: "tag", begin: quote, content: { type: "any_text" }, end: quote };
  }
  if (type === "number" || type === "integer" || type === "boolean" || type === "null") {
    return { type: "json_schema", json_schema: schema };
  }
  if (type === "array" && isSchema(items)) {
    const item: TagFormat = { type: "tag", begin: "", content: valueFormat(items, quote), end: "" };
    const content = { ...separated([item], ",", true), at_least_one: false };
    return { type: "tag", begin: "[", content, end: "]" };
  }
  if (type === "object" && isSchema(properties)) {
    const content = members(schema, ",", memberOf(schema, quote));
    return { type: "tag", begin: "{", content, end: "}" };
  }
  return anyValue(quote);
}

function write({ name, arguments: given }: Call, { open, close, quote }: Tokens): string {
  return `${open}call:${name}${literalOf(JSON.parse(given), quote)}${close}`;
}

function literalOf(given: unknown, quote: string): string {
  if (typeof given === "string") return `${quote}${given}${quote}`;
  if (Array.isArray(given)) return `[${given.map((each) => literalOf(each, quote)).join(",")}]`;
  if (!isSchema(given)) return JSON.stringify(given);
  return `{${Object.entries(given)
    .map(([key, each]) => `${key}:${literalOf(each, quote)}`)
    .join(",")}}`;
}
