// Gemma 2 and 3, whose templates do not support tools. Google documents three ways to prompt for calls: a Python list
// or JSON as the whole message, and Python in a fence, which is what instructions.ts asks for:
// ```tool_code
// get_weather(city="Paris", days=3)
// ```
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList } from "../syntax/grammar.ts";
import { jsonCall } from "../syntax/json-call.ts";
import { pythonBlock, pythonList, pythonTag, writePython } from "../syntax/python-call.ts";
import type { Reading } from "../syntax/reading.ts";

const FENCE = "```";
const OPEN = `${FENCE}tool_code`;

export const gemma: ToolFormat = {
  name: "gemma",
  markers: [],
  parser: blockParser({ openers: [OPEN], read: (calls) => pythonBlock(calls, FENCE), readFirst }),
  grammar: (tools, options) =>
    callList(
      tools.map(pythonTag),
      { trigger: OPEN, begin: `${OPEN}\n`, separator: "\n", end: `\n${FENCE}` },
      options,
    ),
  write: (calls) => `${OPEN}\n${calls.map(writePython).join("\n")}\n${FENCE}`,
  newCallId,
};

function* readFirst(calls: CallDraft[]): Reading<void> {
  const first = yield;
  if (first === "{") yield* jsonCall(calls, first);
  else yield* pythonList(calls, first);
}
