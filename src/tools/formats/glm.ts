// GLM 4.5 and later; from 4.7 on without the line breaks. The template tells which one the model writes:
// <tool_call>get_weather
// <arg_key>city</arg_key>
// <arg_value>Paris</arg_value>
// </tool_call>
import type { TagFormat } from "@mlc-ai/web-xgrammar";
import {
  argumentText,
  bareValue,
  isJsonOnly,
  jsonOfText,
  parameterSequence,
  parametersOf,
  textOf,
} from "../syntax/bare-value.ts";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type Call,
  type CallDraft,
  newCallId,
  type Tool,
  type ToolFormat,
} from "../syntax/format.ts";
import { adjoiningCalls, callSequence } from "../syntax/grammar.ts";
import { type At, advance, NAME, openCall, word } from "../syntax/literal-value.ts";
import { marker, pastBlanks, type Reading, until } from "../syntax/reading.ts";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";
const KEY = "<arg_key>";
const KEY_END = "</arg_key>";
const VALUE = "<arg_value>";
const VALUE_END = "</arg_value>";

export const glm = glmFormat("glm", "\n");
export const glmCompact = glmFormat("glm-compact", "");

function glmFormat(name: string, lineBreak: string): ToolFormat {
  const keyOf = (key: string) => `${lineBreak}${KEY}${key}${KEY_END}${lineBreak}${VALUE}`;
  const end = `${lineBreak}${CLOSE}`;
  const tagOf = (tool: Tool): TagFormat => ({
    type: "tag",
    begin: `${OPEN}${tool.name}`,
    content: parameterSequence(tool, (key, schema) =>
      bareValue(schema, { begin: keyOf(key), end: VALUE_END }),
    ),
    end,
  });
  const write = ({ name, arguments: given }: Call): string => {
    const parameters = Object.entries(JSON.parse(given)).map(
      ([key, each]) => `${keyOf(key)}${textOf(each)}${VALUE_END}`,
    );
    return `${OPEN}${name}${parameters.join("")}${end}`;
  };
  return {
    name,
    markers: [OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END],
    parser: blockParser({ openers: [OPEN], read }),
    grammar: (tools, options) =>
      lineBreak === ""
        ? adjoiningCalls(tools.map(tagOf), OPEN, options)
        : callSequence(tools.map(tagOf), { trigger: OPEN, separator: lineBreak }, options),
    write: (calls) => calls.map(write).join(lineBreak),
    newCallId,
  };
}

function* read(calls: CallDraft[], _opener: string, tools: readonly Tool[]): Reading<void> {
  const at: At = { char: yield* pastBlanks() };
  const name = yield* word(at, NAME);
  const parameters = parametersOf(tools, name);
  const open = openCall(calls, name);
  while ((yield* marker(at.char, KEY, CLOSE)) === KEY) {
    const key = (yield* until(KEY_END)).trim();
    yield* marker(yield* pastBlanks(), VALUE);
    const text = yield* argumentText(VALUE_END, isJsonOnly(parameters, key));
    open.add([key, jsonOfText(text, parameters, key)]);
    yield* advance(at);
  }
  open.close();
}
