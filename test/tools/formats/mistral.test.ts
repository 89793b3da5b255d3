import { describe, expect, test } from "bun:test";
import { mistral, mistralList, mistralThinking } from "../../../src/tools/formats/mistral.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, content, expectRead, nowCall, parts, reasoning, tools } from "../messages.ts";

const parisCall = call("get_weather", '{"city": "Paris"}');

for (const format of [mistral, mistralList]) {
  describe(`${format.name} reads`, () => {
    test("a list of calls, with ids or without", () => {
      const list = '[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, ';
      expectRead(format, `So:\n[TOOL_CALLS]${list}{"name":"now","arguments":{}}] \n`, [
        "So:",
        parisCall,
        nowCall,
      ]);
    });

    test("names and arguments one after the other, with ids or without", () => {
      for (const between of ["[ARGS]", "[CALL_ID]abc123XYZ[ARGS]", "", " ", " [ARGS] "]) {
        const text = `So:\n[TOOL_CALLS]get_weather${between}{"city": "Paris"}`;
        expectRead(format, `${text}[TOOL_CALLS]now[ARGS]{}`, ["So:", parisCall, nowCall]);
      }
    });

    test("what is garbled as content", () => {
      for (const text of [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]f[ARGS]{}",
        "[TOOL_CALLS]now[ARGS]",
        "[TOOL_CALLS]now[ARGS][]",
        "[TOOL_CALLS]now[ID]{}",
        "[TOOL_CALLS]now[CALL_ID][ARGS]{}",
        "[TOOL_CALLS]now and then {}",
        "[TOOL_CALLS][ARGS]{}",
        '[TOOL_CALLS][{"name": "now", "arguments": {}}',
        '[TOOL_CALLS][{"name": "now", "arguments": {}} {"name": "now", "arguments": {}}]',
        "[ARGS]{}",
      ]) {
        expectRead(format, text, [text]);
      }
    });
  });
}

test("an id is nine letters and digits", () => {
  expect(mistral.newCallId()).toMatch(/^[a-zA-Z0-9]{9}$/);
  expect(mistral.newCallId()).not.toBe(mistral.newCallId());
});

test("Magistral thinks in brackets", () => {
  const parser = messageParser({ thinking: "possible", format: mistralThinking, tools });
  const found = parts(parser, "[THINK]Hm.[/THINK]So[TOOL_CALLS]now[ARGS]{}");
  expect(found).toEqual([reasoning("Hm."), content("So"), nowCall]);
});
