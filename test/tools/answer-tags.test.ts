import { describe, expect, test } from "bun:test";
import { hunyuan } from "../../src/tools/formats/nemotron.ts";
import { messageParser } from "../../src/tools/message.ts";
import { answerTagOf } from "../../src/tools/syntax/answer-tags.ts";
import { content, nowCall, parts, tools } from "./messages.ts";

const parser = (answerTag = "answer") =>
  messageParser({ thinking: "possible", format: hunyuan, tools, answerTag });

/** The same in one piece, character by character, and cut in two anywhere. */
function read(text: string) {
  const whole = parts(parser(), [text]);
  expect(parts(parser(), text)).toEqual(whole);
  for (let at = 0; at <= text.length; at++) {
    expect(parts(parser(), [text.slice(0, at), text.slice(at)])).toEqual(whole);
  }
  return whole;
}

const thought = { kind: "reasoning", text: "Hm." } as const;

describe("the tags around an answer", () => {
  test("are left out, with the blanks inside them", () => {
    expect(read("<think>\nHm.\n</think>\n<answer>\nYes:  a\n\n b.\n</answer>")).toEqual([
      thought,
      content("Yes:  a\n\n b."),
    ]);
    expect(read("<answer>\n</answer>")).toEqual([]);
    expect(read("<answer>Yes.</answer>\n")).toEqual([content("Yes.\n")]);
  });

  test("need not be there, nor be closed", () => {
    expect(read("<think>Hm.</think>Yes. <b>")).toEqual([thought, content("Yes. <b>")]);
    expect(read("<think>Hm.</think><answer>\nYes.\n")).toEqual([thought, content("Yes.")]);
    expect(read("<ans")).toEqual([content("<ans")]);
  });

  test("may have calls in them or behind them", () => {
    const now = '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>';
    expect(read(`<answer>\nSo ${now}\n</answer>`)).toEqual([content("So"), nowCall]);
    expect(read(`<think>Hm.</think>\n${now}`)).toEqual([thought, nowCall]);
  });

  test("are text where they do not start the answer", () => {
    const text = "Write <answer>x</answer>.";
    expect(read(text)).toEqual([content(text)]);
    const inside = "<answer>a <answer> b</answer></answer>";
    expect(read(inside)).toEqual([content("a <answer> b</answer>")]);
  });

  test("are dropped where the token limit cuts them", () => {
    expect(parts(parser(), ["<answer>\nYes.\n</ans"], true)).toEqual([content("Yes.")]);
  });
});

test("a template tells which tags a model writes", () => {
  const strip = (tag: string) => `{{ content.split('<${tag}>')[-1].split('</${tag}>')[0] }}`;
  expect(answerTagOf(`</think>${strip("answer")}`)).toBe("answer");
  expect(answerTagOf(`</think>${strip("response")}`)).toBe("response");
  expect(answerTagOf(strip("answer"))).toBeUndefined();
  expect(answerTagOf("</think>")).toBeUndefined();
});
