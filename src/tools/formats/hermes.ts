// Hermes, Qwen 2.5 and 3, SmolLM 3, Granite 4, and the fallback for templates without tools:
// <tool_call>
// {"name": "get_weather", "arguments": {"city": "Paris"}}
// </tool_call>
import { blockParser } from "../block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../format.ts";
import { callSequence, jsonTag } from "../grammar.ts";
import { jsonCall, writeJson } from "../json-call.ts";
import { marker, pastBlanks, type Reading } from "../reading.ts";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";

export const hermes: ToolFormat = {
  name: "hermes",
  markers: [OPEN, CLOSE],
  parser: (tools) => blockParser({ openers: [OPEN], read }, tools),
  grammar: (tools, options) =>
    callSequence(
      tools.map((tool) => jsonTag(tool, { before: `${OPEN}\n`, after: `\n${CLOSE}` })),
      { trigger: OPEN, separator: "\n" },
      options,
    ),
  write: (calls) => calls.map((call) => `${OPEN}\n${writeJson(call)}\n${CLOSE}`).join("\n"),
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  yield* jsonCall(calls, yield* pastBlanks());
  yield* marker(yield* pastBlanks(), CLOSE);
}
