// OLMo 3:
// <function_calls>
// get_weather(city="Paris", days=3)
// now()
// </function_calls>
import { blockParser } from "../block-parser.ts";
import { newCallId, type ToolFormat } from "../format.ts";
import { callList } from "../grammar.ts";
import { pythonBlock, pythonTag, writePython } from "../python-call.ts";

const OPEN = "<function_calls>";
const CLOSE = "</function_calls>";

export const olmo: ToolFormat = {
  name: "olmo",
  markers: [OPEN, CLOSE],
  parser: (tools) =>
    blockParser({ openers: [OPEN], read: (calls) => pythonBlock(calls, CLOSE) }, tools),
  grammar: (tools, options) =>
    callList(
      tools.map(pythonTag),
      { trigger: OPEN, begin: `${OPEN}\n`, separator: "\n", end: `\n${CLOSE}` },
      options,
    ),
  write: (calls) => `${OPEN}\n${calls.map(writePython).join("\n")}\n${CLOSE}`,
  newCallId,
};
