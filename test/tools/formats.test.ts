import { describe, expect, test } from "bun:test";
import { formatOf } from "../../src/tools/formats.ts";

/** What is detected in a template, in short. */
function told(template: string): string {
  const { format, knowsTools, knowsCalls } = formatOf(template);
  return [format.name, ...(knowsTools ? ["tools"] : []), ...(knowsCalls ? ["calls"] : [])].join(
    " ",
  );
}

describe("a template that tells of tools teaches", () => {
  const loop = "{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}";
  const calls = "{%- for call in message.tool_calls %}{%- endfor %}";

  // A list has several templates of one format.
  const fragments: Record<string, string | string[]> = {
    hermes: String.raw`{{- "return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}`,
    "qwen-xml": String.raw`{{- '\n<tool_call>\n<function=' + call.name + '>\n' }}{{- '<parameter=' + name + '>\n' }}`,
    "llama-json": [
      `{{- '<|start_header_id|>' }}{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}`,
      `{{- '<|header_start|>' }}{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}`,
    ],
    pythonic: `{{- '<|start_header_id|>' }}{{- 'Respond in the format [func_name1(params_name1=params_value1...), func_name2(params)] ' }}`,
    "mistral-list": `{{- "[TOOL_CALLS][" }}{{- ', "id": "' + call.id + '"}' }}`,
    mistral: `{{- '[TOOL_CALLS]' + call.function.name }}{{- '[ARGS]' + call.function.arguments|tojson }}`,
    "function-gemma": `{{- '<start_of_turn>' }}{{- '<start_function_call>call:' + call.name + '{' -}}`,
    phi: `{{- '<|tool_call|>' + (call.function | tojson) + '<|/tool_call|>' -}}`,
    granite: `{{ 'respond only with <|tool_call|> followed by a JSON list of tools used.' }}`,
    functools: `  * formatted as functools[{"name": [function name], "arguments": [function arguments]}, ...]`,
    olmo: `{{- "<function_calls>" }}`,
    deepseek:
      "{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json' }}",
    "deepseek-v3.1": `{{'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + (tool['function']['arguments'] | tojson)}}`,
    "deepseek-v3.2": `{%- set dsml_token = "｜DSML｜" -%}<{{ dsml_token }}function_calls>`,
    "deepseek-v4": "<｜DSML｜tool_calls>",
    "gemma-4": `{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '}<tool_call|>' -}}`,
    glm: `<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n</tool_call>`,
    "glm-compact": `<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value></tool_call>`,
    kimi: "<|tool_calls_section_begin|><|tool_call_begin|>{{ formatted_id }}<|tool_call_argument_begin|>",
    lfm: [
      `{%- set system = system + "List of tools: <|tool_list_start|>[" -%}`,
      `{%- set system = system + "List of tools: [" -%}`,
      `{{- "<|tool_call_start|>[" + (calls | join(", ")) + "]<|tool_call_end|>" -}}`,
    ],
    minimax: `{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<invoke name="tool-name-1">`,
    nemotron: [
      `{{- '<TOOLCALL>[{"name": "tool_name1", "arguments": "tool_args1"}]</TOOLCALL>' -}}`,
      `{{- '<|start_header_id|>' }}{{- '<TOOLCALL>[' -}}{{- '{"name": "' + fn.name + '", "parameters": ' -}}`,
    ],
    seed: "{%- set toolcall_begin_token = '<seed:tool_call>' -%}{{ '<function=' + call.name + '>' }}{{ '<parameter=' + key + '>' }}",
    cohere: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ call.name }}", "parameters": {}}]<|END_ACTION|>`,
    apertus: "{%- set tool_calls_token = '<|tools_prefix|>' -%}",
    internlm: `{{- "<|action_start|><|plugin|>\\n" }}{{- '{"name": "' + call.name + '", "parameters": ' }}`,
    longcat: `<longcat_tool_call>{"name": <function-name>, "arguments": <args>}</longcat_tool_call>`,
    "mistral-thinking": `{{- '[THINK]' + text + '[/THINK]' }}{{- '[TOOL_CALLS]' + call.name + '[ARGS]' }}`,
    hunyuan: `<tool_calls>[{"name": "func_name1", "arguments": {"argument1": "value1"}},...]</tool_calls>`,
    "minimax-m1": String.raw`{{ '<tool_calls>\n{"name": <tool-name>, "arguments": <args-json-object>}\n...\n</tool_calls>' }}`,
    harmony: `{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}`,
  };

  for (const [name, fragment] of Object.entries(fragments)) {
    test(name, () => {
      for (const each of [fragment].flat()) {
        expect(told(loop + each + calls)).toBe(`${name} tools calls`);
        expect(told(loop + each)).toBe(`${name} tools`);
      }
    });
  }
});

describe("a template that does not tell of tools", () => {
  test("is told of them as Hermes is", () => {
    expect(told("<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>")).toBe("hermes");
    expect(told("")).toBe("hermes");
  });

  test("is told of them as Gemma is, if it is Gemma's", () => {
    expect(told("{{ '<start_of_turn>' + role + '\\n' }}{{ message['content'] }}")).toBe("gemma");
  });

  test("is told of them in a field, if it is Phi's", () => {
    const template = `{% if 'tools' in message and message['tools'] is not none %}{{ message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}`;
    expect(told(template)).toBe("phi");
  });

  test("is told of them in its own format, if it is DeepSeek's", () => {
    const calls = "{%- for tool in message['tool_calls'] -%}";
    const fence = "{{ '<｜tool▁sep｜>' + name + '\\n' + '```json' }}";
    expect(told(calls + fence)).toBe("deepseek calls");
    expect(told(`${calls}{{ '<｜tool▁sep｜>' + arguments }}`)).toBe("deepseek-v3.1 calls");
  });

  test("may write the word, have it in a comment or in another variable", () => {
    const call = `{{ '<tool_call>{"name": "arguments"' }}`;
    for (const other of [
      "{{ 'within <tools></tools> tags' }}",
      '{{ "say \\"tools\\", it\'s tools" }}',
      "{# the tools #}",
      "{% if xml_tools %}{{ xml_tools }}{% endif %}",
      "{{ message.tools }}",
      "The tools",
    ]) {
      expect(told(call + other)).toBe("hermes");
    }
    expect(told(`${call}{% if 'x' and tools %}{% endif %}`)).toBe("hermes tools");
  });

  test("may tell of them in a way that is not known", () => {
    const template = "{% for tool in tools %}{% endfor %}<|unheard_of|>";
    expect(formatOf(template)).toMatchObject({ format: { name: "hermes" }, knowsTools: false });
  });
});
