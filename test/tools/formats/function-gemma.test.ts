import { describe, expect, test } from "bun:test";
import { functionGemma, gemma4 } from "../../../src/tools/formats/function-gemma.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, content, expectRead, nowCall, parts, read, reasoning, tools } from "../messages.ts";

const dialects = [
  {
    format: functionGemma,
    open: "<start_function_call>",
    close: "<end_function_call>",
    quote: "<escape>",
  },
  { format: gemma4, open: "<|tool_call>", close: "<tool_call|>", quote: '<|"|>' },
];

for (const { format, open, close, quote } of dialects) {
  const written = (inner: string) => open + inner.replaceAll("'", quote) + close;

  describe(`${format.name} reads`, () => {
    test("calls alone, in a row and with text around", () => {
      const paris = written("call:get_weather{city:'Paris',days:3}");
      expectRead(format, `So ${paris}${written("call:now{}")} Done`, [
        "So",
        call("get_weather", '{"city": "Paris", "days": 3}'),
        nowCall,
        "Done",
      ]);
    });

    test("strings with anything in them, numbers, names, lists and objects", () => {
      const inner = [
        `city:'{a}, [b]: ${close}\n"<'`,
        "days:-1.5",
        "hourly:true",
        "tags:['a','']",
        "place:{lat:1,'lon':2,deep:{x:[]}}",
        "unit:null",
      ];
      const value = {
        city: `{a}, [b]: ${close}\n"<`,
        days: -1.5,
        hourly: true,
        tags: ["a", ""],
        place: { lat: 1, lon: 2, deep: { x: [] } },
        unit: null,
      };
      const [part] = read(format, written(`call:get_weather{${inner.join(",")}}`));
      expect(part).toMatchObject({ kind: "call", name: "get_weather" });
      expect(JSON.parse(part!.kind === "call" ? part!.arguments : "")).toEqual(value);
    });

    test("what is garbled as content", () => {
      for (const inner of [
        "call:f{}",
        "get_weather{}",
        "call:now",
        "call:now{",
        "call:get_weather{city:Paris}",
        "call:get_weather{city:'Paris}",
        "call:get_weather{city}",
        "call:get_weather{city:{}}}",
        "call:now[]",
      ]) {
        expectRead(format, written(inner), [written(inner)]);
      }
    });
  });
}

test("Gemma 4 has its own marks of a thought", () => {
  const text = "Hm. <think>\n<channel|>So.<|tool_call>call:now{}<tool_call|>";
  const expected = [reasoning("Hm. <think>"), content("So."), nowCall];
  const parsed = (thinking: "possible" | "begun", message: string) =>
    parts(messageParser({ thinking, format: gemma4, tools }), [message]);
  expect(parsed("possible", `<|channel>thought\n${text}`)).toEqual(expected);
  expect(parsed("begun", `\n${text}`)).toEqual(expected);
  expect(parsed("possible", "<|channel>thought\n<channel|>So.")).toEqual([content("So.")]);
  expect(parsed("possible", "<think>a</think>")).toEqual([content("<think>a</think>")]);
});
