import { describe, expect, test } from "bun:test";
import { llamaJson } from "../../../src/tools/formats/llama-json.ts";
import { call, content, read, tools } from "../messages.ts";

const paris = '{"name": "get_weather", "parameters": {"city": "Paris"}}';
const parisCall = call("get_weather", '{"city": "Paris"}');
const now = '{"type": "function", "name": "now", "parameters": {}}';
const nowCall = call("now", "{}");

describe("a call", () => {
  test("is the whole message, with its tag or without", () => {
    expect(read(llamaJson, paris)).toEqual([parisCall]);
    expect(read(llamaJson, ` \n${paris}\n`)).toEqual([parisCall]);
    expect(read(llamaJson, `<|python_tag|>${paris}`)).toEqual([parisCall]);
    expect(read(llamaJson, paris.replace("parameters", "arguments"))).toEqual([parisCall]);
  });

  test("may follow another, behind a semicolon, a line's end or in a list", () => {
    for (const between of [";", "; ", " ;\n", "\n", " "]) {
      expect(read(llamaJson, `${paris}${between}${now}`)).toEqual([parisCall, nowCall]);
    }
    expect(read(llamaJson, `<|python_tag|>${paris};${now}`)).toEqual([parisCall, nowCall]);
    expect(read(llamaJson, `[${paris}, ${now}]`)).toEqual([parisCall, nowCall]);
  });

  test("stands behind text only with its tag", () => {
    expect(read(llamaJson, `Wait. <|python_tag|>${paris}`)).toEqual([content("Wait."), parisCall]);
    expect(read(llamaJson, `Wait. ${paris}`)).toEqual([content(`Wait. ${paris}`)]);
  });

  test("may have text behind it", () => {
    expect(read(llamaJson, `${paris}; and that is it`)).toEqual([
      parisCall,
      content("; and that is it"),
    ]);
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

  for (const [name, text] of Object.entries(garbled)) {
    test(name, () => {
      expect(read(llamaJson, text)).toEqual([content(text)]);
    });
  }
});

test("other JSON is sent as soon as it cannot be a call", () => {
  const parser = llamaJson.parser(tools);
  expect(parser.push('{"ci')).toEqual([]);
  expect(parser.push('ty"')).toEqual([content('{"city"')]);
});
