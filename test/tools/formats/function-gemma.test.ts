import { describe, expect, test } from "bun:test";
import { functionGemma } from "../../../src/tools/formats/function-gemma.ts";
import { call, content, read } from "../messages.ts";

const written = (inner: string) => `<start_function_call>${inner}<end_function_call>`;

describe("a call", () => {
  test("is read, alone, in a row and with text around", () => {
    const paris = written("call:get_weather{city:<escape>Paris<escape>,days:3}");
    expect(read(functionGemma, `So ${paris}${written("call:now{}")} Done`)).toEqual([
      content("So"),
      call("get_weather", '{"city": "Paris", "days": 3}'),
      call("now", "{}"),
      content("Done"),
    ]);
  });

  test("has strings with anything in them, numbers, names, lists and objects", () => {
    const inner = [
      "city:<escape>{a}, [b]: <end_function_call>\n\"'<escape>",
      "days:-1.5",
      "hourly:true",
      "tags:[<escape>a<escape>,<escape><escape>]",
      "place:{lat:1,<escape>lon<escape>:2,deep:{x:[]}}",
      "unit:null",
    ];
    const value = {
      city: "{a}, [b]: <end_function_call>\n\"'",
      days: -1.5,
      hourly: true,
      tags: ["a", ""],
      place: { lat: 1, lon: 2, deep: { x: [] } },
      unit: null,
    };
    const [part] = read(functionGemma, written(`call:get_weather{${inner.join(",")}}`));
    expect(part).toMatchObject({ kind: "call", name: "get_weather" });
    expect(JSON.parse(part!.kind === "call" ? part!.arguments : "")).toEqual(value);
  });
});

test("what is garbled is content", () => {
  for (const inner of [
    "call:f{}",
    "get_weather{}",
    "call:now",
    "call:now{",
    "call:get_weather{city:Paris}",
    "call:get_weather{city:<escape>Paris}",
    "call:get_weather{city}",
    "call:get_weather{city:{}}}",
    "call:now[]",
  ]) {
    expect(read(functionGemma, written(inner))).toEqual([content(written(inner))]);
  }
});
