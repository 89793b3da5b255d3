// Qwen 3 Coder, Nemotron 3 and Step 3.5:
// <tool_call>
// <function=get_weather>
// <parameter=city>
// Paris
// </parameter>
// </function>
// </tool_call>
// Seed-OSS, with values on the lines of their tags:
// <seed:tool_call>
// <function=get_weather>
// <parameter=city>Paris</parameter>
// </function>
// </seed:tool_call>
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
  thoughtMarks,
} from "../syntax/format.ts";
import { callSequence } from "../syntax/grammar.ts";
import { openCall } from "../syntax/literal-value.ts";
import { Mismatch, marker, pastBlanks, type Reading } from "../syntax/reading.ts";

const FUNCTION = "<function=";
const FUNCTION_END = "</function>";
const PARAMETER = "<parameter=";
const PARAMETER_END = "</parameter>";

export const qwenXml = functionXml("qwen-xml", {
  open: "<tool_call>",
  close: "</tool_call>",
  margin: "\n",
});

export const seed: ToolFormat = {
  ...functionXml("seed", { open: "<seed:tool_call>", close: "</seed:tool_call>", margin: "" }),
  thought: thoughtMarks("<seed:think>", "</seed:think>"),
};

type Tags = {
  open: string;
  close: string;
  /** Text on both sides of a value. */
  margin: string;
};

function functionXml(name: string, tags: Tags): ToolFormat {
  const { open, close } = tags;
  return {
    name,
    markers: [open, close],
    // The function's tag opens a block too, because the model sometimes omits <tool_call> but still writes
    // </tool_call>.
    parser: blockParser({
      openers: [open, FUNCTION],
      closers: [close],
      read: (calls, opener, tools) =>
        opener === open ? readBlock(calls, tools, close) : readFunction(calls, tools),
    }),
    grammar: (tools, options) =>
      callSequence(
        tools.map((tool) => tagOf(tool, tags)),
        { trigger: open, separator: "\n" },
        options,
      ),
    write: (calls) => calls.map((call) => write(call, tags)).join("\n"),
    newCallId,
  };
}

function* readBlock(calls: CallDraft[], tools: readonly Tool[], close: string): Reading<void> {
  yield* marker(yield* pastBlanks(), FUNCTION);
  yield* readFunction(calls, tools);
  yield* marker(yield* pastBlanks(), close);
}

function* readFunction(calls: CallDraft[], tools: readonly Tool[]): Reading<void> {
  const name = yield* readName();
  const parameters = parametersOf(tools, name);
  const open = openCall(calls, name);
  for (;;) {
    const found = yield* marker(yield* pastBlanks(), PARAMETER, FUNCTION_END);
    if (found === FUNCTION_END) break;
    const key = yield* readName();
    const text = yield* argumentText(PARAMETER_END, isJsonOnly(parameters, key));
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

/** Returns the grammar of a call. xgrammar's own format allows no multi-line strings, and fails on empty schemas. */
function tagOf(tool: Tool, { open, close, margin }: Tags): TagFormat {
  // The parser accepts a string with or without a newline before its end tag.
  const content = parameterSequence(tool, (key, schema) =>
    bareValue(schema, { begin: `\n${PARAMETER}${key}>${margin}`, end: PARAMETER_END, margin }),
  );
  const begin = `${open}\n${FUNCTION}${tool.name}>`;
  return { type: "tag", begin, content, end: `\n${FUNCTION_END}\n${close}` };
}

function write({ name, arguments: given }: Call, { open, close, margin }: Tags): string {
  const parameters = Object.entries(JSON.parse(given)).map(
    ([key, each]) => `${PARAMETER}${key}>${margin}${textOf(each)}${margin}${PARAMETER_END}\n`,
  );
  return `${open}\n${FUNCTION}${name}>\n${parameters.join("")}${FUNCTION_END}\n${close}`;
}
