import { describe, expect, test } from "bun:test";
import { llamaJson } from "../../../src/tools/formats/llama-json.ts";
import { call, content, expectRead, nowCall, testContent, tools } from "../messages.ts";

const paris = '{"name": "get_weather", "parameters": {"city": "Paris"}}';
const parisCall = call("get_weather", '{"city": "Paris"}');
const now = '{"type": "function", "name": "now", "parameters": {}}';

describe("a call", () => {
  test("is the whole message, with its tag or without", () => {
    expectRead(llamaJson, paris, [parisCall]);
    expectRead(llamaJson, ` \n${paris}\n`, [parisCall]);
    expectRead(llamaJson, `<|python_tag|>${paris}`, [parisCall]);
    expectRead(llamaJson, paris.replace("parameters", "arguments"), [parisCall]);
  });

  test("may follow another, behind a semicolon, a line's end or in a list", () => {
    for (const between of [";", "; ", " ;\n", "\n", " "]) {
      expectRead(llamaJson, `${paris}${between}${now}`, [parisCall, nowCall]);
    }
    expectRead(llamaJson, `<|python_tag|>${paris};${now}`, [parisCall, nowCall]);
    expectRead(llamaJson, `[${paris}, ${now}]`, [parisCall, nowCall]);
  });

  test("stands behind text only with its tag", () => {
    expectRead(llamaJson, `Wait. <|python_tag|>${paris}`, ["Wait.", parisCall]);
    expectRead(llamaJson, `Wait. ${paris}`, [`Wait. ${paris}`]);
  });

  test("may have text behind it", () => {
    expectRead(llamaJson, `${paris}; and that is it`, [parisCall, "; and that is it"]);
  });
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "a call of what is no tool": paris.replace("get_weather", "f"),
    "a list with a call of what is no tool": `[${paris}, ${now.replace("now", "then")}]`,
    "other JSON": ' {"city": "Paris", "days": [1, 2]}\n',
    "a list": "[1, 2]",
    "an empty list": "[]",
    "a call that is cut short": paris.slice(0, -1),
    "a tag alone": "<|python_tag|>print(1)",
  };

  testContent(llamaJson, garbled);
});

test("other JSON is sent as soon as it cannot be a call", () => {
  const parser = llamaJson.parser(tools);
  expect(parser.push('{"ci')).toEqual([]);
  expect(parser.push('ty"')).toEqual([content('{"city"')]);
});
