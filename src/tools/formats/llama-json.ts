// Llama 3: {"name": "get_weather", "parameters": {"city": "Paris"}} as the whole message, after
// <|python_tag|> or not; several calls are separated by semicolons or newlines.
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callSequence, jsonTag } from "../syntax/grammar.ts";
import { jsonCalls, writeJson } from "../syntax/json-call.ts";
import { pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "<|python_tag|>";

export const llamaJson: ToolFormat = {
  name: "llama-json",
  markers: [OPEN],
  parser: blockParser({ openers: [OPEN], read, readFirst, readNext }),
  grammar: (tools, options) =>
    callSequence(
      tools.map((tool) => jsonTag(tool, { key: "parameters" })),
      { trigger: undefined, separator: "; " },
      options,
    ),
  write: (calls) => calls.map((call) => writeJson(call, "parameters")).join("; "),
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  yield* jsonCalls(calls, yield* pastBlanks());
}

function* readFirst(calls: CallDraft[]): Reading<void> {
  yield* jsonCalls(calls, yield);
}

function* readNext(calls: CallDraft[]): Reading<void> {
  const first = yield;
  yield* jsonCalls(calls, first === ";" ? yield* pastBlanks() : first);
}
