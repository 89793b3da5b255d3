import { test } from "bun:test";
import { lfm } from "../../../src/tools/formats/python-calls.ts";
import { call, expectRead, nowCall } from "../messages.ts";

const written = (inner: string) => `<|tool_call_start|>${inner}<|tool_call_end|>`;

test("calls are read, alone, in a row and with text around", () => {
  const paris = 'get_weather(city="Paris", days=3, tags=[\'a\'], place={"lat": 1.5, "lon": -2})';
  const parisCall = call(
    "get_weather",
    '{"city": "Paris", "days": 3, "tags": ["a"], "place": {"lat": 1.5, "lon": -2}}',
  );
  expectRead(lfm, written(`[${paris}]`), [parisCall]);
  const text = `So ${written(`[${paris}, now()]`)}${written("[ now( ) ]")} Done`;
  expectRead(lfm, text, ["So", parisCall, nowCall, nowCall, "Done"]);
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
    expectRead(lfm, written(inner), [written(inner)]);
  }
  expectRead(lfm, "[now()]", ["[now()]"]);
});
