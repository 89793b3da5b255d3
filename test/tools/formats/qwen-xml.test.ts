import { describe, expect, test } from "bun:test";
import { qwenXml, seed } from "../../../src/tools/formats/qwen-xml.ts";
import { messageParser } from "../../../src/tools/message.ts";
import { call, content, parts, read, tools } from "../messages.ts";

function written(name: string, parameters: Record<string, string>): string {
  const inner = Object.entries(parameters).map(
    ([key, text]) => `<parameter=${key}>\n${text}\n</parameter>\n`,
  );
  return `<tool_call>\n<function=${name}>\n${inner.join("")}</function>\n</tool_call>`;
}

const paris = written("get_weather", { city: "Paris", days: "3" });
const parisCall = call("get_weather", '{"city": "Paris", "days": 3}');

describe("a call", () => {
  test("is read, alone, in a row and with text around", () => {
    expect(read(qwenXml, paris)).toEqual([parisCall]);
    expect(read(qwenXml, `So:\n${paris}\n${written("now", {})}\n Done`)).toEqual([
      content("So:"),
      parisCall,
      call("now", "{}"),
      content("Done"),
    ]);
  });

  test("needs no line breaks, and may forget to be opened", () => {
    expect(read(qwenXml, paris.replaceAll("\n", ""))).toEqual([parisCall]);
    expect(read(qwenXml, paris.replace("<tool_call>\n", "Look: "))).toEqual([
      content("Look:"),
      parisCall,
    ]);
    const bare = paris.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    expect(read(qwenXml, `${bare}${bare}`)).toEqual([parisCall, parisCall]);
  });

  test("keeps strings as they are, also over several lines and with marks in them", () => {
    const text = '\n  if (a < b && "c") {\n\t</function> <parameter=x> </tool_call>\n}\n';
    expect(read(qwenXml, written("note", { text }))).toEqual([
      call("note", JSON.stringify({ text }).replace(":", ": ")),
    ]);
    expect(read(qwenXml, written("note", { text: "5" }))).toEqual([call("note", '{"text": "5"}')]);
    expect(read(qwenXml, written("note", { text: "" }))).toEqual([call("note", '{"text": ""}')]);
  });

  test("has values of the types that the tool's schema names", () => {
    const values: [key: string, text: string, json: string][] = [
      ["days", "12345678901234567890", "12345678901234567890"],
      ["days", "three", '"three"'],
      ["hourly", "true", "true"],
      ["hourly", "True", "true"],
      ["unit", "kelvin", '"kelvin"'],
      ["tags", '["a", "b"]', '["a", "b"]'],
      ["tags", "['a', None]", '["a", null]'],
      ["tags", "['a', 'b'", "\"['a', 'b'\""],
      ["place", '{"lat": 1,\n"lon": 2}', '{"lat": 1,\n"lon": 2}'],
      ["unknown", "7", "7"],
      ["unknown", "seven", '"seven"'],
    ];
    for (const [key, text, json] of values) {
      expect(read(qwenXml, written("get_weather", { [key]: text }))).toEqual([
        call("get_weather", `{"${key}": ${json}}`),
      ]);
    }
    expect(read(qwenXml, written("note", { count: "null" }))).toEqual([
      call("note", '{"count": null}'),
    ]);
  });

  test("takes a string where a schema allows it and nothing else fits", () => {
    const tool = {
      name: "f",
      parameters: {
        properties: {
          either: { type: ["string", "null"] },
          any: { anyOf: [{ type: "string" }, { type: "integer" }] },
          other: { anyOf: [{ type: "string" }, { $ref: "#/$defs/other" }] },
        },
      },
    };
    const argumentsOf = (key: string, text: string) =>
      parts(qwenXml.parser([tool]), [written("f", { [key]: text })]);
    expect(argumentsOf("either", "5")).toEqual([call("f", '{"either": "5"}')]);
    expect(argumentsOf("either", "null")).toEqual([call("f", '{"either": null}')]);
    expect(argumentsOf("any", "5")).toEqual([call("f", '{"any": 5}')]);
    expect(argumentsOf("other", "5")).toEqual([call("f", '{"other": 5}')]);
    expect(argumentsOf("any", '"5"')).toEqual([call("f", '{"any": "\\"5\\""}')]);
  });

  test("with the mark of a value's end in a list's string, but not in a string", () => {
    const end = "</parameter>";
    for (const [key, text, json] of [
      ["tags", `["a ${end}\\" ${end}", "b"]`, `["a ${end}\\" ${end}", "b"]`],
      ["tags", `"a ${end}"`, `"a ${end}"`],
      ["tags", "['a']", '["a"]'],
      ["days", "5", "5"],
    ] as const) {
      expect(read(qwenXml, written("get_weather", { [key]: text }))).toEqual([
        call("get_weather", `{"${key}": ${json}}`),
      ]);
    }
    const text = written("get_weather", { city: `"a ${end}"` });
    expect(read(qwenXml, text)).toEqual([content(text)]);
  });

  test("with a duplicate parameter keeps the first one", () => {
    const twice = paris.replace("</function>", "<parameter=days>4</parameter></function>");
    expect(read(qwenXml, twice)).toEqual([call("get_weather", '{"city": "Paris", "days": 3}')]);
  });
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "a call of what is no tool": paris.replace("get_weather", "f"),
    "a call without a name": paris.replace("get_weather", ""),
    "text between parameters": paris.replace("</parameter>\n", "</parameter>\nand "),
    "a parameter that is not closed": paris.replaceAll("</parameter>", ""),
    "a function that is not closed": paris.replace("</function>", ""),
    JSON: '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "a call that is cut short": paris.slice(0, -1),
  };

  for (const [name, text] of Object.entries(garbled)) {
    test(name, () => {
      expect(read(qwenXml, text)).toEqual([content(text)]);
    });
  }
});

test("a name that cannot be one is sent at once", () => {
  expect(qwenXml.parser([]).push("<function=a b")).toEqual([content("<function=a b")]);
});

test("Seed-OSS has tags of its own, around calls and thoughts", () => {
  const inner =
    "<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>";
  const text = `<seed:think>\nHm.\n</seed:think>So:\n<seed:tool_call>\n${inner}\n</seed:tool_call>`;
  const parser = messageParser({ thinking: "possible", format: seed, tools });
  expect(parts(parser, text)).toEqual([
    { kind: "reasoning", text: "Hm." },
    content("So:"),
    parisCall,
  ]);
  expect(read(seed, paris.replace("<function=get_weather>", "<function=f>"))[0]!.kind).toBe(
    "content",
  );
});
