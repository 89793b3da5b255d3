// Apertus, where a function's name is the key of its arguments:
// <|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>
import type { TagFormat } from "@mlc-ai/web-xgrammar";
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
import { jsonString, jsonArguments as readArguments } from "../syntax/json-call.ts";
import { marker, need, pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "<|tools_prefix|>";
const CLOSE = "<|tools_suffix|>";
const list = { begin: `${OPEN}[`, separator: ", ", end: `]${CLOSE}` };

export const apertus: ToolFormat = {
  name: "apertus",
  markers: [OPEN, CLOSE],
  thought: thoughtMarks("<|inner_prefix|>", "<|inner_suffix|>"),
  parser: blockParser({ openers: [OPEN], read }),
  grammar: (tools, options) => callList(tools.map(tagOf), { trigger: OPEN, ...list }, options),
  write: (calls) => list.begin + calls.map(write).join(list.separator) + list.end,
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  need(yield* pastBlanks(), "[");
  for (let char = ","; char !== "]"; char = yield* pastBlanks()) {
    need(char, ",");
    need(yield* pastBlanks(), "{");
    const call: CallDraft = { name: yield* jsonString(yield* pastBlanks()), arguments: "" };
    calls.push(call);
    need(yield* pastBlanks(), ":");
    yield* readArguments(call, yield* pastBlanks());
    need(yield* pastBlanks(), "}");
  }
  yield* marker(yield* pastBlanks(), CLOSE);
}

function tagOf(tool: Tool): TagFormat {
  const begin = `{${JSON.stringify(tool.name)}: `;
  return { type: "tag", begin, content: jsonArguments(tool), end: "}" };
}

function write({ name, arguments: given }: Call): string {
  return `{${JSON.stringify(name)}: ${given}}`;
}
