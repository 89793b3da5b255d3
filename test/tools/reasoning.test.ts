import { describe, expect, test } from "bun:test";
import { Reasoning, type Split, thinkingOf } from "../../src/tools/reasoning.ts";

function split(inside: boolean, ...pieces: string[]): Split {
  const thoughts = new Reasoning(inside);
  const all = [...pieces.map((piece) => thoughts.push(piece)), thoughts.end()];
  return {
    reasoning: all.map(({ reasoning }) => reasoning).join(""),
    text: all.map(({ text }) => text).join(""),
  };
}

describe("a thought", () => {
  test("is split off, with the blanks around it", () => {
    expect(split(false, "\n<think>\n a  b\n\nc\n</think>\n\n Yes. \n")).toEqual({
      reasoning: "a  b\n\nc",
      text: "Yes. \n",
    });
  });

  test("may have been opened by the prompt", () => {
    expect(split(true, "\nHm.\n</think>\nYes.")).toEqual({ reasoning: "Hm.", text: "Yes." });
  });

  test("may be empty, or without an end", () => {
    expect(split(false, "<think>\n\n</think>\n\nYes.")).toEqual({ reasoning: "", text: "Yes." });
    expect(split(false, "<think>Hm. </thi")).toEqual({ reasoning: "Hm. </thi", text: "" });
    expect(split(true, "Hm. \n")).toEqual({ reasoning: "Hm.", text: "" });
  });

  test("is only recognized at the start", () => {
    for (const text of ["Yes. <think>a</think>", " \n<thin", "<", " \n ", "</think>", ""]) {
      expect(split(false, text)).toEqual({ reasoning: "", text });
    }
    expect(split(false, "<think>a</think>b<think>c</think>")).toEqual({
      reasoning: "a",
      text: "b<think>c</think>",
    });
  });

  test("is sent as it arrives, except for blanks and what may end it", () => {
    const thoughts = new Reasoning(false);
    const steps: [piece: string, reasoning: string, text: string][] = [
      [" <th", "", ""],
      ["ink>\n", "", ""],
      ["a ", "a", ""],
      ["b</th", " b", ""],
      ["e </", "</the", ""],
      ["think> ", "", ""],
      ["\nc ", "", "c "],
      [" <think>", "", " <think>"],
    ];
    for (const [piece, reasoning, text] of steps) {
      expect(thoughts.push(piece)).toEqual({ reasoning, text });
    }
  });
});

test("the template and the prompt tell whether a model thinks", () => {
  const template = "{{ message.content.split('</think>') }}";
  expect(thinkingOf("{{ message.content }}", "<|assistant|>")).toBe("none");
  expect(thinkingOf(template, "<|assistant|>\n")).toBe("possible");
  expect(thinkingOf(template, "<|assistant|>\n<think>\n")).toBe("begun");
  expect(thinkingOf(template, "<|assistant|>\n<think>\n\n</think>\n\n")).toBe("possible");
});

test("other marks are found in their place", () => {
  const marks = { open: "<|channel>thought", close: "<channel|>", tokens: [] };
  const template = "{{ message.content.split('<channel|>') }}</think>";
  expect(thinkingOf("</think>", "<|turn>model\n<think>", marks)).toBe("none");
  expect(thinkingOf(template, "<|turn>model\n", marks)).toBe("possible");
  expect(thinkingOf(template, "<|turn>model\n<|channel>thought\n", marks)).toBe("begun");
  expect(thinkingOf(template, "<|channel>thought\n<channel|>", marks)).toBe("possible");
  expect(new Reasoning(false, marks).push("<|channel>thought\na</think><channel|>b")).toEqual({
    reasoning: "a</think>",
    text: "b",
  });
});
