import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { readJson } from "../../src/files/json.ts";
import { temporaryFolder } from "../support/temporary-folder.ts";

const folder = temporaryFolder();

function read(text: string): Record<string, unknown> {
  const path = join(folder, "config.json");
  writeFileSync(path, text);
  return readJson(path);
}

test("numbers that only Python writes are read, and texts stay as they are", () => {
  const text =
    '{"limit": [0.0, Infinity], "least": -Infinity, "none": NaN, "a \\"Infinity": "NaN"}';
  const found = { limit: [0, Infinity], least: -Infinity, none: null, 'a "Infinity': "NaN" };
  expect(read(text)).toEqual(found);
});

test("what is no object is refused", () => {
  for (const text of ["[Infinity]", "Infinity", '{"a": Infinity', '{"a": infinity}']) {
    expect(() => read(text)).toThrow("does not contain a JSON object");
  }
});
