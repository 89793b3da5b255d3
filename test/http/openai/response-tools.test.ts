import { expect, test } from "bun:test";
import {
  CustomInput,
  customArguments,
  customInput,
} from "../../../src/http/openai/response-tools.ts";

const input = 'a "b"\n\\c\u2028 \u{1F600} d';

test("a custom tool's input is read from its call", () => {
  expect(customInput(customArguments(input))).toBe(input);
  for (const other of ["", "{", "[]", "{}", '{"input": 3}', '{"other": "a"}', '{"input": "\\q"}']) {
    expect([other, customInput(other)]).toEqual([other, ""]);
  }
});

test("a custom tool's input is read as far as it goes, wherever its call is cut off", () => {
  const escaped = '{"input": "a\\n\\u00e9\\"b"}';
  let longest = "";
  for (let end = 0; end <= escaped.length; end++) {
    const read = customInput(escaped.slice(0, end));
    expect('a\né"b').toStartWith(read);
    expect(read.length).toBeGreaterThanOrEqual(longest.length);
    longest = read;
  }
  expect(longest).toBe('a\né"b');
});

test("a custom tool's input is read in pieces as it is read whole", () => {
  const [pair, half] = ["\\ud83d\\ude00", "\\ud83d"];
  const escaped = `{ "input": "a\\"\\\\\\u00e9${pair} 😀 ${half}. ${half}\\n\\ude00" } `;
  const whole = JSON.parse(escaped).input;
  expect(customInput(escaped)).toBe(whole);
  for (const size of [1, 2, 3, 5, 7]) {
    const reader = new CustomInput();
    const characters = Array.from(escaped);
    const pieces: string[] = [];
    while (characters.length > 0) pieces.push(reader.push(characters.splice(0, size).join("")));
    expect(pieces.join("")).toBe(whole);
    expect(pieces.filter((piece) => piece !== "").length).toBeGreaterThan(4);
    // Python does not join the halves of a pair.
    for (const piece of pieces) expect(piece).not.toMatch(/\ud83d$/);
  }
});

test("a long input is read in linear time", () => {
  const text = customArguments('a\n"\u{1F600}'.repeat(100_000));
  const reader = new CustomInput();
  const before = process.cpuUsage();
  for (let at = 0; at < text.length; at += 4) reader.push(text.slice(at, at + 4));
  expect(process.cpuUsage(before).user / 1000).toBeLessThan(5000);
  expect(customInput(text)).toBe(JSON.parse(text).input);
});
