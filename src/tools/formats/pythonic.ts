// Llama 3.2 and 4: [get_weather(city="Paris", days=3), now()] as the whole message, between
// <|python_start|> and <|python_end|> or not.
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList } from "../syntax/grammar.ts";
import { pythonList, pythonTag, writePython } from "../syntax/python-call.ts";
import { pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "<|python_start|>";
const CLOSE = "<|python_end|>";

export const pythonic: ToolFormat = {
  name: "pythonic",
  markers: [OPEN, CLOSE],
  parser: blockParser({ openers: [OPEN], closers: [CLOSE], read, readFirst }),
  grammar: (tools, options) =>
    callList(
      tools.map(pythonTag),
      { trigger: undefined, begin: "[", separator: ", ", end: "]" },
      options,
    ),
  write: (calls) => `[${calls.map(writePython).join(", ")}]`,
  newCallId,
};

function* read(calls: CallDraft[]): Reading<void> {
  yield* pythonList(calls, yield* pastBlanks());
}

function* readFirst(calls: CallDraft[]): Reading<void> {
  yield* pythonList(calls, yield);
}
