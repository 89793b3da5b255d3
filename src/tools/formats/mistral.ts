// Mistral, in two forms. Both are parsed; the template tells which one the model writes:
// [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]
// [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}
import type { StructuralTagFormat, TagFormat } from "@mlc-ai/web-xgrammar";
import { blockParser } from "../syntax/block-parser.ts";
import {
  type CallDraft,
  randomAlphanumerics,
  type Tool,
  type ToolFormat,
  thoughtMarks,
} from "../syntax/format.ts";
import { adjoiningCalls, callList, jsonArguments, jsonTag } from "../syntax/grammar.ts";
import { jsonCalls, jsonArguments as readArguments, writeJson } from "../syntax/json-call.ts";
import { type At, advance, NAME, word } from "../syntax/literal-value.ts";
import { literal, need, pastBlanks, type Reading } from "../syntax/reading.ts";

const OPEN = "[TOOL_CALLS]";
const ARGUMENTS = "[ARGS]";
const ID = "[CALL_ID]";

const common = {
  markers: [OPEN, ARGUMENTS, ID],
  parser: blockParser({ openers: [OPEN], read }),
  // Mistral's templates require nine characters.
  newCallId: () => randomAlphanumerics(9),
};

export const mistralList: ToolFormat = {
  ...common,
  name: "mistral-list",
  grammar: (tools, options) =>
    callList(
      tools.map((tool) => jsonTag(tool, {})),
      { trigger: OPEN, begin: `${OPEN}[`, separator: ", ", end: "]" },
      options,
    ),
  write: (calls) => `${OPEN}[${calls.map((call) => writeJson(call)).join(", ")}]`,
};

export const mistral: ToolFormat = {
  ...common,
  name: "mistral",
  grammar: (tools, options) => adjoiningCalls(tools.map(tagOf), OPEN, options),
  write: (calls) =>
    calls.map(({ name, arguments: given }) => `${OPEN}${name}${ARGUMENTS}${given}`).join(""),
};

/** The format of Magistral and Ministral 3, which may think before they answer. */
export const mistralThinking: ToolFormat = {
  ...mistral,
  name: "mistral-thinking",
  thought: thoughtMarks("[THINK]", "[/THINK]"),
};

function tagOf(tool: Tool): TagFormat {
  const elements: StructuralTagFormat[] = [
    { type: "regex", pattern: "(\\[CALL_ID\\][a-zA-Z0-9]{9})?\\[ARGS\\]" },
    jsonArguments(tool),
  ];
  const content: StructuralTagFormat = { type: "sequence", elements };
  return { type: "tag", begin: `${OPEN}${tool.name}`, content, end: "" };
}

function* read(calls: CallDraft[]): Reading<void> {
  const at: At = { char: yield* pastBlanks() };
  if (at.char === "[" || at.char === "{") return yield* jsonCalls(calls, at.char);
  const call: CallDraft = { name: yield* word(at, NAME), arguments: "" };
  calls.push(call);
  // Models may omit the call's id and the [ARGS] before the arguments.
  if (at.char === "[") yield* skipTags(at);
  yield* readArguments(call, at.char);
}

function* skipTags(at: At): Reading<void> {
  let char = yield;
  if (char === "C") {
    yield* literal("ALL_ID]");
    at.char = yield;
    yield* word(at, /\w/);
    need(at.char, "[");
    char = yield;
  }
  need(char, "A");
  yield* literal("RGS]");
  yield* advance(at);
}
