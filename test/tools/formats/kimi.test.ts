import { describe, expect, test } from "bun:test";
import { kimi } from "../../../src/tools/formats/kimi.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { expectRead, parts, testContent, tools } from "../messages.ts";

const section = (inner: string) => `<|tool_calls_section_begin|>${inner}<|tool_calls_section_end|>`;
const one = (id: string, json: string) =>
  `<|tool_call_begin|>${id}<|tool_call_argument_begin|>${json}<|tool_call_end|>`;

const paris = '{"city": "Paris", "days": 3, "tags": ["<|tool_call_end|>"], "place": {"lat": 1}}';

function called(name: string, id: string, given = "{}") {
  return { kind: "call" as const, name, arguments: given, id };
}

describe("a call", () => {
  test("is read with its id, alone, in a row and with text around", () => {
    const parisCall = called("get_weather", "functions.get_weather:3", paris);
    expectRead(kimi, section(one("functions.get_weather:3", paris)), [parisCall]);
    const both = section(one("functions.get_weather:3", paris) + one("functions.now:4", "{}"));
    expectRead(kimi, `So:\n${both}\n Done`, [
      "So:",
      parisCall,
      called("now", "functions.now:4"),
      "Done",
    ]);
  });

  test("may have blanks in it, and no namespace", () => {
    const text = section(`\n${one(" now:0 ", "\n{} ")}\n`);
    expectRead(kimi, text, [called("now", "now:0")]);
  });

  test("keeps its id if the token limit cuts it off", () => {
    const parser = messageParser({ thinking: "none", format: kimi, tools });
    const text = section(one("functions.now:0", "{}")).slice(0, -30);
    expect(parts(parser, [text], true)).toEqual([called("now", "functions.now:0")]);
  });
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "no call": section(""),
    "a call of what is no tool": section(one("functions.f:0", "{}")),
    "a call without a number": section(one("functions.now", "{}")),
    "a call with another id": section(one("call_abc", "{}")),
    "a call without arguments": section(one("functions.now:0", "")),
    "arguments that are a list": section(one("functions.now:0", "[]")),
    "a call without a section": one("functions.now:0", "{}"),
    "a call that is not closed": section("<|tool_call_begin|>functions.now:0"),
    "text between calls": section(
      `${one("functions.now:0", "{}")} and ${one("functions.now:1", "{}")}`,
    ),
    "a section that is cut short": section(one("functions.now:0", "{}")).slice(0, -1),
  };

  testContent(kimi, garbled);
});
