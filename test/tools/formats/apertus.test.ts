import { expect, test } from "bun:test";
import { apertus } from "../../../src/tools/formats/apertus.ts";
import { call, content, read } from "../messages.ts";

const written = (inner: string) => `<|tools_prefix|>${inner}<|tools_suffix|>`;
const given = '{"city": "Paris", "place": {"lat": 1, "lon": 2}}';

test("calls are read, alone, in a row and with text around", () => {
  expect(read(apertus, written(`[{"get_weather": ${given}}]`))).toEqual([
    call("get_weather", given),
  ]);
  const two = written(`[ {"get_weather": ${given}} ,\n{"now": {}} ]`);
  expect(read(apertus, `So ${two} Done`)).toEqual([
    content("So"),
    call("get_weather", given),
    call("now", "{}"),
    content("Done"),
  ]);
});

test("what is garbled is content", () => {
  for (const inner of [
    "",
    "[]",
    '{"now": {}}',
    '[{"f": {}}]',
    '[{"now": []}]',
    '[{"now": {}, "get_weather": {}}]',
    '[{"now": {}},]',
    '[{"now": {}}] and',
  ]) {
    expect(read(apertus, written(inner))).toEqual([content(written(inner))]);
  }
});
