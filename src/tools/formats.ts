// Detects a model's tool-call format from the text of its chat template.
import { apertus } from "./formats/apertus.ts";
import { cohere } from "./formats/cohere.ts";
import { deepseek, deepseekV31 } from "./formats/deepseek.ts";
import { functionGemma, gemma4 } from "./formats/function-gemma.ts";
import { gemma } from "./formats/gemma.ts";
import { glm, glmCompact } from "./formats/glm.ts";
import { harmony } from "./formats/harmony.ts";
import { hermes, internlm, longcat } from "./formats/hermes.ts";
import { deepseekV4, deepseekV32, minimax } from "./formats/invoke.ts";
import { kimi } from "./formats/kimi.ts";
import { llamaJson } from "./formats/llama-json.ts";
import { mistral, mistralList, mistralThinking } from "./formats/mistral.ts";
import { hunyuan, minimaxM1, nemotron } from "./formats/nemotron.ts";
import { functools, granite, phi } from "./formats/phi.ts";
import { lfm, olmo } from "./formats/python-calls.ts";
import { pythonic } from "./formats/pythonic.ts";
import { qwenXml, seed } from "./formats/qwen-xml.ts";
import type { ToolFormat } from "./syntax/format.ts";

export type TemplateTools = {
  format: ToolFormat;
  /** Whether the template renders tools; if not, withInstructions describes them in a message. */
  knowsTools: boolean;
  /** Whether the template renders the calls of earlier messages; if not, withWrittenCalls writes them as text. */
  knowsCalls: boolean;
};

type Row = [ToolFormat, ...string[]];

/** Formats with texts that mark their templates. The first format whose marks all occur in a template is taken. */
const formats: readonly Row[] = [
  [harmony, "<|channel|>", "<|message|>"],
  [functionGemma, "<start_function_call>"],
  [gemma4, "<|tool_call>", "<tool_call|>"],
  [deepseekV32, "｜DSML｜", "function_calls>"],
  [deepseekV4, "｜DSML｜", "tool_calls>"],
  [minimax, "<minimax:tool_call>"],
  [kimi, "<|tool_calls_section_begin|>"],
  [glmCompact, "</arg_key><arg_value>"],
  [glm, "<arg_key>"],
  [nemotron, "<TOOLCALL>"],
  [seed, "<seed:tool_call>"],
  [cohere, "<|START_ACTION|>"],
  [apertus, "<|tools_prefix|>"],
  [internlm, "<|action_start|>", "<|plugin|>"],
  [longcat, "<longcat_tool_call>"],
  [qwenXml, "<tool_call>", "<function=", "<parameter="],
  [olmo, "<function_calls>"],
  [mistralThinking, "[TOOL_CALLS]", "[ARGS]", "[/THINK]"],
  [mistral, "[TOOL_CALLS]", "[ARGS]"],
  [mistralList, "[TOOL_CALLS]"],
  [functools, "functools["],
  [phi, "<|tool_call|>", "<|/tool_call|>"],
  [granite, "<|tool_call|>"],
  [hermes, "<tool_call>", '"name"', '"arguments"'],
  [hunyuan, "<tool_calls>["],
  [minimaxM1, "<tool_calls>", '"name"', '"arguments"'],
  [deepseek, "<｜tool▁sep｜>", "```json"],
  [deepseekV31, "<｜tool▁sep｜>"],
  [lfm, "<|tool_call_start|>"],
  // Finds LFM's templates without marks around the list of tools: none of LFM's templates renders calls.
  [lfm, "List of tools: "],
  [pythonic, "[func_name1("],
  [llamaJson, "<|start_header_id|>", '"parameters": '],
  [llamaJson, "<|header_start|>", '"parameters": '],
];

/** Formats for templates that do not support tools; instructions.ts describes the tools in a message instead. */
const fallbacks: readonly Row[] = [
  [gemma, "<start_of_turn>"],
  // Phi 4 mini's template takes the tools from the system message.
  [phi, "<|/tool|>"],
  [deepseek, "<｜tool▁sep｜>", "```json"],
  [deepseekV31, "<｜tool▁sep｜>"],
];

export function formatOf(template: string): TemplateTools {
  const text = template.replaceAll('\\"', '"');
  // Matches the field `tool_calls` of messages, but not markers that contain the word.
  const knowsCalls = /\btool_calls\b(?!>)/.test(text);
  const found = readsTools(template) ? formatIn(text, formats) : undefined;
  if (found) return { format: found, knowsTools: true, knowsCalls };
  return { format: formatIn(text, fallbacks) ?? hermes, knowsTools: false, knowsCalls };
}

function formatIn(template: string, rows: readonly Row[]): ToolFormat | undefined {
  return rows.find(([, ...marks]) => marks.every((mark) => template.includes(mark)))?.[0];
}

/** Whether the template uses the variable `tools`, not only the word or a message's field. */
function readsTools(template: string): boolean {
  const blocks = template.match(/\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}/gs) ?? [];
  return blocks.some((block) => {
    const code = block.replaceAll(/'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"/gs, "''");
    return !block.startsWith("{#") && /(?<![\w.])tools\b/.test(code);
  });
}
