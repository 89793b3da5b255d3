import { expect, test } from "bun:test";
import { hunyuan, minimaxM1, nemotron } from "../../../src/tools/formats/nemotron.ts";
import { call, expectRead, nowCall, read } from "../messages.ts";

const written = (inner: string) => `<TOOLCALL>${inner}</TOOLCALL>`;

test("calls are read, alone, in a row and with text around", () => {
  const given = '{"city": "Paris", "days": 3, "tags": ["]"], "place": {"lat": 1, "lon": 2}}';
  const paris = `{"name": "get_weather", "arguments": ${given}}`;
  const parisCall = call("get_weather", given);
  expectRead(nemotron, written(`[${paris}]`), [parisCall]);
  const text = `So ${written(`[${paris}, {"name": "now", "arguments": {}}]`)}\n${written(paris)} Done`;
  const calls = [parisCall, nowCall, parisCall];
  expectRead(nemotron, text, ["So", ...calls, "Done"]);
});

test("what is garbled is content", () => {
  for (const inner of [
    "",
    "[]",
    '[{"name": "f", "arguments": {}}]',
    '[{"name": "now", "arguments": {}}, {"name": "f", "arguments": {}}]',
    '[{"name": "now", "arguments": "none"}]',
    '[{"name": "now", "arguments": {}}',
    '[{"name": "now", "arguments": {}}] and',
    "[now()]",
  ]) {
    expectRead(nemotron, written(inner), [written(inner)]);
  }
});

test("other tags hold a list, or objects one after the other", () => {
  const [paris, now] = [
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    '{"name": "now", "arguments": {}}',
  ];
  const calls = [call("get_weather", '{"city": "Paris"}'), nowCall];
  for (const format of [hunyuan, minimaxM1]) {
    for (const inner of [`[${paris}, ${now}]`, `\n${paris}\n${now}\n`]) {
      expect(read(format, `<tool_calls>${inner}</tool_calls>`)).toEqual(calls);
    }
    for (const inner of ["", "\n", `[${paris}]${now}`, `${paris},${now}`, `${paris}\n[${now}]`]) {
      const text = `<tool_calls>${inner}</tool_calls>`;
      expectRead(format, text, [text]);
    }
  }
});
