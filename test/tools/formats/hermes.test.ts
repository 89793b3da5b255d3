import { describe, expect, test } from "bun:test";
import { hermes, internlm, longcat } from "../../../src/tools/formats/hermes.ts";
import { call, content, expectRead, nowCall, tools } from "../messages.ts";

const paris = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>';
const parisCall = call("get_weather", '{"city": "Paris"}');
const now = '<tool_call>{"name":"now","arguments":{}}</tool_call>';

describe("a call", () => {
  test("is read, its arguments as they are written", () => {
    expectRead(hermes, paris, [parisCall]);
    expectRead(hermes, paris.replace('{"city": "Paris"}', '{ "days":3.0e0 ,"x":[] }'), [
      call("get_weather", '{ "days":3.0e0 ,"x":[] }'),
    ]);
  });

  test("may follow another, and text may stand around, but blanks next to calls are no content", () => {
    expectRead(hermes, `${paris}\n${now}`, [parisCall, nowCall]);
    expectRead(hermes, `Let me see. \n\n${paris}\n\n${now}\n Done, \n\n`, [
      "Let me see.",
      parisCall,
      nowCall,
      "Done, \n\n",
    ]);
  });

  test("may have braces, quotes, escapes, marks and any characters in its strings", () => {
    const given = JSON.stringify({ text: '}{]["\\\n</tool_call> <tool_call> é 👍🏽 \u2028' });
    const text = `<tool_call>{"name":"note","arguments":${given}}</tool_call>`;
    expectRead(hermes, text, [call("note", given)]);
    const escaped = '{"\\u0074ext": "\\ud83d\\ude00\\/"}';
    const other = `<tool_call>{"arguments": ${escaped}, "name": "n\\u006fte"}</tool_call>`;
    expectRead(hermes, other, [call("note", escaped)]);
  });

  test("may be nested deeper than any stack", () => {
    const deep = `{"text": ${"[".repeat(50_000)}${"]".repeat(50_000)}}`;
    const text = `<tool_call>{"name": "note", "arguments": ${deep}}</tool_call>`;
    expectRead(hermes, text, [call("note", deep)]);
  });

  test("may carry an id and a type", () => {
    const text = paris.replace("{", '{"id": "a", "type": "function", ');
    expectRead(hermes, text, [parisCall]);
  });
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "a call of what is no tool": paris.replace("get_weather", "get_whether"),
    "a call without a name": '<tool_call>{"arguments": {}}</tool_call>',
    "a call without arguments": '<tool_call>{"name": "now"}</tool_call>',
    "a call whose arguments are a list": '<tool_call>{"name": "now", "arguments": []}</tool_call>',
    "a call whose arguments are text": '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>',
    "a call whose name is a number": '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    "a call with more than belongs to it": paris.replace("}}", '}, "why": 1}'),
    "a list of calls": `<tool_call>[{"name": "now", "arguments": {}}]</tool_call>`,
    "an object that is not closed": paris.replace("}}", "}"),
    "a call with two objects of arguments": paris.replace("}}", '}, "parameters": {}}'),
    "an object that is closed twice": paris.replace("}}", "}}}"),
    "a comma too many": paris.replace('"}', '",}'),
    "a string over two lines": paris.replace("Paris", "Pa\nris"),
    "an unknown escape": paris.replace("Paris", "\\Paris"),
    "an escape that is too short": paris.replace("Paris", "\\u12g4"),
    "a number that is none": paris.replace('"Paris"', "01"),
    Python: paris.replaceAll('"', "'"),
    "another tag's end": paris.replace("</tool_call>", "</tools>"),
    "no JSON": "<tool_call>get_weather</tool_call>",
    "an empty call": "<tool_call></tool_call>",
    "a stray end": "a </tool_call> b",
    "a mark that is not finished": "a <tool_cal b < c <tool",
    "nothing but blanks": " \n ",
  };

  for (const [name, text] of Object.entries(garbled)) {
    test(name, () => {
      expectRead(hermes, text, [text]);
      expectRead(hermes, ` x\n${text} y`, [` x\n${text} y`]);
    });
  }

  test("any call that is cut short", () => {
    for (let end = 1; end < paris.length; end++) {
      expectRead(hermes, paris.slice(0, end), [paris.slice(0, end)]);
    }
  });
});

test("a call is found behind one that is garbled", () => {
  expectRead(hermes, `<tool_call>{"name": ${paris}`, ['<tool_call>{"name":', parisCall]);
  expectRead(hermes, `<tool_call>\n${paris}`, ["<tool_call>", parisCall]);
  expectRead(hermes, `<tool_call>{"name": "x\n${paris}`, ['<tool_call>{"name": "x', parisCall]);
  expectRead(hermes, `${paris} <tool_call>oh`, [parisCall, "<tool_call>oh"]);
});

test("an empty message has no parts", () => {
  expectRead(hermes, "", []);
});

test("text is sent as soon as it cannot become a call, blanks with what follows them", () => {
  const parser = hermes.parser(tools);
  const steps = [
    ["a ", "a"],
    ["<", ""],
    [" b", " < b"],
    ["\n ", ""],
    ["<tool", ""],
    ["_ c", "\n <tool_ c"],
    ["<tool_call", ""],
    [">", ""],
    ['{"name', ""],
    ['": x', '<tool_call>{"name": x'],
  ] as const;
  for (const [piece, sent] of steps) {
    expect(parser.push(piece)).toEqual(sent === "" ? [] : [content(sent)]);
  }
  expect(parser.end(false)).toEqual([]);
});

test("InternLM and LongCat have tags of their own", () => {
  const plugin = '<|action_start|><|plugin|>\n{"name": "now", "parameters": {}}<|action_end|>';
  expectRead(internlm, `So\n${plugin}`, ["So", nowCall]);
  const text = plugin.replace("<|plugin|>", "<|interpreter|>");
  expectRead(internlm, text, [text]);
  expectRead(longcat, paris.replaceAll("tool_call", "longcat_tool_call"), [parisCall]);
  expectRead(longcat, paris, [paris]);
});
