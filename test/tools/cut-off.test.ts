// A message that the token limit cuts off, at any place: no markup reaches the content or the thought, and
// calls are returned as far as they go. Calls that a grammar enforces have been returned as far by then, piece by piece.
import { describe, expect, test } from "bun:test";
import { enforcedCalls } from "../../src/conversation/tool-use.ts";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { hermes } from "../../src/tools/formats/hermes.ts";
import { llamaJson } from "../../src/tools/formats/llama-json.ts";
import { pythonic } from "../../src/tools/formats/pythonic.ts";
import { messageParser } from "../../src/tools/message.ts";
import { type Thinking, thinkTags } from "../../src/tools/reasoning.ts";
import type { Call, Enforced, ToolFormat } from "../../src/tools/syntax/format.ts";
import { allFormats } from "./all-formats.ts";
import {
  Assembly,
  call,
  content,
  parts,
  type ReadPart,
  read,
  reasoning,
  tools,
} from "./messages.ts";

const weather = {
  name: "get_weather",
  arguments: '{"city": "Zürich 👍🏽", "days": 3, "tags": ["<"]}',
};
const note = { name: "note", arguments: '{"text": "a b", "count": null}' };

/** The parts of the first `length` characters, which arrive in pieces of one or all at once. */
function cutAt(format: ToolFormat, characters: readonly string[], length: number): ReadPart[] {
  const head = characters.slice(0, length);
  const readPieces = (pieces: readonly string[], enforced?: Enforced) =>
    parts(messageParser({ thinking: "possible", format, tools, enforced }), pieces, true);
  const whole = readPieces([head.join("")]);
  expect(readPieces(head)).toEqual(whole);
  // In an enforced call of gpt-oss, nothing is a marker.
  if (format === harmony && head.at(-1) === "<") return whole;
  expect(readPieces([head.join("")], "all")).toEqual(whole);
  expect(readPieces(head, "all")).toEqual(whole);
  return whole;
}

/** What is enforced if calls are required, if they are not, and if a JSON document is the alternative. */
function enforcedIn(format: ToolFormat): Enforced[] {
  const grammar = format.grammar(tools, { required: false, parallel: true });
  if (!grammar) return ["all"];
  const constraint = { param: "tools", format: grammar };
  const form = { param: "format", format: { type: "json_schema", json_schema: {} } } as const;
  return [
    enforcedCalls(undefined, { constraint, tools, isRequired: true }),
    enforcedCalls(undefined, { constraint, tools, isRequired: false }),
    enforcedCalls(form, { constraint, tools, isRequired: false }),
  ];
}

function textOf(all: readonly ReadPart[], kind: "content" | "reasoning"): string {
  return all.flatMap((part) => (part.kind === kind ? [part.text] : [])).join("");
}

const callsIn = (all: readonly ReadPart[]) => all.filter((part) => part.kind === "call");

function isComplete({ arguments: given }: Call): boolean {
  try {
    JSON.parse(given);
    return true;
  } catch {
    return false;
  }
}

for (const format of allFormats) {
  describe(format.name, () => {
    const written = format.write([weather, note]);
    const expected = callsIn(read(format, written));

    test("leaves nothing of a call in the content, and tells the arguments as far as they go", () => {
      const characters = Array.from(written);
      expect(expected.map(({ name }) => name)).toEqual(["get_weather", "note"]);
      const seen = { unnamed: false, partial: false };
      const streams = enforcedIn(format).map((enforced) => ({
        parser: messageParser({ thinking: "possible", format, tools, enforced }),
        message: new Assembly(),
      }));
      for (let length = 1; length <= characters.length; length++) {
        const all = cutAt(format, characters, length);
        const calls = callsIn(all);
        expect(all).toEqual(calls);
        const char = characters[length - 1]!;
        for (const { parser, message } of streams) {
          message.add(parser.push(char));
          // Only a call that is not enforced may end in half a marker.
          if (format !== harmony || char !== "<") expect(message.parts).toEqual(all);
        }
        for (const [i, { name, arguments: given }] of calls.entries()) {
          expect(name).toBe(expected[i]!.name);
          expect(expected[i]!.arguments).toStartWith(given);
          if (i < calls.length - 1) expect(given).toBe(expected[i]!.arguments);
        }
        seen.unnamed ||= calls.length === 0;
        seen.partial ||= calls.length === 1 && !isComplete(calls[0]!);
        if (length === characters.length) expect(calls).toEqual(expected);
      }
      expect(seen).toEqual({ unnamed: true, partial: true });
    });

    test("leaves the text and the thought before a call as they are", () => {
      const [thought, text] = ["It is 1 < 2.", "One moment."];
      const { open, close } = format.thought ?? thinkTags;
      const before =
        format === harmony
          ? `<|channel|>analysis<|message|>${thought}<|end|><|start|>assistant<|channel|>commentary<|message|>${text}<|end|><|start|>assistant`
          : `${open}\n${thought}\n${close}\n\n${text}\n`;
      // Two formats have calls only at the start of a message.
      const characters = Array.from(
        format === llamaJson || format === pythonic ? before : before + written,
      );
      for (let length = 0; length <= characters.length; length++) {
        const all = cutAt(format, characters, length);
        expect(thought).toStartWith(textOf(all, "reasoning"));
        expect(text).toStartWith(textOf(all, "content").trimEnd());
      }
      const all = cutAt(format, characters, characters.length);
      expect(textOf(all, "reasoning")).toBe(thought);
      expect(textOf(all, "content").trimEnd()).toBe(text);
    });
  });
}

describe("what the limit cuts off", () => {
  const cut = (format: ToolFormat, text: string, thinking: Thinking = "none") =>
    parts(messageParser({ thinking, format, tools }), [text], true);

  test("is a call of no tool: not content, unless nothing marks it as a call", () => {
    expect(cut(hermes, '<tool_call>{"name": "other", "arguments": {"a": 1')).toEqual([]);
    const document = '{"name": "Ada", "id": "7';
    expect(cut(llamaJson, document)).toEqual([content(document)]);
    expect(cut(pythonic, "[other(a")).toEqual([content("[other(a")]);
    expect(cut(harmony, "<|channel|>commentary to=python<|message|>1+")).toEqual([]);
  });

  test("is garbled: text as it would be if the model had ended there", () => {
    const text = "<tool_call>get_weather";
    expect(cut(hermes, text)).toEqual([content(text)]);
  });

  test("comes after a complete call", () => {
    const complete = hermes.write([note]);
    const noteCall = call(note.name, note.arguments);
    expect(cut(hermes, `${complete}\n<tool_call>{"nam`)).toEqual([noteCall]);
    expect(cut(hermes, `${complete}\n<tool`)).toEqual([noteCall]);
    expect(cut(hermes, `${complete} Done <`)).toEqual([noteCall, content("Done ")]);
  });

  test("may be half a marker of a thought", () => {
    expect(cut(hermes, " <thi", "possible")).toEqual([content(" ")]);
    expect(cut(hermes, "<think>Hm. </thi", "possible")).toEqual([reasoning("Hm.")]);
    expect(cut(hermes, "Hm. </thi", "begun")).toEqual([reasoning("Hm.")]);
    expect(cut(harmony, "<|channel|>analysis<|message|>Hm.<|en")).toEqual([reasoning("Hm.")]);
  });

  test("is text to a model that ended its turn there", () => {
    const text = hermes.write([note]).slice(0, -1);
    const parser = messageParser({ thinking: "possible", format: hermes, tools });
    expect(parts(parser, [text])).toEqual([content(text)]);
  });
});
