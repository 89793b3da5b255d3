import { expect, test } from "bun:test";
import { cohere } from "../../../src/tools/formats/cohere.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, expectRead, nowCall, parts, reasoning, tools } from "../messages.ts";

const written = (inner: string) => `<|START_ACTION|>${inner}<|END_ACTION|>`;
const given = '{"city": "Paris", "tags": ["]"]}';
const paris = `{"tool_call_id": "0", "tool_name": "get_weather", "parameters": ${given}}`;
const now = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}';

test("calls are read, alone, in a row and with text around", () => {
  expectRead(cohere, written(`[\n    ${paris}\n]`), [call("get_weather", given)]);
  expectRead(cohere, `So ${written(`[${paris}, ${now}]`)} Done`, [
    "So",
    call("get_weather", given),
    nowCall,
    "Done",
  ]);
});

test("a thought is told apart, begun by the prompt or not", () => {
  const message = `I look.<|END_THINKING|>${written(`[${paris}]`)}`;
  for (const [thinking, text] of [
    ["begun", message],
    ["possible", `<|START_THINKING|>${message}`],
  ] as const) {
    const parser = messageParser({ thinking, format: cohere, tools });
    expect(parts(parser, text)).toEqual([reasoning("I look."), call("get_weather", given)]);
  }
});

test("what is garbled is content", () => {
  for (const inner of [
    "",
    "[]",
    `[${paris.replace("get_weather", "f")}]`,
    `[${paris}`,
    `[${paris}] and`,
    '[{"tool_name": "now"}]',
    '[{"tool_name": "now", "parameters": {}, "more": 1}]',
  ]) {
    expectRead(cohere, written(inner), [written(inner)]);
  }
});
