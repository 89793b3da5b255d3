import { describe, expect, test } from "bun:test";
import { functools, granite, phi } from "../../../src/tools/formats/phi.ts";
import { call, expectRead, nowCall, read } from "../messages.ts";

const paris = '{"name": "get_weather", "arguments": {"city": "Paris", "tags": ["a]"]}}';
const now = '{"name": "now", "arguments": {}}';
const calls = [call("get_weather", '{"city": "Paris", "tags": ["a]"]}'), nowCall];

for (const format of [phi, granite, functools]) {
  describe(`${format.name} reads`, () => {
    test("a list of calls, closed or not", () => {
      expect(read(format, `<|tool_call|>[${paris}, ${now}]<|/tool_call|>`)).toEqual(calls);
      expectRead(format, `So: <|tool_call|>\n[${paris},${now}]\n`, ["So:", ...calls]);
      expect(read(format, ` functools[${paris}, ${now}]`)).toEqual(calls);
    });

    test("calls without a list", () => {
      const text = `<|tool_call|>${paris}<|/tool_call|><|tool_call|>${now}<|/tool_call|>`;
      expect(read(format, text)).toEqual(calls);
      expectRead(format, `<|tool_call|>${paris}, ${now}<|/tool_call|> Done`, [...calls, "Done"]);
    });

    test("what is garbled as content", () => {
      for (const text of [
        "<|tool_call|>[]<|/tool_call|>",
        `<|tool_call|>[${paris}, ${now.replace("now", "f")}]<|/tool_call|>`,
        `<|tool_call|>[${paris}, ${now}<|/tool_call|>`,
        "<|tool_call|>now()<|/tool_call|>",
        "import functools\nfunctools.cache",
        "functools[1]",
        "<|/tool_call|>",
      ]) {
        expectRead(format, text, [text]);
      }
    });
  });
}

test("an id is call_ and 24 letters and digits", () => {
  expect(phi.newCallId()).toMatch(/^call_[a-zA-Z0-9]{24}$/);
});
