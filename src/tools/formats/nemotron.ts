// Nemotron before its version 3: <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>
import { blockParser } from "../block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../format.ts";
import { callList, jsonTag } from "../grammar.ts";
import { jsonCalls, writeJson } from "../json-call.ts";
import { marker, pastBlanks, type Reading } from "../reading.ts";

const OPEN = "<TOOLCALL>";
const CLOSE = "</TOOLCALL>";

export const nemotron: ToolFormat = {
  name: "nemotron",
  markers: [OPEN, CLOSE],
  parser: (tools) => blockParser({ openers: [OPEN], read }, tools),
  grammar: (tools, options) =>
    callList(
      tools.map((tool) => jsonTag(tool, {})),
      { trigger: OPEN, begin: `${OPEN}[`, separator: ", ", end: `]${CLOSE}` },
      options,
    ),
  write: (calls) => `${OPEN}[${calls.map((call) => writeJson(call)).join(", ")}]${CLOSE}`,
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  yield* jsonCalls(calls, yield* pastBlanks());
  yield* marker(yield* pastBlanks(), CLOSE);
}
