// The tools of a request: how the model learns about them, and how its calls are constrained.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";
import type { ChatRequest } from "../api/chat.ts";
import type { Tool as AskedTool } from "../api/tools.ts";
import type { ServedModel } from "../serve/models.ts";
import type { ChatInput, ChatMessage } from "../text/template.ts";
import type { Tool, ToolFormat } from "../tools/format.ts";
import { formatOf } from "../tools/formats.ts";
import { separated } from "../tools/grammar.ts";
import { withInstructions, withWrittenCalls } from "../tools/instructions.ts";
import type { Constraint } from "./constraint.ts";

export type ToolUse = {
  format: ToolFormat;
  /** All tools that the model sees. */
  tools: readonly Tool[];
  /** The constraint on calls; undefined if they are only parsed. */
  constraint: Constraint | undefined;
  /** Schemas that are enforced completely or rejected. */
  strict: readonly unknown[];
  isRequired: boolean;
  isParallel: boolean;
};

/** Undefined if the model must not call tools. */
export function toolUseOf(request: ChatRequest, model: ServedModel): ToolUse | undefined {
  const { tools: asked = [], tool_choice: choice = "auto", parallel_tool_calls } = request;
  if (asked.length === 0 || choice === "none") return undefined;
  const { format } = formatOf(model.text.template);
  const tools = asked.map(toolOf);
  const isNamed = typeof choice === "object";
  const callable = isNamed ? tools.filter(({ name }) => name === choice.function.name) : tools;
  const isRequired = isNamed || choice === "required";
  const isParallel = parallel_tool_calls && !isNamed;
  const grammar = format.grammar(callable, { required: isRequired, parallel: isParallel });
  const strict = asked.flatMap(({ function: { parameters, strict } }) => {
    return strict && parameters ? [parameters] : [];
  });
  return {
    format,
    tools,
    constraint: grammar && { param: "tools", format: grammar, markers: format.markers, strict },
    strict,
    isRequired,
    isParallel,
  };
}

export function toolOf({
  function: { name, description, parameters = noArguments },
}: AskedTool): Tool {
  // Arguments are always an object, even if the schema does not say so.
  return { name, description, parameters: { type: "object", ...parameters } };
}

const noArguments = { properties: {}, additionalProperties: false };

/** The constraint on an answer that may be text or calls. */
export function withCalls(
  form: Constraint | undefined,
  use: ToolUse | undefined,
): Constraint | undefined {
  if (!use || !form) return form ?? use?.constraint;
  const call = use.format.grammar(use.tools, { required: true, parallel: use.isParallel });
  if (use.isRequired || !call) return use.constraint;
  const document = isSeries(call) ? asSeries(form.format) : form.format;
  return {
    ...form,
    format: { type: "or", elements: [document, call] },
    markers: use.format.markers,
    strict: [...(form.strict ?? []), ...use.strict],
  };
}

/** Whether more may follow each of its parts. */
function isSeries(format: StructuralTagFormat): boolean {
  if (format.type === "sequence") return isSeries(format.elements.at(-1)!);
  return format.type === "tags_with_separator";
}

/** In xgrammar all alternatives must be series or none: this makes a series of one. */
function asSeries(content: StructuralTagFormat): StructuralTagFormat {
  return separated([{ type: "tag", begin: "", content, end: "" }], "\n", false);
}

/** Messages and tools for the model's template; what the template does not support becomes text. */
export function templateInput(
  { text: { template } }: ServedModel,
  messages: readonly ChatMessage[],
  tools: readonly Tool[],
): Pick<ChatInput, "messages" | "tools"> {
  const { format, knowsTools, knowsCalls } = formatOf(template);
  const hasCalls = messages.some(({ role, tool_calls }) => role === "tool" || tool_calls);
  if (!knowsTools && (tools.length > 0 || hasCalls)) {
    return { messages: withInstructions(messages, tools, format) };
  }
  return {
    messages: hasCalls && !knowsCalls ? withWrittenCalls(messages, format) : messages,
    ...(tools.length > 0 && { tools: tools.map((tool) => ({ type: "function", function: tool })) }),
  };
}
