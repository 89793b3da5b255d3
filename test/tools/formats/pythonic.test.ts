import { describe, test } from "bun:test";
import { olmo } from "../../../src/tools/formats/python-calls.ts";
import { pythonic } from "../../../src/tools/formats/pythonic.ts";
import { call, expectRead, nowCall, testContent } from "../messages.ts";

const paris = '[get_weather(city="Paris", days=3)]';
const parisCall = call("get_weather", '{"city": "Paris", "days": 3}');

describe("a list of calls", () => {
  test("is the whole message, between marks or not", () => {
    expectRead(pythonic, paris, [parisCall]);
    expectRead(pythonic, ` [ get_weather( city = 'Paris' , days=3, ) , now() , ]\n`, [
      parisCall,
      nowCall,
    ]);
    const marked = `<|python_start|>${paris}<|python_end|>`;
    expectRead(pythonic, `Wait.\n${marked} Done`, ["Wait.", parisCall, "Done"]);
  });

  test("may have names that are not valid in Python", () => {
    expectRead(pythonic, "[note(größe-1=2)]", [call("note", '{"größe-1": 2}')]);
  });

  test("stands behind text only between marks", () => {
    expectRead(pythonic, `Wait. ${paris}`, [`Wait. ${paris}`]);
  });
});

describe("a value", () => {
  const values: [python: string, json: string][] = [
    ["'Paris'", '"Paris"'],
    [`"it's [fine]), (really={1})"`, `"it's [fine]), (really={1})"`],
    [`'say "hi"'`, '"say \\"hi\\""'],
    ["''", '""'],
    ["'é👍🏽'", '"é👍🏽"'],
    [`"a\\n\\t\\\\\\'\\"\\x41\\u00e9\\U0001F600\\/\\d"`, `"a\\n\\t\\\\'\\"Aé😀/\\\\d"`],
    ['"\\ud83d\\ude00"', '"😀"'],
    ["-3", "-3"],
    ["+3", "3"],
    ["1.5e-3", "1.5e-3"],
    [".5", "0.5"],
    ["5.", "5.0"],
    ["123456789012345678901234567890", "123456789012345678901234567890"],
    ["True", "true"],
    ["False", "false"],
    ["None", "null"],
    ["true", "true"],
    ["null", "null"],
    ["[]", "[]"],
    ["[1, [True, 'a'], {}]", '[1, [true, "a"], {}]'],
    ["{'a': 1, \"b\": {'c': [None]}}", '{"a": 1, "b": {"c": [null]}}'],
    ["{'a': 1, 'a': 2,}", '{"a": 2}'],
    ["{'__proto__': 1}", '{"__proto__": 1}'],
  ];
  for (const [python, json] of values) {
    test(`${python} is ${json}`, () => {
      expectRead(pythonic, `[note(text=${python})]`, [call("note", `{"text": ${json}}`)]);
    });
  }
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "a call of what is no tool": "[f(x=1)]",
    "a list with a call of what is no tool": "[now(), f(x=1)]",
    "an empty list": "[]",
    "a link": "[now](http://localhost)",
    "a list of numbers": "[1, 2]",
    "a list behind a bracket": "<[now()]",
    "an argument without a name": '[get_weather("Paris")]',
    "a variable": "[get_weather(city=paris)]",
    "a call within a call": "[note(text=now())]",
    "a number with a leading zero": "[note(count=01)]",
    "a number that is none": "[note(count=1.2.3)]",
    "a point": "[note(count=.)]",
    infinity: "[note(count=inf)]",
    "a set": "[note(text={1, 2})]",
    "a tuple": "[note(text=(1, 2))]",
    "a key that is no string": "[note(text={1: 2})]",
    "a string over two lines": '[note(text="a\nb")]',
    "a letter beyond Unicode": '[note(text="\\Uffffffff")]',
    "an escape that is too short": '[note(text="\\x4")]',
    "a list that is cut short": paris.slice(0, -1),
    "a list nested a hundred times": `[note(text=${"[".repeat(100)}${"]".repeat(100)})]`,
    "a list nested without end": `[note(text=${"[".repeat(5000)}`,
  };

  testContent(pythonic, garbled);
});

describe("OLMo's block", () => {
  test("has a call a line, or a list, anywhere in the text", () => {
    const lines = "get_weather(city='Paris', days=3)\nnow()";
    for (const inner of [lines, `[${lines.replace("\n", ", ")}]`]) {
      expectRead(olmo, `Wait.\n<function_calls>\n${inner}\n</function_calls>\nDone`, [
        "Wait.",
        parisCall,
        nowCall,
        "Done",
      ]);
    }
  });

  test("is content if it is garbled", () => {
    for (const inner of ["", "f()", "now() and", "[now()", "now("]) {
      const text = `<function_calls>${inner}</function_calls>`;
      expectRead(olmo, text, [text]);
    }
  });
});
