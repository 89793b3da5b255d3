// Command R7B, Command A and later ones, whose calls are numbered:
// <|START_ACTION|>[
//     {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}
// ]<|END_ACTION|>
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type Call,
  type CallDraft,
  newCallId,
  type Tool,
  type ToolFormat,
  thoughtMarks,
} from "../syntax/format.ts";
import { callList, jsonArguments } from "../syntax/grammar.ts";
import { jsonCalls } from "../syntax/json-call.ts";
import { marker, pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "<|START_ACTION|>";
const CLOSE = "<|END_ACTION|>";
const CALL = '{"tool_call_id": "';
const list = { begin: `${OPEN}[\n    `, separator: ",\n    ", end: `\n]${CLOSE}` };

export const cohere: ToolFormat = {
  name: "cohere",
  markers: [OPEN, CLOSE],
  thought: thoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
  parser: blockParser({ openers: [OPEN], read }),
  grammar: (tools, options) =>
    tools.length === 0 ? undefined : callList([anyOf(tools)], { trigger: OPEN, ...list }, options),
  write: (calls) => list.begin + calls.map(write).join(list.separator) + list.end,
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  yield* jsonCalls(calls, yield* pastBlanks());
  yield* marker(yield* pastBlanks(), CLOSE);
}

/** Returns the grammar of a call to any of the tools. It is one tag, because the calls of all tools begin alike. */
function anyOf(tools: readonly Tool[]): TagFormat {
  const named = tools.map((tool): StructuralTagFormat => {
    const value = `", "tool_name": ${JSON.stringify(tool.name)}, "parameters": `;
    return { type: "sequence", elements: [{ type: "const_string", value }, jsonArguments(tool)] };
  });
  const elements: StructuralTagFormat[] = [
    { type: "regex", pattern: "[0-9]{1,4}" },
    { type: "or", elements: named },
  ];
  return { type: "tag", begin: CALL, content: { type: "sequence", elements }, end: "}" };
}

function write({ name, arguments: given }: Call, index: number): string {
  return `${CALL}${index}", "tool_name": ${JSON.stringify(name)}, "parameters": ${given}}`;
}
