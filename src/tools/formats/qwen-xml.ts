// Qwen 3 Coder and Nemotron 3:
// <tool_call>
// <function=get_weather>
// <parameter=city>
// Paris
// </parameter>
// </function>
// </tool_call>
import type { TagFormat } from "@mlc-ai/web-xgrammar";
import { bareValue, jsonOfText, parameterSequence, parametersOf, textOf } from "../bare-value.ts";
import { blockParser } from "../block-parser.ts";
import { type Call, type CallDraft, newCallId, type Tool, type ToolFormat } from "../format.ts";
import { callSequence } from "../grammar.ts";
import { openCall } from "../literal-value.ts";
import { Mismatch, marker, pastBlanks, type Reading, until } from "../reading.ts";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";
const FUNCTION = "<function=";
const FUNCTION_END = "</function>";
const PARAMETER = "<parameter=";
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
  yield* marker(yield* pastBlanks(), FUNCTION);
  yield* readFunction(calls, tools);
  yield* marker(yield* pastBlanks(), CLOSE);
}

function* readFunction(calls: CallDraft[], tools: readonly Tool[]): Reading<void> {
  const name = yield* readName();
  const parameters = parametersOf(tools, name);
  const open = openCall(calls, name);
  for (;;) {
    const found = yield* marker(yield* pastBlanks(), PARAMETER, FUNCTION_END);
    if (found === FUNCTION_END) break;
    const key = yield* readName();
    const text = yield* until(PARAMETER_END);
    open.add([key, jsonOfText(text.replace(/^\n/, "").replace(/\n$/, ""), parameters, key)]);
  }
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

/** xgrammar's built-in format does not allow multi-line strings and fails on empty schemas. */
function tagOf(tool: Tool): TagFormat {
  // The parser accepts a string's end with or without a newline before it.
  const content = parameterSequence(tool, (key, schema) =>
    bareValue(schema, { begin: `\n${PARAMETER}${key}>\n`, end: PARAMETER_END, margin: "\n" }),
  );
  const begin = `${OPEN}\n${FUNCTION}${tool.name}>`;
  return { type: "tag", begin, content, end: `\n${FUNCTION_END}\n${CLOSE}` };
}

function write({ name, arguments: given }: Call): string {
  const parameters = Object.entries(JSON.parse(given)).map(
    ([key, each]) => `${PARAMETER}${key}>\n${textOf(each)}\n${PARAMETER_END}\n`,
  );
  return `${OPEN}\n${FUNCTION}${name}>\n${parameters.join("")}${FUNCTION_END}\n${CLOSE}`;
}
