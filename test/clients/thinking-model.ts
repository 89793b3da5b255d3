// A model that thinks, says something and calls two tools at once, whatever it is asked: what every client is to make of
// that is known beforehand.
import { withDialect } from "../support/dialect-model.ts";

const says = [
  ...["I wond", "er.", "</th", "ink>\n\n", "Let me see.\n", '<tool_call>\n{"name": "now", '],
  ...['"arguments": {}}\n</tool', "_call>", '\n<tool_call>\n{"name": "get_weather", '],
  ...['"arguments": {"city": "Rome", ', '"days": 3}}\n</to', "ol_call>"],
];

/** Besides the format of calls: that the template switches thoughts, and where it has thoughts, results and effort. */
const taught =
  'as <tool_call>{"name": <name>, "arguments": <object>}</tool_call> {# </think> #}' +
  "{% for m in messages %}{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}" +
  "{% if m.tool_call_id %}({{ m.name }} {{ m.tool_call_id }}){% endif %}{% endfor %}" +
  "{% if reasoning_effort %}Think: {{ reasoning_effort }}.{% endif %}";

export const thought = "I wonder.";
export const said = "Let me see.";

export const now = { name: "now", parameters: { type: "object" as const, properties: {} } };
export const weather = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: {
    type: "object" as const,
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city", "days"],
  },
};
export const rome = { city: "Rome", days: 3 };

type ThinkingModelOptions = {
  /** Without being asked to; not every API can ask for it. */
  always?: boolean;
  args?: readonly string[];
};

/** For a server with the model. */
export function withThinkingModel({ always = false, args = [] }: ThinkingModelOptions = {}) {
  return withDialect(
    { taught: always ? `${taught}{% set enable_thinking = true %}` : taught, says },
    { args: ["--log-prompts", ...args] },
  );
}

/** The model has a token for every byte, and one for each control token. */
export function tokensIn(prompt: string): number {
  return Buffer.byteLength(prompt.replaceAll(/<\|im_(?:start|end)\|>/g, "_"));
}
