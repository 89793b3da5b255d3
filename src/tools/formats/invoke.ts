// MiniMax M2, and DeepSeek V3.2 and V4, whose tags have a prefix and tell strings from other values:
// <minimax:tool_call>
// <invoke name="get_weather">
// <parameter name="city">Paris</parameter>
// </invoke>
// </minimax:tool_call>
// <｜DSML｜function_calls>
// <｜DSML｜invoke name="get_weather">
// <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
// </｜DSML｜invoke>
// </｜DSML｜function_calls>
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import {
  argumentText,
  bareValue,
  isJsonOnly,
  jsonIn,
  jsonOfText,
  parameterSequence,
  parametersOf,
  textOf,
  typesOf,
} from "../syntax/bare-value.ts";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type Call,
  type CallDraft,
  newCallId,
  type Tool,
  type ToolFormat,
} from "../syntax/format.ts";
import { callList, choicesOf, oneOf } from "../syntax/grammar.ts";
import { openCall } from "../syntax/literal-value.ts";
import { marker, pastBlanks, type Reading, until } from "../syntax/reading.ts";

type Tags = {
  /** Tag before all calls. */
  open: string;
  close: string;
  /** Text before a function's or parameter's name, up to the opening quote. */
  invoke: string;
  invokeEnd: string;
  parameter: string;
  parameterEnd: string;
};

// Texts after a parameter's name: without a flag, for strings, and for other values.
const UNTOLD = '">';
const STRING = '" string="true">';
const OTHER = '" string="false">';

const DSML = "｜DSML｜";

export const minimax = invokeFormat("minimax", tagsOf("minimax:tool_call", ""), {
  markers: ["<minimax:tool_call>", "</minimax:tool_call>"],
  value: (schema, begin, end) => bareValue(schema, { begin: begin + UNTOLD, end }),
  mark: () => UNTOLD,
});
export const deepseekV32 = dsmlFormat("deepseek-v3.2", "function_calls");
export const deepseekV4 = dsmlFormat("deepseek-v4", "tool_calls");

function dsmlFormat(name: string, section: string): ToolFormat {
  return invokeFormat(name, tagsOf(DSML + section, DSML), {
    markers: [DSML],
    value: toldValue,
    mark: (given) => (typeof given === "string" ? STRING : OTHER),
  });
}

function tagsOf(section: string, prefix: string): Tags {
  return {
    open: `<${section}>`,
    close: `</${section}>`,
    invoke: `<${prefix}invoke name="`,
    invokeEnd: `</${prefix}invoke>`,
    parameter: `<${prefix}parameter name="`,
    parameterEnd: `</${prefix}parameter>`,
  };
}

type Dialect = Pick<ToolFormat, "markers"> & {
  /** Returns the grammar of a value between `begin` and `end`, including the text after the parameter's name. */
  value(schema: Record<string, unknown>, begin: string, end: string): StructuralTagFormat;
  /** Returns the text after the name of a parameter with this value. */
  mark(given: unknown): string;
};

function invokeFormat(name: string, tags: Tags, { markers, value, mark }: Dialect): ToolFormat {
  const { open, close, invoke, invokeEnd, parameter, parameterEnd } = tags;
  const tagOf = (tool: Tool): TagFormat => ({
    type: "tag",
    begin: `${invoke}${tool.name}">`,
    content: parameterSequence(tool, (key, schema) =>
      value(schema, `\n${parameter}${key}`, parameterEnd),
    ),
    end: `\n${invokeEnd}`,
  });
  const write = ({ name, arguments: given }: Call) => {
    const parameters = Object.entries(JSON.parse(given)).map(
      ([key, each]) => `\n${parameter}${key}${mark(each)}${textOf(each)}${parameterEnd}`,
    );
    return `${invoke}${name}">${parameters.join("")}\n${invokeEnd}`;
  };
  return {
    name,
    markers,
    parser: blockParser({
      openers: [open],
      read: (calls, _opener, tools) => read(calls, tools, tags),
    }),
    grammar: (tools, options) =>
      callList(
        tools.map(tagOf),
        { trigger: open, begin: `${open}\n`, separator: "\n", end: `\n${close}` },
        options,
      ),
    write: (calls) => `${open}\n${calls.map(write).join("\n")}\n${close}`,
    newCallId,
  };
}

function* read(calls: CallDraft[], tools: readonly Tool[], tags: Tags): Reading<void> {
  const { close, invoke, invokeEnd, parameter, parameterEnd } = tags;
  while ((yield* marker(yield* pastBlanks(), invoke, close)) === invoke) {
    const name = yield* until('">');
    const parameters = parametersOf(tools, name);
    const open = openCall(calls, name);
    while ((yield* marker(yield* pastBlanks(), parameter, invokeEnd)) === parameter) {
      const key = yield* until('"');
      const mark = yield* marker('"', UNTOLD, STRING, OTHER);
      const isJson = mark === OTHER || (mark === UNTOLD && isJsonOnly(parameters, key));
      const text = yield* argumentText(parameterEnd, isJson);
      const told =
        mark === STRING ? JSON.stringify(text) : mark === OTHER ? jsonIn(text) : undefined;
      open.add([key, told ?? jsonOfText(text, parameters, key)]);
    }
    open.close();
  }
}

function toldValue(
  schema: Record<string, unknown>,
  begin: string,
  end: string,
): StructuralTagFormat {
  const types = typesOf(schema);
  const choices = choicesOf(schema);
  const strings = choices?.filter((choice) => typeof choice === "string");
  const others = choices?.filter((choice) => typeof choice !== "string");
  const elements: TagFormat[] = [];
  if (types?.has("string") ?? true) {
    const content: StructuralTagFormat = strings ? oneOf(strings) : { type: "any_text" };
    elements.push({ type: "tag", begin: begin + STRING, content, end });
  }
  if (!types || [...types].some((type) => type !== "string")) {
    const content: StructuralTagFormat = others
      ? oneOf(others.map(textOf))
      : { type: "json_schema", json_schema: schema };
    elements.push({ type: "tag", begin: begin + OTHER, content, end });
  }
  return { type: "or", elements };
}
