import { expect, test } from "bun:test";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { type MessageOptions, messageParser } from "../../src/tools/message.ts";
import { content, nowCall, parts, reasoning, tools } from "./messages.ts";

const written = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>';
const read = (options: MessageOptions, text: string) => parts(messageParser(options), [text]);

test("thoughts come first, and calls in them are thoughts", () => {
  const text = `<think>\nMaybe ${written}?\n</think>\n\nI look.\n${written}`;
  expect(read({ thinking: "possible", format: hermes, tools }, text)).toEqual([
    reasoning(`Maybe ${written}?`),
    content("I look."),
    nowCall,
  ]);
  expect(read({ thinking: "begun", format: hermes, tools }, `Hm.</think>${written}`)).toEqual([
    reasoning("Hm."),
    nowCall,
  ]);
});

test("without tools only thoughts are split off", () => {
  for (const options of [{}, { format: hermes }, { tools }]) {
    const text = `<think>Hm.</think>\n${written} \n`;
    expect(read({ thinking: "possible", ...options }, text)).toEqual([
      reasoning("Hm."),
      content(`${written} \n`),
    ]);
  }
});

test("a model that does not think may write the markers of thoughts", () => {
  const text = "<think> is a tag.";
  expect(read({ thinking: "none" }, text)).toEqual([content(text)]);
  expect(read({ thinking: "none", format: hermes, tools }, text)).toEqual([content(text)]);
});

test("buffered text is flushed at the end", () => {
  const parser = messageParser({ thinking: "possible", format: hermes, tools });
  expect(parser.push(" <th")).toEqual([]);
  expect(parser.end(false)).toEqual([content(" <th")]);
});

test("harmony is parsed with and without tools", () => {
  const text =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
  for (const options of [{ format: harmony }, { format: harmony, tools }]) {
    expect(read({ thinking: "none", ...options }, text)).toEqual([
      reasoning("Hm."),
      content("Yes."),
    ]);
  }
});
