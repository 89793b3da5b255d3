import { expect, test } from "bun:test";
import { cohere } from "../../../src/tools/formats/cohere.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, content, parts, read, tools } from "../messages.ts";

const written = (inner: string) => `<|START_ACTION|>${inner}<|END_ACTION|>`;
const given = '{"city": "Paris", "tags": ["]"]}';
const paris = `{"tool_call_id": "0", "tool_name": "get_weather", "parameters": ${given}}`;
const now = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}';

test("calls are read, alone, in a row and with text around", () => {
  expect(read(cohere, written(`[\n    ${paris}\n]`))).toEqual([call("get_weather", given)]);
  expect(read(cohere, `So ${written(`[${paris}, ${now}]`)} Done`)).toEqual([
    content("So"),
    call("get_weather", given),
    call("now", "{}"),
    content("Done"),
  ]);
});

test("a thought is told apart, begun by the prompt or not", () => {
  const message = `I look.<|END_THINKING|>${written(`[${paris}]`)}`;
  for (const [thinking, text] of [
    ["begun", message],
    ["possible", `<|START_THINKING|>${message}`],
  ] as const) {
    const parser = messageParser({ thinking, format: cohere, tools });
    expect(parts(parser, text)).toEqual([
      { kind: "reasoning", text: "I look." },
      call("get_weather", given),
    ]);
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
    expect(read(cohere, written(inner))).toEqual([content(written(inner))]);
  }
});
