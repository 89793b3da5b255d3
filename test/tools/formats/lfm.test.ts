import { expect, test } from "bun:test";
import { lfm } from "../../../src/tools/formats/python-calls.ts";
import { call, content, read } from "../messages.ts";

const written = (inner: string) => `<|tool_call_start|>${inner}<|tool_call_end|>`;

test("calls are read, alone, in a row and with text around", () => {
  const paris = 'get_weather(city="Paris", days=3, tags=[\'a\'], place={"lat": 1.5, "lon": -2})';
  const parisCall = call(
    "get_weather",
    '{"city": "Paris", "days": 3, "tags": ["a"], "place": {"lat": 1.5, "lon": -2}}',
  );
  expect(read(lfm, written(`[${paris}]`))).toEqual([parisCall]);
  const text = `So ${written(`[${paris}, now()]`)}${written("[ now( ) ]")} Done`;
  expect(read(lfm, text)).toEqual([
    content("So"),
    parisCall,
    call("now", "{}"),
    call("now", "{}"),
    content("Done"),
  ]);
});

test("what is garbled is content", () => {
  for (const inner of [
    "",
    "[]",
    "[f()]",
    "[now(), f()]",
    "[now()",
    "[now]",
    '[get_weather("Paris")]',
    "[get_weather(city=Paris)]",
    '[{"name": "now", "arguments": {}}]',
  ]) {
    expect(read(lfm, written(inner))).toEqual([content(written(inner))]);
  }
  expect(read(lfm, "[now()]")).toEqual([content("[now()]")]);
});
