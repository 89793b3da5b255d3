import { describe, expect, test } from "bun:test";
import { deepseekV4, deepseekV32, minimax } from "../../../src/tools/formats/invoke.ts";
import { call, expectRead, nowCall, read, testContent } from "../messages.ts";

const dialects = [
  { format: minimax, section: "minimax:tool_call", prefix: "" },
  { format: deepseekV32, section: "｜DSML｜function_calls", prefix: "｜DSML｜" },
  { format: deepseekV4, section: "｜DSML｜tool_calls", prefix: "｜DSML｜" },
];

for (const { format, section, prefix } of dialects) {
  const invoke = (name: string, parameters: Record<string, string>) => {
    const inner = Object.entries(parameters).map(
      ([key, text]) => `<${prefix}parameter name="${key}">${text}</${prefix}parameter>\n`,
    );
    return `<${prefix}invoke name="${name}">\n${inner.join("")}</${prefix}invoke>\n`;
  };
  const written = (...invokes: string[]) => `<${section}>\n${invokes.join("")}</${section}>`;
  const paris = invoke("get_weather", { city: "Paris", days: "3" });
  const parisCall = call("get_weather", '{"city": "Paris", "days": 3}');

  describe(`${format.name} reads`, () => {
    test("calls alone, in a row and with text around", () => {
      expectRead(format, written(paris), [parisCall]);
      expectRead(format, written(paris).replaceAll("\n", ""), [parisCall]);
      const text = `So:\n${written(paris, invoke("now", {}))}\n${written(paris)} Done`;
      expectRead(format, text, ["So:", parisCall, nowCall, parisCall, "Done"]);
    });

    test("strings as they are, with line breaks and marks in them", () => {
      const text = `\n if (a < b) "c" </${prefix}invoke> <${prefix}parameter name="\n`;
      expectRead(format, written(invoke("note", { text })), [
        call("note", JSON.stringify({ text }).replace(":", ": ")),
      ]);
      expectRead(format, written(invoke("note", { text: "" })), [call("note", '{"text": ""}')]);
    });

    test("values of the types that the tool's schema names", () => {
      const values: [key: string, text: string, json: string][] = [
        ["city", "5", '"5"'],
        ["days", "three", '"three"'],
        ["hourly", "True", "true"],
        ["unit", "kelvin", '"kelvin"'],
        ["tags", '["a", "b"]', '["a", "b"]'],
        ["place", '{"lat": 1, "lon": 2}', '{"lat": 1, "lon": 2}'],
        ["unknown", "7", "7"],
      ];
      for (const [key, text, json] of values) {
        expectRead(format, written(invoke("get_weather", { [key]: text })), [
          call("get_weather", `{"${key}": ${json}}`),
        ]);
      }
    });

    test("values that are told to be strings or others", () => {
      const told = (key: string, isString: boolean, text: string) =>
        read(format, written(invoke("get_weather", { [`${key}" string="${isString}`]: text })));
      expect(told("unknown", true, "7")).toEqual([call("get_weather", '{"unknown": "7"}')]);
      expect(told("unknown", false, "7")).toEqual([call("get_weather", '{"unknown": 7}')]);
      expect(told("unknown", false, '"7"')).toEqual([call("get_weather", '{"unknown": "7"}')]);
      const list = `["</${prefix}parameter>"]`;
      expect(told("unknown", false, list)).toEqual([call("get_weather", `{"unknown": ${list}}`)]);
      expect(told("unknown", false, "seven")).toEqual([
        call("get_weather", '{"unknown": "seven"}'),
      ]);
    });

    const garbled = {
      "no call": written(),
      "a call of what is no tool": written(paris.replace("get_weather", "f")),
      "a call of what is no tool beside another": written(paris, invoke("f", {})),
      "a call without a section": paris.trim(),
      "a call that is not closed": written(paris.replace(`</${prefix}invoke>`, "")),
      "a parameter that is not closed": written(paris.replaceAll(`</${prefix}parameter>`, "")),
      "another attribute": written(invoke("now", { 'a" type="b': "c" })),
      "text between parameters": written(paris.replace(">\n<", "> and <")),
      "text between calls": written(paris, "and ", paris),
      "a section that is cut short": written(paris).slice(0, -1),
    };

    testContent(format, garbled);
  });
}

test("DeepSeek's calls tell strings from other values", () => {
  const written = deepseekV32.write([{ name: "f", arguments: '{"a": "5", "b": 5}' }]);
  expect(written).toContain('name="a" string="true">5</');
  expect(written).toContain('name="b" string="false">5</');
});
