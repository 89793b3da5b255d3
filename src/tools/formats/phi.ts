// Phi 4 mini and Granite 3, with or without the end marker, and the form of Phi's other templates:
// <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>
// functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList, jsonTag } from "../syntax/grammar.ts";
import { jsonCall, jsonCalls, writeJson } from "../syntax/json-call.ts";
import { need, pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "<|tool_call|>";
const CLOSE = "<|/tool_call|>";
const FUNCTOOLS = "functools[";

export const phi = listFormat("phi", `${OPEN}[`, `]${CLOSE}`);
export const granite = listFormat("granite", `${OPEN}[`, "]");
export const functools = listFormat("functools", FUNCTOOLS, "]");

function listFormat(name: string, begin: string, end: string): ToolFormat {
  const trigger = begin.startsWith(OPEN) ? OPEN : begin;
  return {
    name,
    markers: [OPEN, CLOSE],
    parser: blockParser({ openers: [OPEN, FUNCTOOLS], closers: [CLOSE], read, readNext }),
    grammar: (tools, options) =>
      callList(
        tools.map((tool) => jsonTag(tool, {})),
        { trigger, begin, separator: ", ", end },
        options,
      ),
    write: (calls) => `${begin}${calls.map((call) => writeJson(call)).join(", ")}${end}`,
    newCallId,
  };
}

function* read(calls: CallDraft[], opener: string): Reading<void> {
  yield* jsonCalls(calls, opener === FUNCTOOLS ? "[" : yield* pastBlanks());
}

/** Reads a further call that follows without brackets around the list, which Phi sometimes omits. */
function* readNext(calls: CallDraft[]): Reading<void> {
  need(yield, ",");
  yield* jsonCall(calls, yield* pastBlanks());
}
