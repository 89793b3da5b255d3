import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { builtInPrompts, readPrompts } from "../../src/bench/prompts.ts";
import { UsageError } from "../../src/config/usage-error.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const folder = temporaryFolder();

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

test("there are twenty prompts, no two alike, from a few words to hundreds", () => {
  expect(new Set(builtInPrompts).size).toBe(20);
  const words = builtInPrompts.map((prompt) => prompt.split(/\s+/).length).sort((a, b) => a - b);
  expect(words[0]).toBeLessThan(6);
  expect(words[10]).toBeGreaterThan(15);
  expect(words[19]).toBeGreaterThan(250);
});

test("the first few prompts are mixed as all of them are", () => {
  const mean = (prompts: readonly string[]) =>
    prompts.reduce((sum, { length }) => sum + length, 0) / prompts.length;
  for (const count of [4, 8, 16]) {
    const part = mean(builtInPrompts.slice(0, count)) / mean(builtInPrompts);
    expect(part).toBeWithin(0.7, 1.4);
  }
});

test("prompts are the lines of a file, or a JSON array", () => {
  expect(readPrompts(file("a.txt", "one\n\n two words\n"))).toEqual(["one", " two words"]);
  expect(readPrompts(file("a.json", '["one\\ntwo", "three"]'))).toEqual(["one\ntwo", "three"]);
});

test("a file without prompts is refused", () => {
  for (const [name, text] of Object.entries({
    "b.txt": "\n\n",
    "b.json": "[]",
    "c.json": '["a", 1]',
    "d.json": '{"a": 1}',
    "e.json": "[",
  })) {
    expect(() => readPrompts(file(name, text))).toThrow(UsageError);
  }
  expect(() => readPrompts(join(folder, "absent"))).toThrow(UsageError);
});
