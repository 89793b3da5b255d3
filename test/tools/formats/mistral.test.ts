import { describe, expect, test } from "bun:test";
import { mistral, mistralList, mistralThinking } from "../../../src/tools/formats/mistral.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, content, parts, read, tools } from "../messages.ts";

const parisCall = call("get_weather", '{"city": "Paris"}');
const nowCall = call("now", "{}");

for (const format of [mistral, mistralList]) {
  describe(`${format.name} reads`, () => {
    test("a list of calls, with ids or without", () => {
      const list = '[{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, ';
      expect(read(format, `So:\n[TOOL_CALLS]${list}{"name":"now","arguments":{}}] \n`)).toEqual([
        content("So:"),
        parisCall,
        nowCall,
      ]);
    });

    test("names and arguments one after the other, with ids or without", () => {
      for (const between of ["[ARGS]", "[CALL_ID]abc123XYZ[ARGS]", "", " ", " [ARGS] "]) {
        const text = `So:\n[TOOL_CALLS]get_weather${between}{"city": "Paris"}`;
        expect(read(format, `${text}[TOOL_CALLS]now[ARGS]{}`)).toEqual([
          content("So:"),
          parisCall,
          nowCall,
        ]);
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
        expect(read(format, text)).toEqual([content(text)]);
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
  expect(parts(parser, "[THINK]Hm.[/THINK]So[TOOL_CALLS]now[ARGS]{}")).toEqual([
    { kind: "reasoning", text: "Hm." },
    content("So"),
    nowCall,
  ]);
});
