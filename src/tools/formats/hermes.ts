// Hermes, Qwen 2.5 and 3, SmolLM 3, Granite 4, Ernie, EXAONE 4, and the fallback for templates without tools:
// <tool_call>
// {"name": "get_weather", "arguments": {"city": "Paris"}}
// </tool_call>
// LongCat, with tags of its own, and InternLM, which has parameters:
// <|action_start|><|plugin|>
// {"name": "get_weather", "parameters": {"city": "Paris"}}<|action_end|>
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat, thoughtMarks } from "../syntax/format.ts";
import { callSequence, jsonTag } from "../syntax/grammar.ts";
import { jsonCall, writeJson } from "../syntax/json-call.ts";
import { marker, pastBlanks, type Reading } from "../syntax/reading.ts";

export const hermes = taggedJson("hermes", { open: "<tool_call>", close: "</tool_call>" });

export const longcat = taggedJson("longcat", {
  open: "<longcat_tool_call>",
  close: "</longcat_tool_call>",
  thought: thoughtMarks("<longcat_think>", "</longcat_think>"),
});

export const internlm = taggedJson("internlm", {
  open: "<|action_start|><|plugin|>",
  close: "<|action_end|>",
  markers: ["<|action_start|>", "<|plugin|>", "<|action_end|>"],
  key: "parameters",
  end: "",
});

type Tags = Pick<ToolFormat, "thought"> & {
  open: string;
  close: string;
  markers?: readonly string[];
  key?: string;
  /** Text between a call's JSON and the closing tag. */
  end?: string;
};

function taggedJson(name: string, tags: Tags): ToolFormat {
  const { open, close, markers = [open, close], key = "arguments", end = "\n", thought } = tags;
  return {
    name,
    markers,
    ...(thought && { thought }),
    parser: blockParser({ openers: [open], read: (calls) => read(calls, close) }),
    grammar: (tools, options) =>
      callSequence(
        tools.map((tool) => jsonTag(tool, { before: `${open}\n`, key, after: `${end}${close}` })),
        { trigger: open, separator: "\n" },
        options,
      ),
    write: (calls) =>
      calls.map((call) => `${open}\n${writeJson(call, key)}${end}${close}`).join("\n"),
    newCallId,
  };
}

function* read(calls: CallDraft[], close: string): Reading<void> {
  yield* jsonCall(calls, yield* pastBlanks());
  yield* marker(yield* pastBlanks(), close);
}
