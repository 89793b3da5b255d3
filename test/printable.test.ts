import { expect, test } from "bun:test";
import { printable, printableLines } from "../src/printable.ts";

const range = (first: number, last: number) =>
  Array.from({ length: last - first + 1 }, (_, i) => String.fromCharCode(first + i));
const controls = [
  ...range(0x00, 0x1f),
  ...range(0x7f, 0x9f),
  ...range(0x2028, 0x202e),
  ...range(0x2066, 0x2069),
  ..."\u061c\u200e\u200f",
  "\ud800",
  "\udfff",
];

test("what ends a line, commands a terminal or reorders text is shown as an escape", () => {
  for (const control of controls) {
    expect(printable(`a${control}b`)).toMatch(/^a\\([bfnrt]|u[0-9a-f]{4})b$/);
  }
  expect(printable("\n\x1b[31m\u009b\u202e\ud83d")).toBe("\\n\\u001b[31m\\u009b\\u202e\\ud83d");
});

test("everything else stays as it is", () => {
  const text = "Grüße, 世界 👋🏽 שלום \\n \u00a0\u200d\ufeff";
  expect(printable(text)).toBe(text);
  expect(printableLines(`${text}\n\t${text}\r`)).toBe(`${text}\n\t${text}\\r`);
});

test("escaped JSON is the same JSON", () => {
  const value = Object.fromEntries(controls.map((control) => [`k${control}`, [control, "\\"]]));
  for (const escape of [printable, printableLines]) {
    expect(JSON.parse(escape(JSON.stringify(value)))).toEqual(value);
  }
  expect(JSON.parse(printableLines(JSON.stringify(value, null, 2)))).toEqual(value);
});
