// Detects a model's tool-call format from the text of its chat template.
import type { ToolFormat } from "./format.ts";
import { functionGemma } from "./formats/function-gemma.ts";
import { gemma } from "./formats/gemma.ts";
import { harmony } from "./formats/harmony.ts";
import { hermes } from "./formats/hermes.ts";
import { llamaJson } from "./formats/llama-json.ts";
import { mistral, mistralList } from "./formats/mistral.ts";
import { olmo } from "./formats/olmo.ts";
import { functools, granite, phi } from "./formats/phi.ts";
import { pythonic } from "./formats/pythonic.ts";
import { qwenXml } from "./formats/qwen-xml.ts";

export type TemplateTools = {
  format: ToolFormat;
  /** Whether the template renders tools; if not, withInstructions describes them in a message. */
  knowsTools: boolean;
  /** Whether it renders the calls of earlier messages; if not, withWrittenCalls writes them as text. */
  knowsCalls: boolean;
};

/** The first format whose markers all occur in the template wins. */
const formats: readonly [ToolFormat, ...string[]][] = [
  [harmony, "<|channel|>", "<|message|>"],
  [functionGemma, "<start_function_call>"],
  [qwenXml, "<tool_call>", "<function=", "<parameter="],
  [olmo, "<function_calls>"],
  [mistral, "[TOOL_CALLS]", "[ARGS]"],
  [mistralList, "[TOOL_CALLS]"],
  [functools, "functools["],
  [phi, "<|tool_call|>", "<|/tool_call|>"],
  [granite, "<|tool_call|>"],
  [hermes, "<tool_call>", '"name"', '"arguments"'],
  [pythonic, "[func_name1("],
  [llamaJson, "<|start_header_id|>", '"parameters": '],
];

export function formatOf(template: string): TemplateTools {
  const text = template.replaceAll('\\"', '"');
  const knowsCalls = text.includes("tool_calls");
  const found = formats.find(([, ...marks]) => marks.every((mark) => text.includes(mark)));
  if (found && readsTools(template)) return { format: found[0], knowsTools: true, knowsCalls };
  return { format: fallbackFormat(text), knowsTools: false, knowsCalls };
}

function fallbackFormat(template: string): ToolFormat {
  if (template.includes("<start_of_turn>")) return gemma;
  // Phi 4 mini's template takes the tools from the system message.
  return template.includes("<|/tool|>") ? phi : hermes;
}

/** Whether the template uses the variable `tools`, not only the word or a message's field. */
function readsTools(template: string): boolean {
  const blocks = template.match(/\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}/gs) ?? [];
  return blocks.some((block) => {
    const code = block.replaceAll(/'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"/gs, "''");
    return !block.startsWith("{#") && /(?<![\w.])tools\b/.test(code);
  });
}
