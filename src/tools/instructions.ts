// Writes tools and calls into the text of messages, for chat templates that do not support them.
import { deepseek, deepseekV31 } from "./formats/deepseek.ts";
import { gemma } from "./formats/gemma.ts";
import { phi } from "./formats/phi.ts";
import type { Call, Tool, ToolFormat } from "./syntax/format.ts";
import { jsonOrText } from "./syntax/json-call.ts";

export type Message = {
  readonly role: string;
  readonly content?: unknown;
  readonly [field: string]: unknown;
};

type Instructions = {
  tools(messages: readonly Message[], tools: readonly Tool[]): Message[];
  results(texts: readonly string[]): Message[];
};

/** Describes tools in a message, and writes calls and results as text, for templates that do not render tools. */
export function withInstructions(
  messages: readonly Message[],
  tools: readonly Tool[],
  format: ToolFormat,
): Message[] {
  const instructions = instructionsOf.get(format) ?? hermesInstructions;
  const written = withWrittenCalls(messages, format);
  return instructions.tools(withResults(written, instructions.results), tools);
}

/** Writes calls as text of the assistant's message, for templates that do not render calls. */
export function withWrittenCalls(messages: readonly Message[], format: ToolFormat): Message[] {
  return messages.map((message) => {
    const { tool_calls, ...rest } = message;
    const calls = callsOf(tool_calls);
    if (calls.length === 0) return message;
    return { ...rest, content: joined(textOf(message), format.write(calls), "\n") };
  });
}

/** Replaces each run of consecutive tool results by the messages that `results` makes from their texts. */
function withResults(messages: readonly Message[], results: Instructions["results"]): Message[] {
  const all: Message[] = [];
  let texts: string[] = [];
  const close = () => {
    if (texts.length > 0) all.push(...results(texts));
    texts = [];
  };
  for (const message of messages) {
    if (message.role === "tool") texts.push(textOf(message));
    else {
      close();
      all.push(message);
    }
  }
  close();
  return all;
}

const hermesInstructions: Instructions = {
  tools(messages, tools) {
    const { system, others } = splitSystem(messages);
    const signatures = tools.map((tool) => JSON.stringify({ type: "function", function: tool }));
    const text = `You may call functions. Their signatures stand within <tools></tools>, one a line:
<tools>
${signatures.join("\n")}
</tools>

For each call, write a JSON object with the function's name and its arguments within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <arguments-object>}
</tool_call>
What the functions return comes within <tool_response></tool_response>.`;
    return [{ role: "system", content: joined(system, text) }, ...others];
  },
  // One message of the user holds all results, because many templates require alternating turns.
  results: (texts) => [
    {
      role: "user",
      content: texts.map((text) => `<tool_response>\n${text}\n</tool_response>`).join("\n"),
    },
  ],
};

/** Instructions for Gemma, which has no system role: the first user message describes the tools. */
const gemmaInstructions: Instructions = {
  tools(messages, tools) {
    const { system, others } = splitSystem(messages);
    const text = `You may call functions. To do so, write the calls and nothing else, one a line:
\`\`\`tool_code
function_name(parameter="value", other_parameter=5)
\`\`\`
What they return comes as \`\`\`tool_output. These are the functions:
${JSON.stringify(tools)}`;
    const described = joined(system, text);
    const first = others.findIndex(({ role }) => role === "user");
    if (first < 0) return [{ role: "user", content: described }, ...others];
    const question = others[first]!;
    return others.with(first, { ...question, content: joined(described, textOf(question)) });
  },
  results: (texts) => [
    { role: "user", content: texts.map((text) => `\`\`\`tool_output\n${text}\n\`\`\``).join("\n") },
  ],
};

/** Instructions for Phi. Its template renders tools from a system message's field, and has a role for results. */
const phiInstructions: Instructions = {
  tools(messages, tools) {
    const { system, others } = splitSystem(messages);
    const content = system || "You are a helpful assistant with some tools.";
    return [{ role: "system", content, tools: JSON.stringify(tools) }, ...others];
  },
  results: (texts) => [{ role: "tool_response", content: texts.join("\n") }],
};

/** Returns instructions for DeepSeek's templates, which render results, but not tools or parsed arguments. */
function deepseekInstructions(format: ToolFormat): Instructions {
  const example = format.write([{ name: "function_name", arguments: '{"parameter": "value"}' }]);
  return {
    tools(messages, tools) {
      const { system, others } = splitSystem(messages);
      const signatures = tools.map((tool) => JSON.stringify(tool));
      const text = `## Tools
You may call these functions, whose parameters are JSON schemas:
${signatures.join("\n")}

To call a function, end your message with its name and its arguments in exactly this form:
${example}
For several calls, repeat what stands between the first and the last mark.`;
      return [{ role: "system", content: joined(system, text) }, ...others];
    },
    results: (texts) => texts.map((content) => ({ role: "tool", content })),
  };
}

const instructionsOf: ReadonlyMap<ToolFormat, Instructions> = new Map([
  [gemma, gemmaInstructions],
  [phi, phiInstructions],
  [deepseek, deepseekInstructions(deepseek)],
  [deepseekV31, deepseekInstructions(deepseekV31)],
]);

function splitSystem(messages: readonly Message[]): { system: string; others: Message[] } {
  const [first, ...rest] = messages;
  const isSystem = first?.role === "system" || first?.role === "developer";
  return isSystem ? { system: textOf(first), others: rest } : { system: "", others: [...messages] };
}

function joined(before: string, after: string, between = "\n\n"): string {
  return before === "" ? after : before + between + after;
}

function textOf({ content }: Message): string {
  if (!Array.isArray(content)) return typeof content === "string" ? content : "";
  return content.map(({ text }) => text).join("\n");
}

type ToolCall = { function: { name: string; arguments: unknown } };

/** Reads a message's calls. Their arguments are values, or text if they could not be parsed. */
function callsOf(toolCalls: unknown): Call[] {
  if (!Array.isArray(toolCalls)) return [];
  return toolCalls.map(({ function: { name, arguments: given } }: ToolCall) => {
    const parsed = typeof given === "string" ? jsonOrText(given) : given;
    const isObject = typeof parsed === "object" && parsed !== null;
    return { name, arguments: JSON.stringify(isObject ? parsed : { arguments: given }) };
  });
}
