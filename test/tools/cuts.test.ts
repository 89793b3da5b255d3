// A message gives the same parts however it is split into pieces.
import { describe, expect, test } from "bun:test";
import { harmony } from "../../src/tools/formats/harmony.ts";
import { type MessageOptions, messageParser } from "../../src/tools/message.ts";
import { thinkTags } from "../../src/tools/reasoning.ts";
import type { Enforced, MessagePart, ToolFormat } from "../../src/tools/syntax/format.ts";
import { makeRandom, type Random } from "../support/random.ts";
import { allFormats } from "./all-formats.ts";
import { parts, type ReadPart, tools } from "./messages.ts";

const calls = [
  { name: "get_weather", arguments: '{"city": "Zürich 👍🏽", "days": 3, "tags": ["}", "]"]}' },
  { name: "now", arguments: "{}" },
  { name: "note", arguments: '{"text": "</tool_call> \\"<think>\\" \\\\"}' },
  { name: "unknown", arguments: '{"a": {"b": [1, -2.5e3, true, null]}}' },
];

function corpus(format: ToolFormat, random: Random): string[] {
  const written = calls.map((call) => format.write([call]));
  const several = format.write([calls[0]!, calls[1]!]);
  const { open, close } = format.thought ?? thinkTags;
  const whole = [
    "",
    " \n",
    "Only text, < and > and 👍🏽.\n",
    ...written,
    several,
    `One moment.\n\n${written[0]}\n${written[1]} \n Done.`,
    `${written[3]}\n${written[1]}`,
    `${open}\nHm, ${written[1]} or so.\n${close}\n\n${written[2]}`,
    `${open} no end`,
  ];
  const garbled = Array.from({ length: 8 }, () => {
    const base = whole[random.below(whole.length)]!;
    const marks = ["<", "[", "{", '"', "\\", "`", "\n", ...format.markers];
    return mutated(mutated(base, marks, random), marks, random);
  });
  return [...whole, ...garbled];
}

/** A text with characters removed, inserted, or cut off at the end. */
function mutated(text: string, marks: readonly string[], random: Random): string {
  const characters = Array.from(text);
  const at = random.below(characters.length + 1);
  const [before, after] = [characters.slice(0, at), characters.slice(at)];
  if (random.chance(0.2)) return before.join("");
  if (random.chance(0.5)) return [...before, marks[random.below(marks.length)], ...after].join("");
  return [...before, ...after.slice(1 + random.below(3))].join("");
}

function readPieces(options: MessageOptions, pieces: readonly string[]): ReadPart[] {
  const parser = messageParser(options);
  const checked = (some: MessagePart[]) => {
    const wrong = some.filter((part, i) => {
      if (part.kind === "call" || part.kind === "call_end") return false;
      return part.text === "" || some[i - 1]?.kind === part.kind;
    });
    if (wrong.length > 0) throw new Error(`empty or not merged: ${JSON.stringify(some)}`);
    return some;
  };
  return parts(
    { push: (piece) => checked(parser.push(piece)), end: () => checked(parser.end(false)) },
    pieces,
  );
}

describe("any split into pieces gives the same parts in", () => {
  for (const [seed, format] of allFormats.entries()) {
    test(format.name, () => {
      const random = makeRandom(seed + 1);
      for (const text of corpus(format, random)) {
        const characters = Array.from(text);
        const ways: Pick<MessageOptions, "thinking" | "enforced">[] = [
          { thinking: "none" },
          { thinking: "possible" },
          { thinking: "possible", enforced: "all" },
          { thinking: "begun" },
        ];
        for (const way of ways) {
          const options = { ...way, format, tools };
          const whole = readPieces(options, [text]);
          const piecesAt = (at: number) => [
            characters.slice(0, at).join(""),
            characters.slice(at).join(""),
          ];
          const cuts = way.thinking === "possible" ? characters.keys().map(piecesAt) : [];
          const manyCuts = [characters, randomPieces(characters, random)];
          for (const pieces of [...cuts, ...manyCuts]) {
            if (!Bun.deepEquals(readPieces(options, pieces), whole)) {
              expect({ pieces, parts: readPieces(options, pieces) }).toEqual({
                pieces,
                parts: whole,
              });
            }
          }
        }
      }
    });
  }
});

test("a call that is not enforced is returned once it is complete", () => {
  for (const format of allFormats) {
    const text = `${format.write([calls[0]!])}${format === harmony ? "<|call|>" : ""}`;
    const parser = messageParser({ thinking: "none", format, tools });
    const pushed = Array.from(text, (char) => parser.push(char));
    const kinds = [...pushed, parser.end(false)].map((some) => some.map(({ kind }) => kind).join());
    expect([format.name, kinds.filter((each) => each !== "")]).toEqual([
      format.name,
      ["call,arguments,call_end"],
    ]);
  }
});

function randomPieces(characters: readonly string[], random: Random): string[] {
  const pieces: string[] = [];
  for (let at = 0; at < characters.length; ) {
    const length = random.below(8);
    pieces.push(characters.slice(at, at + length).join(""));
    at += length;
  }
  return pieces;
}

test("text without a call is returned unchanged", () => {
  for (const [seed, format] of allFormats.entries()) {
    if (format === harmony) continue;
    const random = makeRandom(seed + 100);
    let callFree = 0;
    for (const text of corpus(format, random)) {
      const read = readPieces({ thinking: "none", format, tools }, [text]);
      if (read.some(({ kind }) => kind === "call")) continue;
      expect(read).toEqual(text === "" ? [] : [{ kind: "content", text }]);
      callFree++;
    }
    expect(callFree).toBeGreaterThan(5);
  }
});

describe("parsing takes linear time in", () => {
  const LENGTH = 50_000;
  // The others share the parser of one of these.
  const own = allFormats.filter(({ name }) => !/functools|granite|list/.test(name));

  for (const format of own) {
    test(format.name, () => {
      const [opener = "[", ...others] = format.markers;
      const call = format.write([calls[0]!]);
      const long = (length: number) =>
        format.write([{ name: "note", arguments: JSON.stringify({ text: "x".repeat(length) }) }]);
      const many = (length: number) =>
        format.write(Array.from({ length: length / 100 }, () => calls[0]!));
      const hostile: ((length: number) => string)[] = [
        long,
        many,
        (length) => `${call}\n`.repeat(length / 100),
        (length) => call.slice(0, -1).repeat(length / 100),
        (length) => [opener, ...others].join("").repeat(length / 50),
        (length) => `${opener}${" ".repeat(length)}`,
        (length) => `${opener}{"name": "note", "arguments": {"text": ${"[".repeat(length)}`,
      ];
      const processorMs = (text: string, enforced?: Enforced) => {
        const parser = messageParser({ thinking: "possible", format, tools, enforced });
        const before = process.cpuUsage();
        for (const char of text) parser.push(char);
        parser.end(false);
        return process.cpuUsage(before).user / 1000;
      };
      const expectLinear = (write: (length: number) => string, enforced?: Enforced) => {
        // Linear parsing takes 0.05 s or less; a quadratic parser takes a second, and 16 times as long as for a quarter. What
        // the compiler and the collector of the process do meanwhile counts too, and not every time.
        const isLinear = [1, 2, 3].some(() => {
          const whole = processorMs(write(LENGTH), enforced);
          return whole < 175 || whole < 7 * processorMs(write(LENGTH / 4), enforced);
        });
        expect(isLinear).toBe(true);
      };
      for (const write of hostile) expectLinear(write);
      for (const write of [long, many]) expectLinear(write, "all");
    });
  }
});
