// Kimi K2, whose call ids contain the function's name and a counter:
// <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
// <|tool_call_end|><|tool_calls_section_end|>
// The line break before <|tool_call_end|> is not part of the format.
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type Call,
  type CallDraft,
  newCallId,
  type Tool,
  type ToolFormat,
} from "../syntax/format.ts";
import { callList, jsonArguments } from "../syntax/grammar.ts";
import { jsonArguments as readArguments } from "../syntax/json-call.ts";
import { Mismatch, marker, pastBlanks, type Reading, until } from "../syntax/reading.ts";

const OPEN = "<|tool_calls_section_begin|>";
const CLOSE = "<|tool_calls_section_end|>";
const CALL = "<|tool_call_begin|>";
const CALL_END = "<|tool_call_end|>";
const ARGUMENTS = "<|tool_call_argument_begin|>";
const ID = /^(?:functions\.)?(.+):\d+$/;

export const kimi: ToolFormat = {
  name: "kimi",
  markers: [OPEN, CLOSE, CALL, CALL_END, ARGUMENTS],
  parser: blockParser({ openers: [OPEN], read }),
  grammar: (tools, options) =>
    callList(
      tools.map(tagOf),
      { trigger: OPEN, begin: `${OPEN}${CALL}`, separator: CALL, end: CLOSE },
      options,
    ),
  write: (calls) => `${OPEN}${calls.map(write).join("")}${CLOSE}`,
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  while ((yield* marker(yield* pastBlanks(), CALL, CLOSE)) === CALL) {
    const id = (yield* until(ARGUMENTS)).trim();
    const name = ID.exec(id)?.[1];
    if (name === undefined) throw new Mismatch();
    const call: CallDraft = { id, name, arguments: "" };
    calls.push(call);
    yield* readArguments(call, yield* pastBlanks());
    yield* marker(yield* pastBlanks(), CALL_END);
  }
}

function tagOf(tool: Tool): TagFormat {
  const elements: StructuralTagFormat[] = [
    { type: "regex", pattern: "[0-9]{1,4}" },
    { type: "const_string", value: ARGUMENTS },
    jsonArguments(tool),
  ];
  const content: StructuralTagFormat = { type: "sequence", elements };
  return { type: "tag", begin: `functions.${tool.name}:`, content, end: CALL_END };
}

function write({ name, arguments: given }: Call, index: number): string {
  return `${CALL}functions.${name}:${index}${ARGUMENTS}${given}${CALL_END}`;
}
