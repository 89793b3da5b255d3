// For chat templates that know nothing of tools, or not of calls: messages that say it in their text.
import type { Call, Tool, ToolFormat } from "./format.ts";
import { gemma } from "./formats/gemma.ts";
import { phi } from "./formats/phi.ts";

export type Message = {
  readonly role: string;
  readonly content?: unknown;
  readonly [field: string]: unknown;
};

/** How a model is told of tools, and of what they returned. */
type Teaching = {
  tools(messages: readonly Message[], tools: readonly Tool[]): Message[];
  results(texts: readonly string[]): Message;
};

/** Messages for a template that does not know tools: they are told of, and calls and results are text. */
export function withInstructions(
  messages: readonly Message[],
  tools: readonly Tool[],
  format: ToolFormat,
): Message[] {
  const teaching = format === gemma ? gemmaTeaching : format === phi ? phiTeaching : hermesTeaching;
  const written = withWrittenCalls(messages, format);
  return teaching.tools(withResults(written, teaching.results), tools);
}

/** Messages for a template that does not know calls: they are text of the assistant. */
export function withWrittenCalls(messages: readonly Message[], format: ToolFormat): Message[] {
  return messages.map((message) => {
    const { tool_calls, ...rest } = message;
    const calls = callsOf(tool_calls);
    if (calls.length === 0) return message;
    return { ...rest, content: joined(textOf(message), format.write(calls), "\n") };
  });
}

/** Results that follow each other are one message: many templates want turns to alternate. */
function withResults(messages: readonly Message[], results: Teaching["results"]): Message[] {
  const all: Message[] = [];
  let texts: string[] = [];
  const close = () => {
    if (texts.length > 0) all.push(results(texts));
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

const hermesTeaching: Teaching = {
  tools(messages, tools) {
    const { system, others } = parted(messages);
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
  results: (texts) => ({
    role: "user",
    content: texts.map((text) => `<tool_response>\n${text}\n</tool_response>`).join("\n"),
  }),
};

/** Gemma has no system: it is told in the first question. */
const gemmaTeaching: Teaching = {
  tools(messages, tools) {
    const { system, others } = parted(messages);
    const text = `You may call functions. To do so, write the calls and nothing else, one a line:
\`\`\`tool_code
function_name(parameter="value", other_parameter=5)
\`\`\`
What they return comes as \`\`\`tool_output. These are the functions:
${JSON.stringify(tools)}`;
    const told = joined(system, text);
    const first = others.findIndex(({ role }) => role === "user");
    if (first < 0) return [{ role: "user", content: told }, ...others];
    const question = others[first]!;
    return others.with(first, { ...question, content: joined(told, textOf(question)) });
  },
  results: (texts) => ({
    role: "user",
    content: texts.map((text) => `\`\`\`tool_output\n${text}\n\`\`\``).join("\n"),
  }),
};

/** Phi's template writes a field of the system's message, and has a token for what comes back. */
const phiTeaching: Teaching = {
  tools(messages, tools) {
    const { system, others } = parted(messages);
    const content = system || "You are a helpful assistant with some tools.";
    return [{ role: "system", content, tools: JSON.stringify(tools) }, ...others];
  },
  results: (texts) => ({ role: "tool_response", content: texts.join("\n") }),
};

function parted(messages: readonly Message[]): { system: string; others: Message[] } {
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

/** Arguments come as values or, where they could not be read, as text. */
function callsOf(toolCalls: unknown): Call[] {
  if (!Array.isArray(toolCalls)) return [];
  return toolCalls.map(({ function: { name, arguments: given } }: ToolCall) => {
    const parsed = typeof given === "string" ? parsedOr(given) : given;
    const isObject = typeof parsed === "object" && parsed !== null;
    return { name, arguments: JSON.stringify(isObject ? parsed : { arguments: given }) };
  });
}

function parsedOr(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
