import { describe, expect, test } from "bun:test";
import { deepseek, deepseekV31 } from "../../../src/tools/formats/deepseek.ts";
import { call, expectRead, nowCall, parts, testContent } from "../messages.ts";

const section = (inner: string) => `<｜tool▁calls▁begin｜>${inner}<｜tool▁calls▁end｜>`;
const one = (inner: string) => `<｜tool▁call▁begin｜>${inner}<｜tool▁call▁end｜>`;
const fenced = (name: string, json: string) =>
  one(`function<｜tool▁sep｜>${name}\n\`\`\`json\n${json}\n\`\`\``);
const plain = (name: string, json: string) => one(`${name}<｜tool▁sep｜>${json}`);

const paris = '{"city": "Paris", "days": 3, "tags": ["`", "}"], "place": {"lat": 1, "lon": 2}}';
const parisCall = call("get_weather", paris);

for (const format of [deepseek, deepseekV31]) {
  describe(`${format.name} reads`, () => {
    test("calls in fences, alone, in a row and with text around", () => {
      expectRead(format, section(fenced("get_weather", paris)), [parisCall]);
      const both = section(`${fenced("get_weather", paris)}\n${fenced("now", "{}")}`);
      expectRead(format, `So:\n${both}\n Done`, ["So:", parisCall, nowCall, "Done"]);
    });

    test("names and arguments, alone, in a row and with text around", () => {
      expectRead(format, section(plain("get_weather", paris)), [parisCall]);
      const both = section(plain("get_weather", paris) + plain("now", " {} \n"));
      expectRead(format, `So:\n${both}\n Done`, ["So:", parisCall, nowCall, "Done"]);
    });

    const garbled = {
      "no call": section(""),
      "a call of what is no tool": section(plain("f", "{}")),
      "a call of what is no tool beside another": section(plain("now", "{}") + fenced("f", "{}")),
      "a call without a section": plain("now", "{}"),
      "a section that is not closed": section(plain("now", "{}")).replace(/<[^<]*$/, ""),
      "a call that is not closed": section("<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"),
      "a call without arguments": section(plain("now", "")),
      "arguments that are a list": section(plain("now", "[]")),
      "arguments that are not JSON": section(plain("now", "{a: 1}")),
      "a fence that is not closed": section(fenced("now", "{}").replace("\n```<", "<")),
      "another fence": section(fenced("now", "{}").replace("json", "text")),
      "text between calls": section(`${plain("now", "{}")} and ${plain("now", "{}")}`),
    };

    testContent(format, garbled);
  });
}

test("a function may be called function", () => {
  const tools = [{ name: "function", parameters: {} }];
  for (const text of [section(plain("function", "{}")), section(fenced("function", "{}"))]) {
    expect(parts(deepseekV31.parser(tools), [text])).toEqual([call("function", "{}")]);
  }
});

test("each form is written as its templates write it", () => {
  const calls = [
    { name: "get_weather", arguments: paris },
    { name: "now", arguments: "{}" },
  ];
  expect(deepseek.write(calls)).toBe(
    section(`${fenced("get_weather", paris)}\n${fenced("now", "{}")}`),
  );
  expect(deepseekV31.write(calls)).toBe(section(plain("get_weather", paris) + plain("now", "{}")));
});
