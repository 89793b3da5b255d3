import { describe, expect, test } from "bun:test";
import { qwenXml, seed } from "../../../src/tools/formats/qwen-xml.ts";
import { messageParser } from "../../../src/tools/message.ts";
import {
  call,
  content,
  expectRead,
  nowCall,
  parts,
  read,
  reasoning,
  testContent,
  tools,
} from "../messages.ts";

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
    expectRead(qwenXml, paris, [parisCall]);
    expectRead(qwenXml, `So:\n${paris}\n${written("now", {})}\n Done`, [
      "So:",
      parisCall,
      nowCall,
      "Done",
    ]);
  });

  test("needs no line breaks, and may forget to be opened", () => {
    expectRead(qwenXml, paris.replaceAll("\n", ""), [parisCall]);
    expectRead(qwenXml, paris.replace("<tool_call>\n", "Look: "), ["Look:", parisCall]);
    const bare = paris.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    expectRead(qwenXml, `${bare}${bare}`, [parisCall, parisCall]);
  });

  test("keeps strings as they are, also over several lines and with marks in them", () => {
    const text = '\n  if (a < b && "c") {\n\t</function> <parameter=x> </tool_call>\n}\n';
    expectRead(qwenXml, written("note", { text }), [
      call("note", JSON.stringify({ text }).replace(":", ": ")),
    ]);
    expectRead(qwenXml, written("note", { text: "5" }), [call("note", '{"text": "5"}')]);
    expectRead(qwenXml, written("note", { text: "" }), [call("note", '{"text": ""}')]);
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
      expectRead(qwenXml, written("get_weather", { [key]: text }), [
        call("get_weather", `{"${key}": ${json}}`),
      ]);
    }
    expectRead(qwenXml, written("note", { count: "null" }), [call("note", '{"count": null}')]);
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
      expectRead(qwenXml, written("get_weather", { [key]: text }), [
        call("get_weather", `{"${key}": ${json}}`),
      ]);
    }
    const text = written("get_weather", { city: `"a ${end}"` });
    expectRead(qwenXml, text, [text]);
  });

  test("with a duplicate parameter keeps the first one", () => {
    const twice = paris.replace("</function>", "<parameter=days>4</parameter></function>");
    expectRead(qwenXml, twice, [call("get_weather", '{"city": "Paris", "days": 3}')]);
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

  testContent(qwenXml, garbled);
});

test("a name that cannot be one is sent at once", () => {
  expect(qwenXml.parser([]).push("<function=a b")).toEqual([content("<function=a b")]);
});

test("Seed-OSS has tags of its own, around calls and thoughts", () => {
  const inner =
    "<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>";
  const text = `<seed:think>\nHm.\n</seed:think>So:\n<seed:tool_call>\n${inner}\n</seed:tool_call>`;
  const parser = messageParser({ thinking: "possible", format: seed, tools });
  expect(parts(parser, text)).toEqual([reasoning("Hm."), content("So:"), parisCall]);
  expect(read(seed, paris.replace("<function=get_weather>", "<function=f>"))[0]!.kind).toBe(
    "content",
  );
});
