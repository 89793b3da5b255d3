// Nemotron before its version 3, and with other tags Hunyuan and Jamba:
// <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
// <tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>
// MiniMax M1, without a list:
// <tool_calls>
// {"name": "get_weather", "arguments": {"city": "Paris"}}
// </tool_calls>
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList, jsonTag } from "../syntax/grammar.ts";
import { jsonCall, jsonCalls, writeJson } from "../syntax/json-call.ts";
import { marker, pastBlanks, type Reading } from "../syntax/reading.ts";

export const nemotron = tagged("nemotron", "TOOLCALL", { begin: "[", separator: ", ", end: "]" });
export const hunyuan = tagged("hunyuan", "tool_calls", { begin: "[", separator: ", ", end: "]" });
export const minimaxM1 = tagged("minimax-m1", "tool_calls", {
  begin: "\n",
  separator: "\n",
  end: "\n",
});

type Around = { begin: string; separator: string; end: string };

function tagged(name: string, tag: string, around: Around): ToolFormat {
  const [open, close] = [`<${tag}>`, `</${tag}>`];
  const { separator } = around;
  const begin = open + around.begin;
  const end = around.end + close;
  return {
    name,
    markers: [open, close],
    parser: blockParser({ openers: [open], read: (calls) => read(calls, close) }),
    grammar: (tools, options) =>
      callList(
        tools.map((tool) => jsonTag(tool, {})),
        { trigger: open, begin, separator, end },
        options,
      ),
    write: (calls) => begin + calls.map((call) => writeJson(call)).join(separator) + end,
    newCallId,
  };
}

/** Reads a list of calls, or calls one after the other without a list. */
function* read(calls: CallDraft[], close: string): Reading<void> {
  const first = yield* pastBlanks();
  yield* jsonCalls(calls, first);
  for (;;) {
    const char = yield* pastBlanks();
    if (first === "[" || char !== "{") return void (yield* marker(char, close));
    yield* jsonCall(calls, char);
  }
}
