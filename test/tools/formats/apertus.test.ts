import { test } from "bun:test";
import { apertus } from "../../../src/tools/formats/apertus.ts";
import { call, expectRead, nowCall } from "../messages.ts";

const written = (inner: string) => `<|tools_prefix|>${inner}<|tools_suffix|>`;
const given = '{"city": "Paris", "place": {"lat": 1, "lon": 2}}';

test("calls are read, alone, in a row and with text around", () => {
  expectRead(apertus, written(`[{"get_weather": ${given}}]`), [call("get_weather", given)]);
  const two = written(`[ {"get_weather": ${given}} ,\n{"now": {}} ]`);
  expectRead(apertus, `So ${two} Done`, ["So", call("get_weather", given), nowCall, "Done"]);
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
    expectRead(apertus, written(inner), [written(inner)]);
  }
});
