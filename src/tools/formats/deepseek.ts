// DeepSeek, in two forms. Both are parsed; the template tells which one the model writes. V3 and R1:
// <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
// ```json
// {"city": "Paris"}
// ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
// V3.1:
// <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
import { blockParser } from "../syntax/block-parser.ts";
import { type CallDraft, newCallId, type ToolFormat } from "../syntax/format.ts";
import { callList, jsonArguments } from "../syntax/grammar.ts";
import { jsonArguments as readArguments } from "../syntax/json-call.ts";
import { type At, NAME, word } from "../syntax/literal-value.ts";
import { marker, pastBlanks, type Reading, until } from "../syntax/reading.ts";

const OPEN = "<｜tool▁calls▁begin｜>";
const CLOSE = "<｜tool▁calls▁end｜>";
const CALL = "<｜tool▁call▁begin｜>";
const CALL_END = "<｜tool▁call▁end｜>";
const SEPARATOR = "<｜tool▁sep｜>";
const FENCE = "```";

export const deepseek = deepseekFormat("deepseek", {
  before: `${CALL}function${SEPARATOR}`,
  between: `\n${FENCE}json\n`,
  after: `\n${FENCE}${CALL_END}`,
  separator: "\n",
});

export const deepseekV31 = deepseekFormat("deepseek-v3.1", {
  before: CALL,
  between: SEPARATOR,
  after: CALL_END,
  separator: "",
});

/** Texts before, between and after a call's name and arguments, and the separator of calls. */
type Layout = Record<"before" | "between" | "after" | "separator", string>;

function deepseekFormat(name: string, layout: Layout): ToolFormat {
  const { before, between, after, separator } = layout;
  return {
    name,
    markers: [OPEN, CLOSE, CALL, CALL_END, SEPARATOR],
    parser: blockParser({ openers: [OPEN], read }),
    grammar: (tools, options) =>
      callList(
        tools.map((tool) => ({
          type: "tag",
          begin: `${tool.name}${between}`,
          content: jsonArguments(tool),
          end: after,
        })),
        { trigger: OPEN, begin: OPEN + before, separator: separator + before, end: CLOSE },
        options,
      ),
    write(calls) {
      const written = calls.map((call) => before + call.name + between + call.arguments + after);
      return `${OPEN}${written.join(separator)}${CLOSE}`;
    },
    newCallId,
  };
}

function* read(calls: CallDraft[]): Reading<void> {
  while ((yield* marker(yield* pastBlanks(), CALL, CLOSE)) === CALL) {
    const head = (yield* until(SEPARATOR)).trim();
    const at: At = { char: yield* pastBlanks() };
    // If the arguments follow directly, the text before the separator is the call's name, otherwise its type.
    const isFenced = at.char !== "{";
    const name = isFenced ? yield* word(at, NAME) : head;
    const call: CallDraft = { name, arguments: "" };
    calls.push(call);
    if (isFenced) {
      yield* marker(at.char, `${FENCE}json`);
      at.char = yield* pastBlanks();
    }
    yield* readArguments(call, at.char);
    if (isFenced) yield* marker(yield* pastBlanks(), FENCE);
    yield* marker(yield* pastBlanks(), CALL_END);
  }
}
