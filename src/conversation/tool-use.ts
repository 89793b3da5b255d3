// Determines how a chat's tool calls are parsed and constrained.
import type { StructuralTagFormat } from "@mlc-ai/web-xgrammar";
import type { ServedModel } from "../serve/models.ts";
import { formatOf } from "../tools/formats.ts";
import type { Enforced, Tool, ToolFormat } from "../tools/syntax/format.ts";
import { hasPlainNames, separated } from "../tools/syntax/grammar.ts";
import type { Constraint } from "./constraint.ts";
import type { Chat } from "./conversation.ts";

export type ToolUse = {
  format: ToolFormat;
  /** All tools that the model sees. */
  tools: readonly Tool[];
  /** The constraint on calls; undefined if they are only parsed. */
  constraint: Constraint | undefined;
  /** Schemas of tools that must be enforced completely; otherwise the request is rejected. */
  strict: readonly unknown[];
  isRequired: boolean;
  isParallel: boolean;
};

/** Returns how tools are used; undefined if the model must not call tools. */
export function toolUseOf(chat: Chat, model: ServedModel): ToolUse | undefined {
  const { tools, toolChoice: choice } = chat;
  if (tools.length === 0 || choice === "none") return undefined;
  const { format } = formatOf(model.text.template);
  const isNamed = typeof choice === "object";
  const callable = isNamed ? tools.filter(({ name }) => name === choice.name) : tools;
  const isRequired = isNamed || choice === "required";
  const isParallel = chat.isParallel && !isNamed;
  const grammar = format.grammar(callable, { required: isRequired, parallel: isParallel });
  const strict = tools.flatMap(({ parameters, isStrict }) => (isStrict ? [parameters] : []));
  return {
    format,
    tools,
    constraint: grammar && { param: "tools", format: grammar, markers: format.markers, strict },
    strict,
    isRequired,
    isParallel,
  };
}

/** Returns the constraint on an answer that is either text constrained by `form`, or tool calls. */
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

/** Returns the calls that `withCalls` enforces; none if a tool has parameter names that a parser cannot read. */
export function enforcedCalls(
  form: Constraint | undefined,
  use: Pick<ToolUse, "constraint" | "isRequired" | "tools"> | undefined,
): Enforced {
  if (!use?.tools.every(({ parameters }) => hasPlainNames(parameters))) return [];
  if (use.isRequired) return "all";
  // A JSON document never starts like a call, so a leading call is enforced. Other text may start like one.
  if (form) return form.format.type === "json_schema" ? "leading" : [];
  const calls = use.constraint?.format;
  return calls?.type === "triggered_tags" ? calls.triggers : [];
}

/** Whether the format is a list of calls, which may continue after each call. */
function isSeries(format: StructuralTagFormat): boolean {
  if (format.type === "sequence") return isSeries(format.elements.at(-1)!);
  return format.type === "tags_with_separator";
}

/** Wraps a format as a series of one, because xgrammar requires that all or none of the alternatives are series. */
function asSeries(content: StructuralTagFormat): StructuralTagFormat {
  return separated([{ type: "tag", begin: "", content, end: "" }], "\n", false);
}
