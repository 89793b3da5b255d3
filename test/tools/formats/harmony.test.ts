import { describe, expect, test } from "bun:test";
import { harmony } from "../../../src/tools/formats/harmony.ts";
import {
  call,
  content,
  expectRead,
  parts,
  read,
  reasoning,
  testContent,
  tools,
} from "../messages.ts";

const thought = "<|channel|>analysis<|message|>It is about the weather.<|end|>";
const head = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";
const parisCall = call("get_weather", '{"city": "Paris"}');

describe("a message", () => {
  test("has thoughts and an answer", () => {
    const answer = "<|start|>assistant<|channel|>final<|message|>Sunny,\n 20 < 21 °C.<|return|>";
    expectRead(harmony, thought + answer, [
      reasoning("It is about the weather."),
      "Sunny,\n 20 < 21 °C.",
    ]);
  });

  test("has a call, with or without its end token", () => {
    for (const end of ["", "<|call|>", "<|end|>"]) {
      expectRead(harmony, `${thought}<|start|>assistant${head}{"city": "Paris"}${end}`, [
        reasoning("It is about the weather."),
        parisCall,
      ]);
    }
  });

  test("names the recipient before or after the channel", () => {
    for (const given of [
      " to=functions.get_weather<|channel|>commentary json<|message|>",
      " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
      "<|channel|>commentary to=functions.get_weather<|message|>",
      "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
      "<|channel|>analysis to=functions.get_weather code<|message|>",
    ]) {
      expectRead(harmony, `${given}{"city": "Paris"}<|call|>`, [parisCall]);
      expectRead(harmony, `${thought}<|start|>assistant${given}{"city": "Paris"}`, [
        reasoning("It is about the weather."),
        parisCall,
      ]);
    }
  });

  test("may announce its calls", () => {
    const text = `${thought}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>`;
    expectRead(harmony, `${text}<|start|>assistant${head} {"city": "Paris"}\n`, [
      reasoning("It is about the weather."),
      "I look.",
      parisCall,
    ]);
  });

  test("has markers in the strings of a call that is enforced", () => {
    const given = '{"city": "<|end|><|start|>assistant"}';
    const text = `${head}${given}<|call|>`;
    const enforced = ["<|channel|>commentary to="];
    for (const pieces of [[text], Array.from(text)]) {
      expect(parts(harmony.parser(tools, enforced), pieces)).toEqual([call("get_weather", given)]);
    }
    expect(read(harmony, text)[0]).toMatchObject({ kind: "content" });
  });

  test("may omit the end marker", () => {
    expectRead(
      harmony,
      "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
      [reasoning("a"), "b"],
    );
  });

  test("without any marks is an answer, sent as it comes", () => {
    const parser = harmony.parser(tools);
    expect(parser.push("t")).toEqual([]);
    expect(parser.push("he")).toEqual([content("the")]);
    expect(parser.push(" answer <")).toEqual([content(" answer ")]);
    expect(parser.push("|")).toEqual([]);
    expect(parser.end(false)).toEqual([content("<|")]);
  });
});

describe("content, exactly as written, is", () => {
  const garbled = {
    "a call of what is no tool": `${head.replace("get_weather", "f")}{}<|call|>`,
    "a call of another kind": `${head.replace("functions.get_weather", "python")}1+1<|call|>`,
    "a call whose arguments are a list": `${head}[]<|call|>`,
    "a call that is cut short": `${head}{"city": "Par`,
    "a call with more behind it": `${head}{} and`,
    "the beginning of a call": head.slice(0, -5),
    "an unknown mark": "<|begin|>",
    "an unknown speaker": "<|start|>user",
    "a colon": ": {}",
  };

  testContent(harmony, garbled);
});

test("an incomplete header that is not a call's is dropped", () => {
  expectRead(harmony, `${thought}<|start|>assistant<|chan`, [
    reasoning("It is about the weather."),
  ]);
});

test("without tools there are no calls, but thoughts and answers", () => {
  const text = `${thought}<|start|>assistant${head}{}<|call|>`;
  expect(parts(harmony.parser([]), [text])).toEqual([
    reasoning("It is about the weather."),
    content(`<|start|>assistant${head}{}<|call|>`),
  ]);
});
