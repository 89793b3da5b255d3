// LFM 2: <|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>
import { blockParser } from "../block-parser.ts";
import { newCallId, type ToolFormat } from "../format.ts";
import { callList } from "../grammar.ts";
import { pythonBlock, pythonTag, writePython } from "../python-call.ts";

const OPEN = "<|tool_call_start|>";
const CLOSE = "<|tool_call_end|>";

export const lfm: ToolFormat = {
  name: "lfm",
  markers: [OPEN, CLOSE],
  parser: (tools) =>
    blockParser({ openers: [OPEN], read: (calls) => pythonBlock(calls, CLOSE) }, tools),
  grammar: (tools, options) =>
    callList(
      tools.map(pythonTag),
      { trigger: OPEN, begin: `${OPEN}[`, separator: ", ", end: `]${CLOSE}` },
      options,
    ),
  write: (calls) => `${OPEN}[${calls.map(writePython).join(", ")}]${CLOSE}`,
  newCallId,
};
