import { describe, expect, test } from "bun:test";
import { glm, glmCompact } from "../../../src/tools/formats/glm.ts";
import { call, expectRead, nowCall, testContent } from "../messages.ts";

function written(name: string, parameters: Record<string, string>): string {
  const inner = Object.entries(parameters).map(
    ([key, text]) => `<arg_key>${key}</arg_key>\n<arg_value>${text}</arg_value>\n`,
  );
  return `<tool_call>${name}\n${inner.join("")}</tool_call>`;
}

const paris = written("get_weather", { city: "Paris", days: "3" });
const parisCall = call("get_weather", '{"city": "Paris", "days": 3}');

for (const format of [glm, glmCompact]) {
  describe(`${format.name} reads`, () => {
    test("calls alone, in a row and with text around", () => {
      expectRead(format, paris, [parisCall]);
      expectRead(format, `So:\n${paris}\n${written("now", {})}\n Done`, [
        "So:",
        parisCall,
        nowCall,
        "Done",
      ]);
    });

    test("calls with and without line breaks", () => {
      const compact = paris.replaceAll("\n", "");
      expectRead(format, `${compact}<tool_call>now</tool_call>`, [parisCall, nowCall]);
      expectRead(format, paris.replace("<tool_call>", "<tool_call>\n"), [parisCall]);
    });

    test("strings as they are, with line breaks and marks in them", () => {
      const text = "\n if (a < b) </tool_call> <arg_key>\n";
      expectRead(format, written("note", { text }), [
        call("note", JSON.stringify({ text }).replace(":", ": ")),
      ]);
      expectRead(format, written("note", { text: "5" }), [call("note", '{"text": "5"}')]);
      expectRead(format, written("note", { text: "" }), [call("note", '{"text": ""}')]);
    });

    test("values of the types that the tool's schema names", () => {
      const values: [key: string, text: string, json: string][] = [
        ["days", "three", '"three"'],
        ["hourly", "true", "true"],
        ["unit", "kelvin", '"kelvin"'],
        ["tags", '["a", "b"]', '["a", "b"]'],
        ["place", '{"lat": 1, "lon": 2}', '{"lat": 1, "lon": 2}'],
        ["tags", '["</arg_value>"]', '["</arg_value>"]'],
        ["unknown", "7", "7"],
      ];
      for (const [key, text, json] of values) {
        expectRead(format, written("get_weather", { [key]: text }), [
          call("get_weather", `{"${key}": ${json}}`),
        ]);
      }
    });

    const garbled = {
      "a call of what is no tool": paris.replace("get_weather", "f"),
      "a call without a name": paris.replace("get_weather", ""),
      "text between arguments": paris.replace("</arg_value>\n", "</arg_value>\nand "),
      "text after the name": paris.replace("get_weather", "get_weather now"),
      "a key without a value": written("now", {}).replace("\n", "<arg_key>a</arg_key>"),
      "a value that is not closed": paris.replaceAll("</arg_value>", ""),
      JSON: '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
      "a call that is cut short": paris.slice(0, -1),
    };

    testContent(format, garbled);
  });
}

test("the models' calls are written as their templates write them", () => {
  const brief = { name: "get_weather", arguments: '{"city": "Paris", "days": 3}' };
  expect(glm.write([brief])).toBe(paris);
  expect(glmCompact.write([brief])).toBe(paris.replaceAll("\n", ""));
});
