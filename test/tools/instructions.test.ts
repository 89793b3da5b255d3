import { describe, expect, test } from "bun:test";
import { deepseek, deepseekV31 } from "../../src/tools/formats/deepseek.ts";
import { gemma } from "../../src/tools/formats/gemma.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { granite, phi } from "../../src/tools/formats/phi.ts";
import { type Message, withInstructions, withWrittenCalls } from "../../src/tools/instructions.ts";
import { parts, tools } from "./messages.ts";

const calls = [
  { id: "a", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } },
  { id: "b", type: "function", function: { name: "now", arguments: {} } },
];
const chat: Message[] = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Paris?" },
  { role: "assistant", content: "I look.", tool_calls: calls, reasoning_content: "Hm." },
  { role: "tool", tool_call_id: "a", content: "sunny" },
  { role: "tool", tool_call_id: "b", content: [{ type: "text", text: "noon" }] },
  { role: "assistant", content: "It is sunny." },
  { role: "user", content: "Thanks." },
];
const turns = (messages: readonly Message[]) => messages.map(({ role }) => role).join(" ");

describe("for Hermes", () => {
  const told = withInstructions(chat, tools, hermes);

  test("the system message describes the tools", () => {
    const { role, content } = told[0]!;
    expect(role).toBe("system");
    expect(content).toStartWith("Be brief.\n\n");
    expect(content).toContain(
      `<tools>\n${tools.map((tool) => JSON.stringify({ type: "function", function: tool })).join("\n")}\n</tools>`,
    );
    expect(content).toContain('<tool_call>\n{"name": <function-name>');
    const [first] = withInstructions(chat.slice(1), tools, hermes);
    expect(first!.role).toBe("system");
    expect(first!.content).toBe((content as string).slice("Be brief.\n\n".length));
  });

  test("calls and results are text", () => {
    expect(turns(told)).toBe("system user assistant user assistant user");
    expect(told[1]).toBe(chat[1]!);
    expect(told[2]).toEqual({
      role: "assistant",
      content:
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>\n' +
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
      reasoning_content: "Hm.",
    });
    expect(told[3]).toEqual({
      role: "user",
      content: "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
    });
  });

  test("the messages that were given stay as they are", () => {
    expect(chat[2]!.tool_calls).toBe(calls);
  });
});

describe("for Gemma", () => {
  test("the first user message describes the tools, as there is no system role", () => {
    const told = withInstructions(chat, tools, gemma);
    expect(turns(told)).toBe("user assistant user assistant user");
    expect(told[0]!.content).toStartWith("Be brief.\n\n");
    expect(told[0]!.content).toContain("```tool_code\n");
    expect(told[0]!.content).toEndWith(`${JSON.stringify(tools)}\n\nParis?`);
    expect(told[1]!.content).toBe('I look.\n```tool_code\nget_weather(city="Paris")\nnow()\n```');
    expect(told[2]!.content).toBe("```tool_output\nsunny\n```\n```tool_output\nnoon\n```");
  });

  test("a user message is added if there is none", () => {
    expect(turns(withInstructions([{ role: "assistant", content: "Hi." }], tools, gemma))).toBe(
      "user assistant",
    );
  });
});

test("for Phi the tools are a field of the system message", () => {
  const told = withInstructions(chat, tools, phi);
  expect(turns(told)).toBe("system user assistant tool_response assistant user");
  expect(told[0]).toEqual({ role: "system", content: "Be brief.", tools: JSON.stringify(tools) });
  expect(told[3]!.content).toBe("sunny\nnoon");
  const [first] = withInstructions(chat.slice(1), tools, phi);
  expect(first).toMatchObject({ role: "system", tools: JSON.stringify(tools) });
  expect(first!.content).not.toBe("");
});

test("for DeepSeek the system message shows its own format, and results keep their role", () => {
  for (const format of [deepseek, deepseekV31]) {
    const told = withInstructions(chat, tools, format);
    expect(turns(told)).toBe("system user assistant tool tool assistant user");
    expect(told[0]!.content).toStartWith("Be brief.\n\n");
    for (const tool of tools) expect(told[0]!.content).toContain(`\n${JSON.stringify(tool)}\n`);
    const example = { name: "function_name", arguments: '{"parameter": "value"}' };
    expect(told[0]!.content).toContain(`\n${format.write([example])}\n`);
    expect(told[2]!.content).toStartWith("I look.\n<｜tool▁calls▁begin｜>");
    expect(told[2]).not.toHaveProperty("tool_calls");
    expect(told.slice(3, 5)).toEqual([
      { role: "tool", content: "sunny" },
      { role: "tool", content: "noon" },
    ]);
  }
});

describe("calls alone", () => {
  test("are written for templates that support tools but not calls", () => {
    const written = withWrittenCalls(chat, granite);
    expect(turns(written)).toBe("system user assistant tool tool assistant user");
    expect(written[2]!.content).toStartWith("I look.\n<|tool_call|>[");
    expect(written[2]).not.toHaveProperty("tool_calls");
  });

  test("are written so that they can be read again", () => {
    const message = { role: "assistant", content: null, tool_calls: calls };
    for (const format of [hermes, gemma, phi, granite, deepseek, deepseekV31]) {
      const [{ content }] = withWrittenCalls([message], format) as [Message];
      expect(parts(format.parser(tools), [content as string])).toMatchObject([
        { kind: "call", name: "get_weather" },
        { kind: "call", name: "now" },
      ]);
    }
  });

  test("are written even if their arguments are not JSON", () => {
    const broken = { function: { name: "now", arguments: "{oh" } };
    const [written] = withWrittenCalls([{ role: "assistant", tool_calls: [broken] }], gemma);
    expect(written!.content).toBe('```tool_code\nnow(arguments="{oh")\n```');
  });
});
