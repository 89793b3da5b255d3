// Calls as Python writes them, in a block between two marks:
// OLMo 3:
// <function_calls>
// get_weather(city="Paris", days=3)
// now()
// </function_calls>
// LFM 2: <|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>
import { blockParser } from "../syntax/block-parser.ts";
import { newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList } from "../syntax/grammar.ts";
import { pythonBlock, pythonTag, writePython } from "../syntax/python-call.ts";

export const olmo = pythonCalls("olmo", {
  marks: ["<function_calls>", "</function_calls>"],
  around: ["\n", "\n"],
  separator: "\n",
});

export const lfm = pythonCalls("lfm", {
  marks: ["<|tool_call_start|>", "<|tool_call_end|>"],
  around: ["[", "]"],
  separator: ", ",
});

type Block = {
  marks: readonly [open: string, close: string];
  /** Texts between the opening mark and the calls, and between the calls and the closing mark. */
  around: readonly [before: string, after: string];
  separator: string;
};

function pythonCalls(name: string, { marks, around, separator }: Block): ToolFormat {
  const [open, close] = marks;
  const [begin, end] = [open + around[0], around[1] + close];
  return {
    name,
    markers: marks,
    parser: blockParser({ openers: [open], read: (calls) => pythonBlock(calls, close) }),
    grammar: (tools, options) =>
      callList(tools.map(pythonTag), { trigger: open, begin, separator, end }, options),
    write: (calls) => begin + calls.map(writePython).join(separator) + end,
    newCallId,
  };
}
